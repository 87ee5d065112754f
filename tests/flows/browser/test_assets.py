"""What pages may load: scripts of this server on two kinds of page, none on others; other people's files as published."""

import hashlib
import re
from importlib.resources import files

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.browser.assets import FIGURE_SCRIPTS, LIVE_SCRIPTS, POLICY, SCRIPTED_POLICY, SCRIPTS
from flows.run.lease import hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support import example_run

VENDORED = {
    "vendor/uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "vendor/uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "vendor/uplot/LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""Of the package uplot 1.6.32, as npm delivers it."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    with hold(FileStore(root), "whole") as epoch:
        example_run.build(Run(FileStore(root), "whole", epoch), 2)
    with TestClient(make_app(str(root)), base_url="http://127.0.0.1") as found:
        yield found


def static(name):
    return files("flows.browser").joinpath("static", *name.split("/")).read_bytes()


@pytest.mark.parametrize(
    ("address", "scripts"),
    [
        ("/", ()),
        ("/runs/whole", ()),
        ("/runs/whole/generations/0", ()),
        ("/runs/whole/adapters", ()),
        ("/runs/whole/adapters/t0-g0000", ()),
        ("/runs/whole/tasks/g0000-m00-p000", ()),
        ("/runs/whole/tables/generation=0000/tasks.parquet", ()),
        ("/runs/whole/files/generation=0000/tasks.parquet", ()),
        ("/runs/whole/figures/solve-rate.json", ()),
        ("/runs/whole/figures/solve-rate.png", ()),
        ("/runs/none", ()),
        ("/static/live.js", ()),
        ("/runs/whole/live", LIVE_SCRIPTS),
        ("/runs/whole/figures", ()),
        ("/runs/whole/figures/solve-rate", FIGURE_SCRIPTS),
    ],
)
def test_only_pages_that_need_scripts_may_run_them(pages, address, scripts):
    answer = pages.get(address)
    assert answer.headers["content-security-policy"] == (SCRIPTED_POLICY if scripts else POLICY)
    if "text/html" in answer.headers["content-type"]:
        assert re.findall(r"<script[^>]*>", answer.text) == [f'<script src="/static/{name}" defer>' for name in scripts]
        assert not re.search(r"<style|\son\w+=|javascript:", answer.text)


def test_the_policies():
    assert POLICY.startswith("default-src 'none'; ") and "script" not in POLICY and "http" not in POLICY and "*" not in POLICY
    added = SCRIPTED_POLICY.removeprefix(POLICY)
    assert added == "; script-src 'self'; connect-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"


def test_scripts_are_served_as_they_lie_there_and_nothing_else_is(pages):
    for name in SCRIPTS:
        answer = pages.get(f"/static/{name}")
        assert answer.content == static(name) and answer.headers["content-type"].startswith("text/javascript")
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "uplot" in pages.get("/static/browser.css").text
    assert pages.get("/static/vendor/uplot/LICENSE").status_code == 404


def test_our_scripts_write_text_and_never_markup():
    for name in ("live.js", "figures.js"):
        text = static(name).decode()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "http:", "https:"):
            assert word not in text, (name, word)


@pytest.mark.parametrize("name", VENDORED)
def test_vendored_files_are_the_published_ones(name):
    assert hashlib.sha256(static(name)).hexdigest() == VENDORED[name]


def test_the_vendored_library_asks_no_address_and_states_its_licence():
    text = static("vendor/uplot/uPlot.iife.min.js").decode()
    assert "1.6.32" in text.partition("*/")[0] and "innerHTML" not in text and "fetch(" not in text
    assert b"MIT License" in static("vendor/uplot/LICENSE")
