#!/usr/bin/env bash
# compose.sh up|down|logs|link|populora [ARGUMENT...]: the stack of infra/compose.yaml. `up` makes passwords once, builds the images
# that are missing or older than their sources, starts everything and waits until it is healthy; `down` stops it, with --volumes the
# data and passwords go too; `link` prints an address that opens the UI once without its password; `populora` is that command inside
# the worker. Settings: .cache/compose/env, made on the first call.
# COMPOSE_PROJECT_NAME and POPULORA_COMPOSE_SETTINGS create a second stack next to the first.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=infra/setup/lib.sh
. "$here/lib.sh"
# shellcheck source=infra/setup/docker.sh
. "$here/docker.sh"

SETTINGS=${POPULORA_COMPOSE_SETTINGS:-$ROOT/.cache/compose/env}
PROJECT=${COMPOSE_PROJECT_NAME:-populora}
WAIT_SECONDS=300

compose() {
    local project=(--project-name "$PROJECT" --env-file "$SETTINGS" -f "$ROOT/infra/compose.yaml")
    if docker compose version >/dev/null 2>&1; then
        docker compose "${project[@]}" "$@"
    elif have docker-compose; then
        docker-compose "${project[@]}" "$@"
    elif is_debian && is_root; then
        apt_install docker-compose >&2 && docker-compose "${project[@]}" "$@"
    else
        fail 3 "neither docker compose nor docker-compose is installed; on Debian: sudo apt-get install docker-compose"
    fi
}

secret() { od -An -N18 -tx1 /dev/urandom | tr -d ' \n'; }

# Write missing settings, so that an older stack's file gets the new ones.
ensure_settings() {
    local setting
    mkdir -p "$(dirname "$SETTINGS")"
    (
        umask 077
        touch "$SETTINGS"
        for setting in POSTGRES_PASSWORD="$(secret)" PREFECT_AUTH="admin:$(secret)" S3_ACCESS_KEY=populora S3_SECRET_KEY="$(secret)" \
            S3_READ_ACCESS_KEY=populora-reader S3_READ_SECRET_KEY="$(secret)" DOCKER_GROUP="$(docker_group)" \
            POPULORA_NODE="$(uname -n)"; do
            grep -q "^${setting%%=*}=" "$SETTINGS" || printf '%s\n' "$setting" >>"$SETTINGS"
        done
    )
}

# The value of a setting: from the environment, else from the file.
setting() {
    local value=${!1:-}
    [ -n "$value" ] || value=$(sed -n "s/^$1=//p" "$SETTINGS" 2>/dev/null | tail -n 1)
    printf '%s' "$value"
}

docker_socket() {
    local socket
    socket=$(setting DOCKER_SOCKET)
    printf '%s' "${socket:-/var/run/docker.sock}"
}

docker_group() { stat -c %g "$(docker_socket)" 2>/dev/null || echo 0; }

# Whoever has the UI's password can run code in the worker, and the worker may talk to this daemon: with an ordinary one that is root
# on this machine. Only a rootless daemon gives no more than its own user; a remapped one can be told to start as root.
check_daemon() {
    local socket way="or set POPULORA_TRUST_UI_WITH_HOST_ROOT=1 (docs/security.md)"
    socket=$(docker_socket)
    [ "$(setting POPULORA_TRUST_UI_WITH_HOST_ROOT)" != 1 ] || return 0
    with_timeout 20 docker --host "unix://$socket" info --format '{{.SecurityOptions}}' 2>/dev/null | grep -q 'name=rootless' ||
        fail 2 "with $socket, anyone with the UI's password is root on this machine: set DOCKER_SOCKET to a rootless daemon's, $way"
}

ensure_images() {
    local names="sandbox worker"
    SANDBOX_IMAGE=$(setting POPULORA_SANDBOX_IMAGE) # workers get it from the file, too: what is built is what they start
    SANDBOX_IMAGE=${SANDBOX_IMAGE:-populora-sandbox:local}
    case "$SANDBOX_IMAGE" in *@*) fail 2 "POPULORA_SANDBOX_IMAGE=$SANDBOX_IMAGE: give a tag, not a digest; \`make up\` gives it to the image that it builds" ;; esac
    export POPULORA_SANDBOX_IMAGE=$SANDBOX_IMAGE
    [ -n "$(setting POSTGRES_IMAGE)" ] || names="$names postgres"
    [ -n "$(setting S3_IMAGE)" ] || names="$names s3" # compose starts the service with another S3_ENDPOINT, too
    case ",$(setting COMPOSE_PROFILES)," in *,gpu,*) [ -n "$(setting GPU_IMAGE)" ] || names="$names gpu" ;; esac
    # shellcheck disable=SC2086  # a list of names without spaces
    bash "$here/images.sh" $names
    ensure_sandbox_at_workers
}

# docker of the daemon that workers ask: the usual one, unless DOCKER_SOCKET names another.
workers_docker() {
    local socket
    socket=$(setting DOCKER_SOCKET)
    if [ -n "$socket" ]; then docker --host "unix://$socket" "$@"; else docker "$@"; fi
}

# Images are built on the usual daemon; workers start sandboxes on theirs.
ensure_sandbox_at_workers() {
    local built
    [ -n "$(setting DOCKER_SOCKET)" ] || return 0
    built=$(docker image inspect --format '{{.Id}}' "$SANDBOX_IMAGE")
    [ "$(workers_docker image inspect --format '{{.Id}}' "$SANDBOX_IMAGE" 2>/dev/null || true)" != "$built" ] || return 0
    docker save "$SANDBOX_IMAGE" | workers_docker load >/dev/null || fail 3 "$SANDBOX_IMAGE could not be loaded at $(docker_socket)"
}

# Sandboxes are started by workers, not by compose: those of a worker that had to be killed are removed by its process namespace.
worker_namespaces() {
    local id
    for id in $(compose ps -q worker gpu-worker 2>/dev/null); do
        docker exec "$id" readlink /proc/self/ns/pid 2>/dev/null || true
    done
}

sandboxes_of() {
    local namespace
    for namespace in "$@"; do
        workers_docker ps --all --no-trunc --filter label=populora.sandbox --format '{{.ID}} {{.Label "populora.sandbox.host"}}' |
            awk -v wanted="$namespace" 'index($0, wanted) { print $1 }'
    done
}

down() {
    local namespaces left
    namespaces=$(worker_namespaces)
    compose --profile gpu down --remove-orphans "$@"
    # shellcheck disable=SC2086
    left=$(sandboxes_of $namespaces)
    # shellcheck disable=SC2086
    [ -z "$left" ] || workers_docker rm --force $left >/dev/null
    case " $* " in *" --volumes "* | *" -v "*) rm -f "$SETTINGS" ;; esac
}

# Print the services that are not healthy yet.
unwell() {
    local id
    for id in $(compose ps -q 2>/dev/null); do
        docker inspect --format \
            '{{index .Config.Labels "com.docker.compose.service"}} {{.State.Status}} {{.State.ExitCode}} {{if .State.Health}}{{.State.Health.Status}}{{else}}none{{end}}' "$id"
    done | awk '$1 == "setup" { if ($2 != "exited" || $3 != 0) print $1; next } $2 != "running" || ($4 != "healthy" && $4 != "none") { print $1 }'
}

# up [--profile NAME] [OPTION...]: a profile is an option of compose itself, not of its `up`.
up() {
    local options=()
    while [ $# -gt 0 ]; do
        case "$1" in
        --profile)
            [ -n "${2:-}" ] || fail 2 "--profile needs a name: --profile gpu"
            export COMPOSE_PROFILES="${COMPOSE_PROFILES:+$COMPOSE_PROFILES,}$2"
            shift
            ;;
        --profile=?*) export COMPOSE_PROFILES="${COMPOSE_PROFILES:+$COMPOSE_PROFILES,}${1#*=}" ;;
        *) options+=("$1") ;;
        esac
        shift
    done
    ensure_docker
    ensure_settings
    check_daemon
    ensure_images
    compose up --detach --remove-orphans ${options[@]+"${options[@]}"} # bash 3.2: an empty list counts as unset
    local second
    for second in $(seq 1 "$WAIT_SECONDS"); do
        [ -n "$(unwell)" ] || break
        sleep 1
    done
    [ -z "$(unwell)" ] || fail 1 "not healthy after $second seconds: $(unwell | tr '\n' ' '); see: make logs"
    say "Prefect UI  $(link)"
    say "            (valid once, within an hour; for another link: make link)"
    say "browser     http://127.0.0.1:$(setting_or BROWSER_PORT 8750)"
}

setting_or() {
    local value
    value=$(setting "$1")
    printf '%s' "${value:-$2}"
}

link() {
    local id
    id=$(docker ps -q --filter "label=com.docker.compose.project=$PROJECT" --filter label=com.docker.compose.service=prefect | head -n 1)
    [ -n "$id" ] || fail 3 "the server of the stack $PROJECT is not running; start it: make up"
    docker exec "$id" python -m flows.servers.login_link "http://127.0.0.1:$(setting_or PREFECT_PORT 4200)"
}

# Use any running worker: compose's own exec requires the first one, which may have been lost.
in_worker() {
    local id
    id=$(docker ps -q --filter "label=com.docker.compose.project=$PROJECT" --filter label=com.docker.compose.service=worker | head -n 1)
    [ -n "$id" ] || fail 3 "no worker of the stack $PROJECT is running; start it: make up"
    docker exec "$id" populora "$@"
}

case "${1:-}" in
up) shift && up "$@" ;;
down) shift && ensure_settings && down "$@" ;;
logs) shift && ensure_settings && compose logs "$@" ;;
link) ensure_settings && link ;;
populora) shift && in_worker "$@" ;;
*) fail 2 "compose.sh up|down|logs|link|populora" ;;
esac
