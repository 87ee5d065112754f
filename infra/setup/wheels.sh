#!/usr/bin/env bash
# Collects the wheels of the worker image in .cache/wheels, in the pins of constraints.txt and with the CPU build of torch, so that
# the image is built without a network. For the Python of the base image: wheels.sh BASE. Quick when nothing changed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=infra/setup/lib.sh
. "$here/lib.sh"
# shellcheck source=infra/setup/torch.sh
. "$here/torch.sh"
LOCKS="infra/setup/locks"

base=${1:?the base image}
# pip chooses wheels, and what is needed beside them, for the system that it runs on
[ "$(uname -s)" = Linux ] || fail 2 "the worker image is built on Linux: run make up or make images there, or load an image that was built there"
wheels="$ROOT/.cache/wheels"
python=$(docker run --rm "$base" python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || fail 3 "no Python in the image $base"
# shellcheck disable=SC2046  # names without spaces
want="$(digest pyproject.toml constraints.txt infra/setup/wheels.sh $(cd "$ROOT" && LC_ALL=C ls "$LOCKS"/*.txt)) $python"
if stamp_is wheels "$want" && [ -d "$wheels" ]; then exit 0; fi

# check_wheels: each wheel has a sha256 that a lock of the image's platform names. Where there is no lock, that is said.
check_wheels() {
    local tag wheel locked="$CACHE/wheels-locked.txt"
    tag="cp$(printf '%s' "$python" | cut -d. -f1,2 | tr -d .)-linux-$(uname -m)"
    if [ ! -f "$ROOT/$LOCKS/$tag.txt" ]; then
        say "No lock for $tag: the wheels of the worker image are what the index gave, without hashes"
        return 0
    fi
    cat "$ROOT/$LOCKS/$tag.txt" "$ROOT/$LOCKS/torch-$tag.txt" "$ROOT/$LOCKS/image-$tag.txt" >"$locked"
    for wheel in "$wheels"/*.whl; do
        grep -qF "sha256:$(sha256 <"$wheel")" "$locked" || fail 1 "the lock of $tag does not name $wheel: delete it, or run infra/setup/lock.sh"
    done
}

say "Collecting the wheels of the worker image for Python $python (some 400 MB)"
mkdir -p "$wheels"
download() {
    logged wheels "$VENV/bin/python" -m pip download --disable-pip-version-check --no-input --progress-bar off --quiet \
        --only-binary=:all: --python-version "$python" -c "$ROOT/constraints.txt" -d "$wheels" "$@"
}
# What this project needs, and what installs it; pip reads conditions on the patch version with this Python's, so what an older one
# needs beside is named. torch comes first, because on Linux it must not be PyPI's CUDA build.
"$VENV/bin/python" - >"$CACHE/wheels-need.txt" <<PY
import tomllib
needed = tomllib.load(open("$ROOT/pyproject.toml", "rb"))["project"]["dependencies"]
print(*(line for line in needed if not line.startswith("torch")), "pip", "hatchling", "editables", "async-timeout", sep="\n")
PY
torch=$(torch_version)
# Most changes of pyproject.toml ask for nothing new: then no index is asked either.
if download --no-index -r "$CACHE/wheels-need.txt" "torch==$torch" --find-links "$wheels" 2>/dev/null; then
    check_wheels
    stamp_set wheels "$want"
    exit 0
fi
download --no-deps "torch==$torch+cpu" 2>/dev/null || download --no-deps --index-url "$TORCH_CPU_INDEX" "torch==$torch" ||
    fail 3 "no CPU build of torch $torch is available"
download -r "$CACHE/wheels-need.txt" "torch==$torch" --find-links "$wheels" || fail 1 "could not collect the wheels"
check_wheels
stamp_set wheels "$want"
