# A Docker daemon that answers: found, started or, as root on Debian and Ubuntu, installed. Sourced by setup.sh after lib.sh.
# shellcheck shell=bash

DOCKERD_LOG="$ROOT/.cache/dockerd.log"

docker_answers() { have docker && with_timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

docker_refuses_user() {
    local answer
    have docker || return 1
    answer=$(with_timeout 20 docker version 2>&1) || true
    case "$answer" in *"permission denied"*) ;; *) return 1 ;; esac
}

install_docker() {
    local packages="docker.io iptables ca-certificates"
    # From Debian 13 on the client is a package of its own, only recommended by docker.io.
    if apt-cache show docker-cli >/dev/null 2>&1; then packages="$packages docker-cli"; fi
    # shellcheck disable=SC2086  # a list of names without spaces
    apt_install $packages
}

wait_for_docker() {
    local second
    for second in $(seq 1 "$1"); do
        docker_answers && return 0
        # A daemon of ours that died will not come back by waiting.
        [ -z "${2:-}" ] || kill -0 "$2" 2>/dev/null || return 1
        sleep 1
    done
    say "Docker did not answer within $second seconds"
    return 1
}

# run_dockerd FLAG...: in a session of its own, holding none of our files open: not the log of make, not the set-up's lock.
run_dockerd() {
    say "Starting dockerd${*:+ $*} in the background (log: $DOCKERD_LOG)"
    setsid nohup dockerd "$@" >>"$DOCKERD_LOG" 2>&1 </dev/null 9>&- &
    wait_for_docker 60 "$!"
}

start_docker() {
    if [ -d /run/systemd/system ]; then
        say "Starting Docker: systemctl start docker"
        systemctl start docker && wait_for_docker 60
        return
    fi
    # Without systemd the package may have started it on its own.
    if pgrep -x dockerd >/dev/null 2>&1; then
        wait_for_docker 60
        return
    fi
    have dockerd || return 1
    : >"$DOCKERD_LOG"
    # The sandbox has no network at all, so where this kernel allows no packet filter, Docker can do without a bridge.
    run_dockerd || run_dockerd --iptables=false --ip6tables=false --bridge=none
}

ensure_docker() {
    docker_answers && return 0
    if [ -n "${DOCKER_HOST:-}" ]; then
        fail 3 "DOCKER_HOST=$DOCKER_HOST does not answer; start that daemon, or unset DOCKER_HOST to use the one of this machine"
    elif [ "$(uname -s)" = Darwin ]; then
        have docker || fail 3 "Docker is missing; run: brew install --cask docker && open -a Docker"
        fail 3 "Docker does not answer; run: open -a Docker"
    elif ! is_root; then
        docker_refuses_user && fail 3 "you may not use Docker; run: sudo usermod -aG docker $(id -un) and log in again"
        have dockerd && fail 3 "Docker is not running; run: sudo systemctl start docker"
        is_debian &&
            fail 3 "Docker is missing; run: sudo apt-get install docker.io && sudo usermod -aG docker $(id -un) and log in again"
        fail 3 "Docker is missing; install it as https://docs.docker.com/engine/install says"
    fi
    if ! have dockerd; then
        is_debian || fail 3 "Docker is missing; install it as https://docs.docker.com/engine/install says"
        install_docker || fail 3 "could not install Docker; run: apt-get install docker.io"
    fi
    start_docker || docker_failed
}

docker_failed() {
    [ ! -f "$DOCKERD_LOG" ] || tail -n 20 "$DOCKERD_LOG" >&2
    fail 3 "Docker was started but does not answer; see $DOCKERD_LOG or: journalctl -u docker"
}
