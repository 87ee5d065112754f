# The virtual environment `.venv`: Python, torch, this project and its tools. Sourced by setup.sh after lib.sh and torch.sh.
# shellcheck shell=bash

VENV_INPUTS="pyproject.toml constraints.txt infra/setup/lib.sh infra/setup/torch.sh infra/setup/venv.sh"

python_fits() {
    have "$1" && "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 python3.14; do
        if python_fits "$name"; then
            printf '%s\n' "$name"
            return 0
        fi
    done
    return 1
}

install_python() {
    # Debian splits venv off; Ubuntu 22.04 has 3.10 as python3 and 3.11 beside it.
    if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        apt_install python3 python3-venv
    elif apt-cache show python3.11-venv >/dev/null 2>&1; then
        apt_install python3.11 python3.11-venv
    else
        apt_install python3 python3-venv
    fi
}

# Prints the Python to use; PYTHON=/path/to/python chooses it.
choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        python_fits "$PYTHON" || fail 2 "PYTHON=$PYTHON is not a Python 3.11 to 3.14 with venv"
        printf '%s\n' "$PYTHON"
        return
    fi
    find_python && return
    if is_debian && is_root; then
        install_python >&2 || fail 1 "could not install Python"
        find_python && return
        fail 3 "no Python 3.11 to 3.14 with venv, and this release's packages have none: install one and set PYTHON=/path/to/it"
    elif is_debian; then
        fail 3 "no Python 3.11 to 3.14 with venv; run: sudo apt-get install python3-venv"
    fi
    fail 3 "no Python 3.11 to 3.14 with venv; install one (on a Mac: brew install python@3.13) and run this again"
}

# --no-compile: compiling all of it ahead takes longer than the rest together, and Python compiles what it imports.
venv_pip() {
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile --progress-bar off "$@"
}

# A folder that was moved or copied still points at its old place and cannot be used.
venv_is_whole() {
    [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import pip' 2>/dev/null &&
        head -n 3 "$VENV/bin/pip" 2>/dev/null | grep -qF "$VENV/bin/python"
}

ensure_venv() {
    local build python want inputs
    build=$(torch_build)
    # shellcheck disable=SC2086  # a list of names without spaces
    inputs=$(digest $VENV_INPUTS)
    want="$inputs $build $VENV"
    if stamp_is venv "$want" && venv_is_whole && [ -x "$VENV/bin/populora" ]; then
        return 0
    fi
    if ! venv_is_whole; then
        python=$(choose_python)
        say "Making .venv with $("$python" --version)"
        logged venv "$python" -m venv --clear "$VENV" || fail 1 "could not make the virtual environment"
    fi
    install_torch "$build" || fail 1 "could not install torch"
    say "Installing the Python packages of constraints.txt into .venv (a minute or two)"
    logged pip venv_pip -c "$ROOT/constraints.txt" -e "${ROOT}[dev]" || fail 1 "could not install the Python packages"
    stamp_set venv "$want"
}
