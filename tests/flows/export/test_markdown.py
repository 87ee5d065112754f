"""Texts of others in Markdown."""

from flows.export.markdown import block, code, escaped, table
from tests.support.scored_run import HOSTILE


def test_names_of_others_are_shown_and_never_obeyed() -> None:
    for text in (escaped(HOSTILE), code(HOSTILE), table(["a"], [[code(HOSTILE)]]).splitlines()[2]):
        assert "\n" not in text and "<script>" not in text and "\\<script\\>" in text and "\\]\\(javascript" in text
        assert "\u202e" not in text and "\\|" in text and "\\`x\\`" in text
    assert code("s0-g0001") == "`s0-g0001`" and code("") == "–" and code("a`b") == "a\\`b"
    assert all(line.startswith("    ") for line in block(f"```\n{HOSTILE}").split("\n"))
