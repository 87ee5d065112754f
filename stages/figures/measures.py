"""What figures over several runs show: each metric's text with its unit, the amounts on their axes, and the runs' colours."""

from collections.abc import Iterable, Sequence

from stages.core.population import GENERATOR

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#b0569a",
    "#96700a",
    "#5b5f97",
    "#44aa99",
    "#cc6677",
    "#7b7fd4",
    "#8b8f96",
    "#5aa469",
)
UNITS = {
    "generations": "generations",
    "generated_tokens": "tokens generated",
    "generated_tokens_per_adapter": "tokens generated, per adapter",
    "generated_tokens_per_student": "tokens written, per student",
    "trained_tokens": "tokens trained on",
    "trained_tokens_per_adapter": "tokens trained on, per adapter",
    "optimizer_steps": "optimizer steps",
    "seconds": "seconds",
}
CURVES = {
    "propose.valid_share": "valid proposals (share)",
    "solve.rate": "solve rate (share)",
    "program.stripped_depth": "depth of syntax trees, stripped",
    "program.stripped_lines": "lines, stripped",
    "program.stripped_cyclomatic": "cyclomatic complexity, stripped",
    "coverage.cells": "cells of problem space so far",
    "coverage.novelty": "novelty by compression (share)",
    "propose.entropy": "entropy of proposals (nats per token)",
    "solve.entropy": "entropy of answers (nats per token)",
    "propose.completion_tokens": "length of proposals (tokens)",
    "solve.completion_tokens": "length of answers (tokens)",
    "reward.zero_variance_share (students)": "students' groups without a signal (share)",
    "calibration.squared_error": "squared error of expected solve rates",
    "pair.adapter_distance (students)": "distance of students' delta W",
    "disagreement": "students' disagreement on the probe (share)",
}


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each run or arm, by its place among the others."""
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def clusters_of(authors: Iterable[str]) -> str:
    """Return what standard errors over proposals of these teachers are over: prompts, or tasks if the generator drew them."""
    return "tasks" if set(authors) == {GENERATOR} else "prompts"
