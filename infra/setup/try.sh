#!/usr/bin/env bash
# Builds populora-try:local, the image that runs the smoke job and serves UI and browser with one `docker run`: the worker image, the
# sandbox image as a file, and containers/try/start.py. Quick when nothing changed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=infra/setup/lib.sh
. "$here/lib.sh"
# shellcheck source=infra/setup/docker.sh
. "$here/docker.sh"
# shellcheck source=infra/setup/image.sh
. "$here/image.sh"
CONTEXT="$ROOT/.cache/try"
TAG="${POPULORA_TRY_IMAGE:-populora-try:local}"

ensure_docker
ensure_sandbox_image
ensure_worker_image
worker=$(image_id populora-worker:local) sandbox=$(image_id "$SANDBOX_IMAGE")
want=$(printf '%s\n' "$worker" "$sandbox" "$(digest containers/try/Dockerfile containers/try/start.py)" | sha256)
found=$(docker image inspect --format '{{index .Config.Labels "populora.content"}}' "$TAG" 2>/dev/null) || true
if [ "$found" != "$want" ]; then
    say "Building the image $TAG"
    mkdir -p "$CONTEXT"
    # Under a tag of its own, because loading the file must not move the tag of another checkout.
    docker tag "$SANDBOX_IMAGE" populora-sandbox:try
    docker save --output "$CONTEXT/sandbox.tar" populora-sandbox:try
    cp "$ROOT/containers/try/start.py" "$CONTEXT/start.py"
    logged image-try docker build --network none --build-arg "WORKER=populora-worker:local" --label "populora.content=$want" \
        -f "$ROOT/containers/try/Dockerfile" -t "$TAG" "$CONTEXT" || fail 1 "could not build $TAG"
    rm -f "$CONTEXT/sandbox.tar"
fi
say "Start it (docs/install.md says what the socket means):"
cat <<COMMAND
docker run --rm -it --group-add "\$(stat -c %g /var/run/docker.sock)" -v /var/run/docker.sock:/var/run/docker.sock -e POPULORA_TRUST_UI_WITH_HOST_ROOT=1 -p 127.0.0.1:4200:4200 -p 127.0.0.1:8750:8750 $TAG
COMMAND
