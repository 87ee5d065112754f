"""All settings as one page of the documentation, docs/settings.md, for readers without an installation."""

from collections.abc import Iterator

from flows.guide.setting_list import Setting, as_toml, groups, settings

HEAD = """\
# Settings

Every setting of a run: what it means, what it may be, and its default. `populora explain --markdown` writes this page. Set them
in a [configuration file](../README.md#configurations) or with `--set key=value`; the configurations in `infra/runs/` change some
of them. `populora explain KEY` also says what each configuration sets, why values differ from the paper's, and where the code
uses it. A setting that names a function also accepts one [of your own](extending.md).
"""


def page() -> str:
    """Return the page as Markdown: a table for each group, in the order of a configuration file."""
    alone = [setting for key, setting in settings().items() if "." not in key]
    parts = [HEAD, *_section("The run", "", alone)]
    for group, about in groups().items():
        parts += _section(f"`[{group}]`", about, [one for key, one in settings().items() if key.startswith(f"{group}.")])
    return "\n".join(parts)


def _section(title: str, about: str, own: list[Setting]) -> Iterator[str]:
    yield f"## {title}\n"
    if about:
        yield f"{about}\n"
    yield "| setting | meaning | value | default |\n|---|---|---|---|"
    yield "".join(f"| `{one.key}` | {_cell(one.meaning)} | {_cell(one.kind)} | `{as_toml(one.default)}` |\n" for one in own)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
