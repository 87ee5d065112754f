#!/usr/bin/env bash
# Everything that `make run` and `make test` need: .venv, a Docker daemon, the sandbox image. Quick when nothing changed.
# setup.sh [venv] [docker] [image]: only these parts; without arguments, all of them.
# Settings: PYTHON=/path/to/python, POPULORA_TORCH=cpu|cuda|own. Exits with 3 if something is missing that it may not install.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=infra/setup/lib.sh
. "$here/lib.sh"
# shellcheck source=infra/setup/torch.sh
. "$here/torch.sh"
# shellcheck source=infra/setup/venv.sh
. "$here/venv.sh"
# shellcheck source=infra/setup/docker.sh
. "$here/docker.sh"
# shellcheck source=infra/setup/image.sh
. "$here/image.sh"

# Two concurrent set-ups would overwrite each other. A Mac has no flock(1) and runs without the lock.
if have flock; then
    exec 9>"$CACHE/lock"
    flock -n 9 || { say "Waiting for another set-up of this folder to finish" && flock 9; }
fi

for part in "${@:-all}"; do
    case "$part" in
    venv) ensure_venv ;;
    docker) ensure_docker ;;
    image)
        ensure_docker
        ensure_sandbox_image
        ;;
    all)
        ensure_venv
        ensure_docker
        ensure_sandbox_image
        ;;
    *) fail 2 "unknown part $part: use venv, docker or image" ;;
    esac
done
[ -z "$SAID" ] || say "Setup is done"
