"""`populora report`: the run's figures as one HTML page."""

from argparse import Namespace
from pathlib import Path

from flows.commands.arguments import Add, add_store, open_run, report_path


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("report", "A self-contained HTML page with the run's figures.", report)
    parser.add_argument("--out", type=Path, help="where to write it (default: next to the run, or in this folder)")
    add_store(parser)
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also write every figure as SVG and PNG")


def report(arguments: Namespace) -> int:
    """Write the page and print its path."""
    from flows.report.report import export_figures
    from flows.report.report import report as write_report

    out = arguments.out or report_path(arguments.store, arguments.run)
    found = open_run(arguments.store, arguments.run)
    print(write_report(found, out))
    for figure in export_figures(found, arguments.figures) if arguments.figures else ():
        print(figure)
    return 0
