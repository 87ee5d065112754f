# Which build of torch, and how to get it without pulling gigabytes of CUDA onto a machine that has no GPU. Sourced by setup.sh.
# shellcheck shell=bash

TORCH_CPU_INDEX="https://download.pytorch.org/whl/cpu"
TORCH_CUDA_INDEX="https://download.pytorch.org/whl/cu130"
PATIENCE="--timeout 10 --retries 1" # for an index that may be unreachable

torch_version() { sed -n 's/^torch==//p' "$ROOT/constraints.txt"; }

SMI_SECONDS=90 # without persistence mode, the driver starts each card anew: one to three seconds each

# Whether nvidia-smi lists a GPU. One that does not answer is an error: the CPU build would be installed for good.
gpu_seen() {
    local listed code=0
    have nvidia-smi || return
    listed=$(with_timeout "$SMI_SECONDS" nvidia-smi -L 2>/dev/null) || code=$?
    [ "$code" -ne 124 ] ||
        fail 3 "nvidia-smi did not answer within $SMI_SECONDS s; turn on persistence mode: sudo nvidia-smi -pm 1" \
            "or choose the build without it: POPULORA_TORCH=cuda or cpu; for make vllm, VLLM_BUILD=cuda or cpu"
    grep -q '^GPU' <<<"$listed"
}

# Prints cpu, cuda or own. POPULORA_TORCH overrides what is seen; `own` leaves the torch that is installed alone.
torch_build() {
    case "${POPULORA_TORCH:-}" in
    cpu | cuda | own) printf '%s\n' "$POPULORA_TORCH" ;;
    "") if gpu_seen; then echo cuda; else echo cpu; fi ;;
    *) fail 2 "invalid POPULORA_TORCH=$POPULORA_TORCH: use cpu, cuda or own" ;;
    esac
}

# torch_fits BUILD: the pinned version is installed, and in that build.
torch_fits() {
    "$VENV/bin/python" - "$1" "$(torch_version)" 2>/dev/null <<'PY'
import importlib.metadata, pathlib, re, sys
build, version = sys.argv[1:]
found = importlib.metadata.distribution("torch")
text = pathlib.Path(found.locate_file("torch/version.py")).read_text()
cuda = re.search(r"^cuda\b.*=\s*['\"]", text, re.M) is not None
sys.exit(found.version.split("+")[0] != version or cuda != (build == "cuda"))
PY
}

torch_pip() { logged torch venv_pip --no-deps "$@"; }

# torch_need REQUIREMENT: sets NEED to what pip is given for it; with its hash where this platform has a lock.
torch_need() {
    local lock found=""
    NEED=("$1")
    lock=$(lock_file)
    [ -z "$lock" ] || found=$(grep -F "${1/===/==} " "$ROOT/$LOCKS/torch-$(platform_tag).txt") || true
    [ -n "$found" ] || return 0
    printf '%s\n' "$found" >"$CACHE/torch-need.txt"
    NEED=(--require-hashes -r "$CACHE/torch-need.txt")
}

# try_torch ARGUMENT...: quietly, because the next way may do.
try_torch() { torch_pip "$@" 2>/dev/null; }

# 1. A CPU build that pip already knows of (a local wheel, a company index): the tag +cpu can be nothing else, and PyPI has none.
# 2. The official CPU index; without its dependencies, which come from PyPI with everything else.
# 3. PyPI. On a Mac that is the CPU build; on Linux it brings CUDA along, so it stands last.
install_cpu_torch() {
    local version=$1
    if [ "$(uname -s)" = Linux ]; then
        torch_need "torch==$version+cpu"
        try_torch "${NEED[@]}" && return
        # shellcheck disable=SC2086
        try_torch $PATIENCE --index-url "$TORCH_CPU_INDEX" "${NEED[@]}" && return
        say "No CPU-only torch $version is available: using PyPI's build, which includes CUDA libraries"
    fi
    torch_need "torch==$version"
    torch_pip "${NEED[@]}"
}

# PyPI's Linux build is CUDA. Three equal signs: a build with a tag, such as a local +cpu wheel, does not match.
install_cuda_torch() {
    local version=$1
    torch_need "torch===$version"
    torch_pip --force-reinstall "${NEED[@]}" || return
    torch_fits cuda && return
    torch_need "torch==$version+cu130"
    # shellcheck disable=SC2086
    try_torch $PATIENCE --force-reinstall --index-url "$TORCH_CUDA_INDEX" "${NEED[@]}" && torch_fits cuda && return
    say "This machine has a GPU, but only a CPU build of torch $version is available: runs will use the CPU (see populora doctor)"
}

install_torch() {
    local build=$1 version
    version=$(torch_version)
    [ "$build" = own ] && return 0
    torch_fits "$build" && return 0
    say "Installing torch $version ($build build)"
    "install_${build}_torch" "$version"
}
