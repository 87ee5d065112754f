#!/usr/bin/env bash
# Collects the wheels of the worker image in .cache/wheels, in the pins of constraints.txt and with the CPU build of torch, so that
# the image is built without a network. For the Python of the base image: wheels.sh BASE. Quick when nothing changed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=infra/setup/lib.sh
. "$here/lib.sh"
# shellcheck source=infra/setup/torch.sh
. "$here/torch.sh"

base=${1:?the base image}
wheels="$ROOT/.cache/wheels"
python=$(docker run --rm "$base" python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || fail 3 "no Python in the image $base"
want="$(digest pyproject.toml constraints.txt infra/setup/wheels.sh) $python"
if stamp_is wheels "$want" && [ -d "$wheels" ]; then exit 0; fi

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
    stamp_set wheels "$want"
    exit 0
fi
download --no-deps "torch==$torch+cpu" 2>/dev/null || download --no-deps --index-url "$TORCH_CPU_INDEX" "torch==$torch" ||
    fail 3 "no CPU build of torch $torch is available"
download -r "$CACHE/wheels-need.txt" "torch==$torch" --find-links "$wheels" || fail 1 "could not collect the wheels"
stamp_set wheels "$want"
