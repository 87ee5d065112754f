# The virtual environment `.venv`: Python, torch, this project and its tools. Sourced by setup.sh after lib.sh and torch.sh.
# shellcheck shell=bash

VENV_INPUTS="pyproject.toml constraints.txt infra/setup/lib.sh infra/setup/torch.sh infra/setup/venv.sh"
LOCKS="infra/setup/locks"
BUILD_TOOLS="editables|hatchling|packaging|pathspec|pluggy|setuptools|tomlkit|trove-classifiers"

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

# A folder that was moved or copied still points to its old location and cannot be used.
venv_is_whole() {
    [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import pip' 2>/dev/null &&
        head -n 3 "$VENV/bin/pip" 2>/dev/null | grep -qF "$VENV/bin/python"
}

# Prints the name of this Python and platform, as in infra/setup/locks: cp311-linux-x86_64.
platform_tag() {
    "$VENV/bin/python" -c 'import platform, sys
libc = "" if sys.platform != "linux" or platform.libc_ver()[0] == "glibc" else "-musl"
print("cp%d%d-%s%s-%s" % (*sys.version_info[:2], sys.platform, libc, platform.machine()))'
}

# Prints the lock of this platform; nothing where there is none.
lock_file() {
    local lock
    lock="$ROOT/$LOCKS/$(platform_tag).txt"
    [ ! -f "$lock" ] || printf '%s\n' "$lock"
}

# What the lock names, and only if its bytes have the sha256 that the lock says; then this project itself, with the build tools of
# the lock. Without a lock: the versions of constraints.txt, as the index gives them.
install_packages() {
    local lock
    lock=$(lock_file)
    if [ -z "$lock" ]; then
        say "No lock for $(platform_tag): installing the versions in constraints.txt, without hashes"
        logged pip venv_pip -c "$ROOT/constraints.txt" -e "${ROOT}[dev]"
        return
    fi
    grep -E "^($BUILD_TOOLS)==" "$lock" >"$CACHE/tools-need.txt" # first: what has no wheel is built with these, and no others
    logged tools venv_pip --no-deps --only-binary :all: --require-hashes -r "$CACHE/tools-need.txt" &&
        logged pip venv_pip --no-deps --no-build-isolation --require-hashes -r "$lock" &&
        logged project venv_pip --no-deps --no-build-isolation -e "$ROOT" || return
    "$VENV/bin/python" -m pip check --disable-pip-version-check >"$CACHE/check.log" 2>&1 && return
    say "Installing what the lock does not contain, such as CUDA libraries, in the versions of constraints.txt, without hashes"
    logged pip venv_pip -c "$ROOT/constraints.txt" -e "${ROOT}[dev]"
}

# check_platform SYSTEM MACHINE: torch publishes nothing for a Mac with an Intel processor.
check_platform() {
    [ "$1-$2" != Darwin-x86_64 ] ||
        fail 3 "torch has no packages for macOS on Intel: use a Mac with Apple silicon (outside Rosetta), or Linux"
}

ensure_venv() {
    local build python want inputs
    build=$(torch_build)
    [ "$build" = own ] || check_platform "$(uname -s)" "$(uname -m)"
    # shellcheck disable=SC2046,SC2086  # lists of names without spaces
    inputs=$(digest $VENV_INPUTS $(cd "$ROOT" && LC_ALL=C ls "$LOCKS"/*.txt))
    want="$inputs $build $VENV"
    if stamp_is venv "$want" && venv_is_whole && [ -x "$VENV/bin/populora" ]; then
        return 0
    fi
    if ! venv_is_whole; then
        python=$(choose_python)
        say "Creating .venv with $("$python" --version)"
        logged venv "$python" -m venv --clear "$VENV" || fail 1 "could not create the virtual environment"
    fi
    install_torch "$build" || fail 1 "could not install torch"
    say "Installing the Python packages into .venv (minutes; log: .cache/setup/pip.log)"
    install_packages || fail 1 "could not install the Python packages" \
        "if a hash does not match and you trust the index: remove the platform's file from $LOCKS"
    stamp_set venv "$want"
}
