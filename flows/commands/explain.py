"""`populora explain`: what a setting means, its limits and default, and where the method uses it."""

from argparse import Namespace

from flows.commands.arguments import Add
from flows.guide.completion import complete, complete_keys


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("explain", "Explain a setting or a group of settings; without a key, list all settings.", explain)
    key = parser.add_argument("key", metavar="KEY", nargs="?", help="such as learning.learning_rate, or learning")
    complete(key, complete_keys)
    parser.add_argument("--markdown", action="store_true", help="print all settings as the page docs/settings.md")


def explain(arguments: Namespace) -> int:
    """Print the explanation."""
    from flows.config import ConfigError
    from flows.guide import explanation, settings_page

    if arguments.markdown and arguments.key:
        raise ConfigError("--markdown prints all settings: leave out KEY")
    if arguments.markdown:
        print(settings_page.page(), end="")
        return 0
    print(explanation.explain(arguments.key) if arguments.key else explanation.overview())
    return 0
