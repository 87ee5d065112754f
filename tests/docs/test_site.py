"""The documentation site builds without a warning, loads nothing from a network, and none of its links leads nowhere."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from flows.config import PROJECT

LINK = re.compile(r'<(?:a|img|script|link)\b[^>]*? (?:href|src)="([^"]*)"')
LOADED = re.compile(r'<(?:img|script|iframe|link|source)\b[^>]*? (?:href|src)="(?:https?:)?//|url\(["\']?(?:https?:)?//|@import')


def built(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` runs."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-a", "-b", "html"]
    return subprocess.run([*command, "-c", str(PROJECT / "docs"), str(source), str(out)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = built(PROJECT, out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_there(site):
    pages = [path.relative_to(PROJECT).with_suffix(".html") for path in (PROJECT / "docs").glob("*.md")]
    assert len(pages) > 10
    for page in [*pages, "index.html", "README.html", "source/stages/core/method/rewards.py.html"]:
        assert (site / page).is_file(), page


def test_nothing_comes_from_a_network(site):
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = LOADED.search(file.read_text(encoding="utf-8"))
        assert found is None, f"{file.relative_to(site)}: {found and found[0]}"


def test_no_link_leads_nowhere(site):
    texts = {file.resolve(): file.read_text(encoding="utf-8") for file in site.rglob("*.html")}
    names = {file: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for file, text in texts.items()}
    checked = 0
    for file, text in texts.items():
        if file.is_relative_to(site / "source") or file.name == "search.html":
            continue  # their links are the sidebar and numbers of lines
        for target in set(LINK.findall(text)):
            if target.startswith(("https://", "mailto:", "#")) and target != "#":
                assert not target.startswith("#") or unquote(target[1:]) in names[file], f"{file.name}: {target}"
                continue
            path, _, anchor = target.partition("#")
            there = (file.parent / unquote(path).partition("?")[0]).resolve() if path else file
            assert there.is_file(), f"{file.relative_to(site)}: {target}"
            assert not anchor or unquote(anchor) in names[there], f"{file.relative_to(site)}: {target}"
            checked += 1
    assert checked > 300


def test_what_does_not_exist_is_an_error(tmp_path):
    links, names = (
        "[a page](docs/nothing.md), [a heading](#nothing)",
        "`flows/nothing.py`, `flows/cli.py:nothing`, `flows/cli.py:main`",
    )
    (tmp_path / "README.md").write_text(f"# A page\n\n{links}, {names}\n")
    done = built(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    for wrong in (
        "docs/nothing.md",
        "'nothing'",
        "flows/nothing.py, which does not exist",
        "nothing, which flows/cli.py does not",
    ):
        assert wrong in done.stderr, done.stderr
    assert "names main" not in done.stderr
