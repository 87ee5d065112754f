"""Which base image the set-up builds on: the one that it would pull, or one of ours, and no other of the public name."""

import subprocess
from pathlib import Path

import pytest

from flows.config import PROJECT

DIGEST = next(
    line.partition('"')[2].strip('"')
    for line in (PROJECT / "infra" / "setup" / "image.sh").read_text().splitlines()
    if line.startswith("PUBLIC_DIGEST=")
)
PUBLIC, OURS = "python:3.11-slim-bookworm", "populora-base:local"
DOCKER = """
docker() {
    printf '%s\n' "docker $*" >>"$CACHE/asked"
    case "$*" in
    *RepoDigests*) [ -n "$DIGESTS" ] || return 1; printf '%b\n' "$DIGESTS" ;;
    "image inspect"*populora-base*) [ -n "$OURS" ] || return 1; echo sha256:0123 ;;
    "image inspect"*) [ -n "$DIGESTS" ] || return 1; echo sha256:4567 ;;
    esac
}
with_timeout() { shift; "$@"; }
"""


@pytest.mark.parametrize(
    ("digests", "ours", "base", "pulls"),
    [
        (f"python@sha256:{'0' * 64}\\npython@{DIGEST}", "", PUBLIC, False),
        (f"python@sha256:{'0' * 64}", "", PUBLIC, True),
        (f"python@sha256:{'0' * 64}", "there", OURS, False),
        ("", "there", OURS, False),
        ("", "", PUBLIC, True),
    ],
)
def test_the_public_name_counts_only_with_its_digest(digests: str, ours: str, base: str, pulls: bool, tmp_path: Path) -> None:
    script = f"""
        set -euo pipefail
        . {PROJECT}/infra/setup/lib.sh; . {PROJECT}/infra/setup/image.sh
        CACHE='{tmp_path}' DIGESTS='{digests}' OURS='{ours}'
        {DOCKER}
        ensure_base
        echo "base $BASE"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"base {base}"
    assert (f"docker pull -q {PUBLIC}@{DIGEST}" in (tmp_path / "asked").read_text()) == pulls
