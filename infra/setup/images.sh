#!/usr/bin/env bash
# images.sh [NAME...]: builds these images of containers/, by default all; an image is left alone while its sources and its base are the same.
# The worker's packages are collected first (wheels.sh); only postgres, s3 and gpu need a network while they are built.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=infra/setup/lib.sh
. "$here/lib.sh"
# shellcheck source=infra/setup/docker.sh
. "$here/docker.sh"
# shellcheck source=infra/setup/image.sh
. "$here/image.sh"

CODE="containers/sandbox flows stages infra/runs infra/models infra/benchmarks infra/experiments pyproject.toml constraints.txt"

# build NAME FILES CONTEXT NETWORK ARGUMENT=IMAGE...: built when a file or an image that it stands on has changed.
build() {
    local name=$1 files=$2 context=$3 network=$4 want found pair arguments=()
    shift 4
    for pair in "$@"; do arguments+=(--build-arg "$pair"); done
    # shellcheck disable=SC2086
    want=$( (for pair in "$@"; do image_id "${pair#*=}"; done && cd "$ROOT" &&
        digest $(find $files -type f ! -name '*.pyc' | LC_ALL=C sort)) | sha256)
    found=$(docker image inspect --format '{{index .Config.Labels "populora.content"}}' "populora-$name:local" 2>/dev/null) || true
    [ "$found" != "$want" ] || return 0
    say "Building the image populora-$name:local"
    logged "image-$name" docker build --network "$network" "${arguments[@]}" --label "populora.content=$want" \
        -f "$ROOT/containers/$name/Dockerfile" -t "populora-$name:local" "$ROOT/$context" || fail 1 "could not build populora-$name:local"
}

ensure_image() {
    case "$1" in
    sandbox) ensure_sandbox_image ;;
    worker)
        bash "$here/wheels.sh" "$BASE"
        build worker "containers/worker $CODE" . none "BASE=$BASE"
        ;;
    try)
        ensure_image sandbox
        ensure_image worker
        build try containers/try . none WORKER=populora-worker:local "SANDBOX=$SANDBOX_IMAGE"
        ;;
    postgres | s3) build "$1" "containers/$1" "containers/$1" host "BASE=$BASE" ;;
    gpu) build gpu "containers/gpu infra/setup/locks $CODE" . host "BASE=$BASE" ;;
    *) fail 2 "there is no image $1; images are: $(cd "$ROOT/containers" && echo *)" ;;
    esac
}

ensure_docker
ensure_base
for name in "${@:-all}"; do
    if [ "$name" = all ]; then
        for file in "$ROOT"/containers/*/Dockerfile; do ensure_image "$(basename "$(dirname "$file")")"; done
    else
        ensure_image "$name"
    fi
done
