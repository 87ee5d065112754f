"""docs/settings.md lists every setting as the code has it."""

import re

from flows.config import PROJECT, setting_keys
from flows.guide.settings_page import page

FILE = PROJECT / "docs" / "settings.md"


def test_the_page_is_the_one_that_the_settings_give() -> None:
    assert FILE.read_text(encoding="utf-8") == page(), "write it again: .venv/bin/populora explain --markdown > docs/settings.md"


def test_every_setting_has_a_row_with_its_meaning() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", page(), flags=re.MULTILINE))
    assert list(rows) == setting_keys()
    assert all(len(meaning) > 3 for meaning in rows.values())
