#!/usr/bin/env bash
# Writes the lock of this Python and platform, infra/setup/locks/: every package that `make setup` installs, with its sha256. After a
# change of pyproject.toml or constraints.txt, in an environment that make setup made. The index is asked for hashes of what pip
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
# report NAME ARGUMENT...: what pip would install, as JSON.
report() {
    local name=$1
    shift
    logged "lock-$name" venv_pip --dry-run --ignore-installed --report "$CACHE/lock-$name.json" -c "$ROOT/constraints.txt" "$@"
}

# write_lock FILE NAME...: the requirements of these reports with their hashes, sorted; torch and this project left out of the first.
write_lock() {
    local out=$1
    shift
    (cd "$CACHE" && python3 - "$@" <<'PY'
import json, re, sys
lines = set()
for name in sys.argv[1:]:
    with open(f"lock-{name}.json") as file:
        for one in json.load(file)["install"]:
            package, version = one["metadata"]["name"], one["metadata"]["version"]
            package = re.sub(r"[-_.]+", "-", package).lower()
            if "archive_info" in one["download_info"] and (package == "torch") == name.startswith("torch"):
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
say "Wrote $LOCKS/$tag.txt and $LOCKS/torch-$tag.txt"
