"""`populora init`: write a run configuration from five answers."""

import os
import sys
from argparse import Namespace
from pathlib import Path

from flows.commands.arguments import Add, default_store, store_option
from flows.config import ConfigError
from flows.program import program

NAMES = ("model", "hardware", "population", "budget", "store")


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("init", "Write a commented run configuration; asks what the options leave open.", init)
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", default=Path("my-run.toml"), help="default: my-run.toml")
    parser.add_argument("--model", help="folder, or name on the Hugging Face hub (default: the one for the hardware)")
    names = "quickstart, smoke, laptop, pair, one-gpu, paper or paper-8gpu"
    hardware = f"{names}: the shipped configuration to start from (default: by this machine)"
    parser.add_argument("--hardware", metavar="NAME", help=hardware)
    parser.add_argument("--population", metavar="T+S", help="teachers+students, such as 4+4, or single")
    parser.add_argument("--budget", metavar="N", help="generations, or hours such as 8h by the estimate of run --dry-run")
    parser.add_argument("--store", help=f"where the run will be stored (default: {default_store()})")


def init(arguments: Namespace) -> int:
    """Write the file and print the commands that check and start the run. An existing file stays as it is."""
    from flows.commands.doctor import gpus
    from flows.guide.new_config import answered, changes, fitting_hardware, questions, text

    file = _new(arguments.file)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    asked = questions(fitting_hardware(gpus(), memory), default_store())
    given = {name: getattr(arguments, name) for name in NAMES}
    answers = answered(asked, given, _ask if sys.stdin.isatty() else None)
    command = (program(), "run", "-c", str(file))
    store = store_option(answers["store"])
    _write(file, text(answers, (*command, *store)))
    changed = ", ".join(changes(answers)) or "nothing"
    print(f"wrote      {file}: infra/runs/{answers['hardware']}.toml, changed: {changed}")
    if arguments.hardware is None and not sys.stdin.isatty():
        print(f"hardware   {answers['hardware']}, chosen by what this machine has; --hardware NAME chooses another")
    print(f"check      {program('run', '-c', str(file), '--dry-run')}\nstart      {program(*command[1:], *store)}")
    return 0


def _ask(prompt: str, said: str) -> str:
    """Ask on the terminal; `said` is why the last answer could not be used."""
    if said:
        print(f"  {said}", file=sys.stderr)
    try:
        return input(prompt)
    except EOFError:
        raise ConfigError(f"init: no answer; give the answers as options, see {program('init', '--help')}") from None


def _new(file: Path) -> Path:
    """Return the file. Raises ConfigError or StoreRefused if it exists, or `populora run -c` would not take its name."""
    from flows.storage import check_run_id

    if file.suffix != ".toml":
        raise ConfigError(f"{file}: the name of a configuration ends in .toml")
    check_run_id(file.stem)
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} exists and stays as it is; give another name")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}")
    return file


def _write(file: Path, content: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(content)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
