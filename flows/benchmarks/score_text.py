"""Scores, shares of readable answers and changes as the aligned lines that `populora benchmark` prints."""

import pyarrow as pa

from stages.core.number_text import signed
from stages.core.suites.by_depth import depth_scores
from stages.core.suites.changes import score_changes
from stages.core.suites.scores import Slices, forms


def scores_text(scores: pa.Table) -> str:
    """Return the overall scores, and those by kind, as aligned lines."""
    rows = [row for row in scores.to_pylist() if " band " not in row["group"]]
    lines = [f"{'adapter':16} {'group':13} {'measure':14} {'score':>7} {'± s.e.':>8} {'n':>6}"]
    for row in rows:
        error = "" if row["stderr"] is None else f"{100 * row['stderr']:.2f}"
        score = f"{100 * row['score']:.2f}"
        lines.append(f"{row['adapter_id']:16} {row['group']:13} {row['measure']:14} {score:>7} {error:>8} {row['problems']:>6}")
    return "\n".join(lines)


def forms_text(answers: pa.Table) -> str:
    """Return the share of answers with the required format, and the share of those that are correct, as aligned lines."""
    lines = [f"{'adapter':16} {'answers':8} {'formed':>7} {'± s.e.':>8} {'right of formed':>15} {'± s.e.':>8} {'n':>6}"]
    for one in forms(answers):
        formed, right = (f"{100 * share:.2f}" for share in (one.formed, one.right))
        errors = ["" if error is None else f"{100 * error:.2f}" for error in (one.formed_stderr, one.right_stderr)]
        how = "greedy" if one.greedy else "sampled"
        lines.append(f"{one.adapter_id:16} {how:8} {formed:>7} {errors[0]:>8} {right:>15} {errors[1]:>8} {one.problems:>6}")
    return "\n".join(lines)


def depths_text(answers: pa.Table) -> str:
    """Return the scores of the staircase by kind and depth in percent, as aligned lines; `-` where nothing was sampled.

    `same` is the share of groups of 8 samples that are all right or all wrong, `wrong` the share that are all wrong.
    """
    scores = depth_scores(answers)
    passes = sorted({k for one in scores for k in one.pass_at})
    heads = ["depth", "n", "greedy", "± s.e.", "formed", "of formed", *(f"pass@{k}" for k in passes), "same", "wrong"]
    lines = []
    for slot in dict.fromkeys((one.adapter_id, one.kind) for one in scores):
        lines += [f"{slot[0]}, {slot[1]}", "".join(f"{head:>10}" for head in heads)]
        for one in scores:
            if (one.adapter_id, one.kind) == slot:
                same = None if one.all_wrong is None or one.all_right is None else one.all_wrong + one.all_right
                cells = [None if one.greedy is None else one.greedy.mean, None if one.greedy is None else one.greedy.stderr]
                cells += [one.formed, one.right_of_formed]
                cells += [one.pass_at[k].mean if k in one.pass_at else None for k in passes] + [same, one.all_wrong]
                shown = ("-" if cell is None else f"{100 * cell:.1f}" for cell in cells)
                lines.append("".join(f"{cell:>10}" for cell in (one.depth, one.problems, *shown)))
    return "\n".join(lines)


def changes_text(after: pa.Table, before: pa.Table, slices: Slices, generation: int) -> str:
    """Return the change of each score since `generation`, paired by problem, as aligned lines."""
    since = "since the start" if generation < 0 else f"since generation {generation}"
    lines = [f"{since:16} {'measure':14} {'change':>7} {'± s.e.':>8} {'better':>7} {'worse':>6} {'n':>6}"]
    for one in score_changes(after, before, slices):
        if " band " in one.group:
            continue
        found = one.found
        error = "" if found.stderr is None else f"{100 * found.stderr:.2f}"
        change = signed(100 * found.difference, 2)
        counts = f"{found.better:>7} {found.worse:>6} {found.problems:>6}"
        lines.append(f"{one.group:16} {one.measure:14} {change:>7} {error:>8} {counts}")
    return "\n".join(lines)
