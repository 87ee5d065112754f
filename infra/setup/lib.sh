# Shared by the set-up scripts; sourced, never run. Written for bash 3.2, which is what a Mac has.
# shellcheck shell=bash disable=SC2034

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE="$ROOT/.cache/setup"
VENV="$ROOT/.venv"
SANDBOX_IMAGE="${POPULORA_SANDBOX_IMAGE:-populora-sandbox:local}"
BASE_IMAGE="populora-base:local"
mkdir -p "$CACHE"

SAID=
say() {
    SAID=yes
    printf '== %s\n' "$*"
}

# fail CODE LINE...: 1 the work failed, 2 invalid usage, 3 something is missing on this machine that we may not install.
fail() {
    local code=$1
    shift
    printf 'setup: %s\n' "$@" >&2
    exit "$code"
}

have() { command -v "$1" >/dev/null 2>&1; }

is_root() { [ "$(id -u)" -eq 0 ]; }

is_debian() { have apt-get && have dpkg; }

sha256() {
    if have sha256sum; then sha256sum; else shasum -a 256; fi | cut -d' ' -f1
}

# digest FILE...: of names (relative to the project) and contents.
digest() {
    local file
    for file in "$@"; do
        printf '%s\n' "$file"
        cat "$ROOT/$file"
    done | sha256
}

# A stamp says which inputs a finished step was made from; the step is skipped while they are the same.
stamp_is() { [ -f "$CACHE/$1.stamp" ] && [ "$(cat "$CACHE/$1.stamp")" = "$2" ]; }

stamp_set() { printf '%s\n' "$2" >"$CACHE/$1.stamp"; }

# with_timeout SECONDS COMMAND...: a Mac has no timeout(1), there the command's own limits must do.
with_timeout() {
    local seconds=$1
    shift
    if have timeout; then timeout "$seconds" "$@"; else "$@"; fi
}

# progress LOG: every PROGRESS_SECONDS, how long a command has been running, and the newest line of its log that is no
# warning (pip repeats one for each folder of packages that it does not find). In the background, where
# Ctrl-C does not reach it: it also ends with the script.
PROGRESS_SECONDS=20
progress() {
    local began=$SECONDS next=$PROGRESS_SECONDS
    while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        [ $((SECONDS - began)) -ge "$next" ] || continue
        next=$((SECONDS - began + PROGRESS_SECONDS))
        printf '   %s s: %s\n' "$((SECONDS - began))" "$({ grep -av '^WARNING' "$1" || true; } | tail -n 1 | cut -c 1-100)"
    done
}

# logged NAME COMMAND...: output goes to a log; only its progress and the end of a failure are shown. Descriptor 9 is the set-up's
# lock: a daemon that a package starts must not hold it for good.
logged() {
    local log="$CACHE/$1.log" code=0 watcher
    shift
    : >"$log"
    progress "$log" 9>&- &
    watcher=$!
    "$@" >"$log" 2>&1 </dev/null 9>&- || code=$?
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    if [ "$code" -ne 0 ]; then
        tail -n 30 "$log" >&2
        printf 'setup: command failed: %s\nsetup: full log: %s\n' "$*" "$log" >&2
        return 1
    fi
}

# apt_install PACKAGE...: as root only; says what it installs.
apt_install() {
    say "Installing with apt-get: $*"
    # A stale or partly unreachable list is no reason to stop: the install itself decides.
    logged apt-update apt-get -q -o DPkg::Lock::Timeout=300 update || say "apt-get update failed; continuing with the existing lists"
    logged apt-install env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"
}
