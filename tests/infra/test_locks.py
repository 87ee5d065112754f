"""The locks of `make setup`: exact versions with hashes, in step with constraints.txt and pyproject.toml."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "infra" / "setup" / "locks"
LOCKS = sorted(FOLDER.glob("cp*.txt"))
LINE = re.compile(r"([a-z0-9-]+)==([A-Za-z0-9.+]+) --hash=sha256:[0-9a-f]{64}")


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;! ]", requirement)[0]).lower()


def versions(path: Path) -> dict[str, str]:
    """What a lock or the constraints pin; anything else in a lock than a pin with its hash is an error."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    if path.parent == FOLDER:
        assert [line for line in lines if not LINE.fullmatch(line)] == []
    return {name_of(line): line.split()[0].partition("==")[2] for line in lines}


def test_there_is_a_lock() -> None:
    assert "cp311-linux-x86_64" in {path.stem for path in LOCKS}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_pins_what_the_constraints_pin_and_all_that_the_project_needs(path: Path) -> None:
    pinned, wanted = versions(path), versions(ROOT / "constraints.txt")
    assert {name: version for name, version in pinned.items() if wanted.get(name) != version} == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["dev"]
    needed += project["build-system"]["requires"]
    assert {name_of(one) for one in needed} - pinned.keys() == {"torch"}
    builds = versions(FOLDER / f"torch-{path.name}")
    assert builds["torch"].partition("+")[0] == wanted["torch"]


def test_what_a_lock_names_is_installed_by_its_hash() -> None:
    """Every command that installs from a lock, and the lists cut from one, demands the hashes."""
    scripts = [*sorted((ROOT / "infra" / "setup").glob("*.sh")), ROOT / "containers" / "gpu" / "Dockerfile"]
    lines = [
        line
        for script in scripts
        for line in script.read_text().splitlines()
        if re.search(r' -r "\$(lock|1|CACHE/(tools|torch)-need)', line)
    ]
    assert len(lines) >= 5
    assert [line for line in lines if "--require-hashes" not in line] == []


def test_images_of_a_registry_are_named_by_their_digest() -> None:
    digest = re.compile(r"sha256:[0-9a-f]{64}\b")
    pulled = (ROOT / "infra" / "setup" / "image.sh").read_text()
    assert digest.search(next(line for line in pulled.splitlines() if line.startswith("PUBLIC_DIGEST=")))
    assert re.search(r"docker pull .*@", pulled) or "@$PUBLIC_DIGEST" in pulled
    base = next(line for line in (ROOT / "containers" / "gpu" / "Dockerfile").read_text().splitlines() if "BASE=" in line)
    assert digest.search(base)


def test_the_scripts_are_sound_and_name_no_index_of_their_own() -> None:
    for script in sorted((ROOT / "infra" / "setup").glob("*.sh")):
        assert subprocess.run(["bash", "-n", script]).returncode == 0
    for path in FOLDER.glob("*.txt"):
        assert "://" not in path.read_text()
