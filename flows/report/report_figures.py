"""The figures of a run, by name: what each is drawn from, and its conversion to a picture on a page. Loads matplotlib."""

from collections.abc import Callable, Mapping

from flows.report.report_data import RunData, clock_table
from flows.report.report_page import Html, escape
from stages.figures import difficulty as difficulty_figures
from stages.figures import diversity as diversity_figures
from stages.figures import figures
from stages.figures import population as population_figures
from stages.figures import tasks as task_figures
from stages.figures.plates import Plate, svg

Draw = Callable[[RunData], Plate]

LEARNING: Mapping[str, Draw] = {
    "solve-rate": lambda run: figures.solve_rate(run.tables["grades"]),
    "benchmark": lambda run: figures.benchmark(run.tables["scores"]),
    "difficulty": lambda run: difficulty_figures.difficulty(run.tables["scores"]),
    "rewards": lambda run: figures.rewards(run.tables["samples"]),
    "reward-distribution": lambda run: figures.reward_distribution(run.tables["samples"]),
    "zero-variance": lambda run: figures.zero_variance(run.tables["samples"]),
    "exploration": lambda run: figures.exploration(run.tables["completions"]),
    "lengths": lambda run: figures.lengths(run.tables["completions"]),
    "drift": lambda run: task_figures.drift(run.tables["metrics"]),
}
POPULATION: Mapping[str, Draw] = {
    "ratings": lambda run: population_figures.rating_curves(run.tables["ratings"]),
    "pairs": lambda run: population_figures.heat_map(run.tables["matches"], run.tables["grades"]),
    "family": lambda run: population_figures.family_tree(run.tables["ratings"], run.tables["offspring"]),
    "recovery": lambda run: population_figures.recovery(run.tables["samples"], run.tables["offspring"]),
    "calibration": lambda run: population_figures.calibration(run.tables["ratings"]),
    "differences": lambda run: diversity_figures.differences(run.tables["metrics"]),
}
TASKS: Mapping[str, Draw] = {
    "valid-share": lambda run: task_figures.valid_share(run.tables["tasks"]),
    "reasons": lambda run: task_figures.reasons(run.tables["tasks"]),
    "complexity": lambda run: task_figures.program_complexity(run.tables["tasks"]),
    "coverage": lambda run: task_figures.coverage(run.tables["tasks"]),
    "novelty": lambda run: diversity_figures.novelty(run.tables["metrics"]),
}
MACHINE: Mapping[str, Draw] = {"seconds": lambda run: task_figures.seconds(clock_table(run.clock))}
GROUPS: Mapping[str, Mapping[str, Draw]] = {"Learning": LEARNING, "Population": POPULATION, "Tasks": TASKS, "Time": MACHINE}
EVERY: Mapping[str, Draw] = {name: draw for group in GROUPS.values() for name, draw in group.items()}


def picture(plate: Plate) -> Html:
    """Return the figure as SVG for a page, with colours that follow the page's theme; empty if there is nothing to draw yet."""
    if plate.figure is None:
        return Html("")
    return Html(
        svg(plate.figure, plate.name, themed=True).replace("<svg ", f'<svg role="img" aria-label="{escape(plate.question)}" ', 1)
    )
