"""The figures of a run, by name: what each is drawn from, and how one becomes a picture for a page. Loads matplotlib."""

from collections.abc import Callable, Mapping

from flows.report_data import Gathered, clock_table
from flows.report_page import Html, escape
from stages import figure_diversity, figure_population, figure_tasks, figures
from stages.core.plates import Plate, svg

Draw = Callable[[Gathered], Plate]

LEARNING: Mapping[str, Draw] = {
    "solve-rate": lambda run: figures.solve_rate(run.tables["grades"]),
    "benchmark": lambda run: figures.benchmark(run.tables["scores"]),
    "rewards": lambda run: figures.rewards(run.tables["samples"]),
    "reward-distribution": lambda run: figures.reward_distribution(run.tables["samples"]),
    "zero-variance": lambda run: figures.zero_variance(run.tables["samples"]),
    "exploration": lambda run: figures.exploration(run.tables["completions"]),
    "lengths": lambda run: figures.lengths(run.tables["completions"]),
    "drift": lambda run: figure_tasks.drift(run.tables["metrics"]),
}
POPULATION: Mapping[str, Draw] = {
    "ratings": lambda run: figure_population.rating_curves(run.tables["ratings"]),
    "pairs": lambda run: figure_population.heat_map(run.tables["matches"], run.tables["grades"]),
    "family": lambda run: figure_population.family_tree(run.tables["ratings"], run.tables["offspring"]),
    "recovery": lambda run: figure_population.recovery(run.tables["samples"], run.tables["offspring"]),
    "calibration": lambda run: figure_population.calibration(run.tables["ratings"]),
    "differences": lambda run: figure_diversity.differences(run.tables["metrics"]),
}
TASKS: Mapping[str, Draw] = {
    "valid-share": lambda run: figure_tasks.valid_share(run.tables["tasks"]),
    "reasons": lambda run: figure_tasks.reasons(run.tables["tasks"]),
    "complexity": lambda run: figure_tasks.program_complexity(run.tables["tasks"]),
    "coverage": lambda run: figure_tasks.coverage(run.tables["tasks"]),
    "novelty": lambda run: figure_diversity.novelty(run.tables["metrics"]),
}
MACHINE: Mapping[str, Draw] = {"seconds": lambda run: figure_tasks.seconds(clock_table(run.clock))}
GROUPS: Mapping[str, Mapping[str, Draw]] = {"Learning": LEARNING, "Population": POPULATION, "Tasks": TASKS, "Time": MACHINE}
EVERY: Mapping[str, Draw] = {name: draw for group in GROUPS.values() for name, draw in group.items()}


def picture(plate: Plate) -> Html:
    """The figure as SVG in a page, its colours following the page's theme; empty where there is nothing to draw yet."""
    if plate.figure is None:
        return Html("")
    return Html(
        svg(plate.figure, plate.name, themed=True).replace("<svg ", f'<svg role="img" aria-label="{escape(plate.question)}" ', 1)
    )
