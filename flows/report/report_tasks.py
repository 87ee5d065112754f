"""Sample tasks of a report: the easiest, the hardest, unsolved ones and the newest, each with the students' answers."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from flows.report.report_data import RunData
from flows.report.report_page import ArtifactLinks, Html, escape, joined
from flows.storage import Damaged, NotStored
from stages.core.highlight import python_html, text_html
from stages.core.prompts.styles import Kind
from stages.core.statistics.estimates import only

Row = dict[str, Any]
PROGRAM, VALUE, ANSWER, ANSWERS = 4000, 600, 300, 5

ASKED = {
    Kind.DEDUCTION: "Asked: what does this return?",
    Kind.ABDUCTION: "Asked: an input that returns the output.",
    Kind.INDUCTION: "Asked: the program, from the first half of these pairs.",
}


def samples(gathered: RunData, links: ArtifactLinks) -> Html:
    """Return the section, or a sentence if no task has been attempted yet."""
    chosen = choose(gathered.tables["tasks"], gathered.tables["grades"])
    if not chosen:
        return Html('<p class="none">No task has been attempted yet.</p>')
    reader = _Reader(gathered)
    parts = []
    for heading, tasks in chosen:
        cards = [_card(task, reader, links) for task in tasks]
        parts.append(Html(f'<h3>{escape(heading)}</h3><div class="tasks">{joined(cards)}</div>'))
    return joined(parts)


def choose(tasks: pa.Table, grades: pa.Table) -> list[tuple[str, list[Row]]]:
    """Return, per heading, the best task of each kind with its attempts and correct ones. Ties go to the newest."""
    solved = grades.append_column("right", grades["correct"].cast(pa.int64())).group_by(
        ["generation", "task_id"], use_threads=False
    )
    counts = {
        (row["generation"], row["task_id"]): (row["right_count"], row["right_sum"])
        for row in solved.aggregate([("right", "count"), ("right", "sum")]).to_pylist()
    }
    rows = []
    columns = ["generation", "task_id", "match_id", "teacher_id", "kind", "duplicate"]
    for place, row in enumerate(tasks.select(columns).to_pylist()):
        if (key := (row["generation"], row["task_id"])) in counts and not row["duplicate"]:
            rows.append(row | {"place": place, "attempts": counts[key][0], "right": counts[key][1]})
    rankings: list[tuple[str, Callable[[Row], bool], Callable[[Row], Any]]] = [
        ("Easiest", lambda row: 2 * row["right"] >= row["attempts"], lambda row: (row["right"] / row["attempts"], row["place"])),
        (
            "Hardest solved",
            lambda row: row["right"] > 0,
            lambda row: (-row["right"] / row["attempts"], row["place"]),
        ),
        ("Newest unsolved", lambda row: row["right"] == 0, lambda row: row["place"]),
        ("Newest", lambda row: True, lambda row: row["place"]),
    ]
    chosen = []
    for heading, wanted, rank in rankings:
        best = [max(own, key=rank) for kind in Kind if (own := [row for row in rows if row["kind"] == kind and wanted(row)])]
        chosen += [(heading, best)] if best else []
    return chosen


class _Reader:
    """Read full rows of tasks and attempts. Each table is read once."""

    def __init__(self, gathered: RunData) -> None:
        self._gathered = gathered
        self._kept: dict[tuple[int, str], pa.Table | None] = {}

    def rows(self, generation: int, name: str, task_id: str) -> list[Row]:
        """Return the rows of a task in a table; none if the table cannot be read."""
        key = (generation, name)
        if key not in self._kept:
            ref = self._gathered.refs(generation).get(name)
            try:
                table = self._gathered.run.read_table(ref, name) if ref else None
            except (NotStored, Damaged):
                table = None
            keep = [
                column for column in (table.column_names if table else []) if not column.endswith("_ids") and column != "logprobs"
            ]
            self._kept[key] = table.select(keep) if table else None
        found = self._kept[key]
        rows: list[Row] = only(found, task_id=task_id).to_pylist() if found is not None else []
        return rows


def _card(task: Row, reader: _Reader, links: ArtifactLinks) -> Html:
    generation, folder = task["generation"], f"generation={task['generation']:04d}"
    full = reader.rows(generation, "tasks", task["task_id"])[0]
    attempts = _attempts(reader, task)
    students = ", ".join(sorted({row["student_id"] for row in attempts})) or "?"
    message = f'<p class="small">Message: {text_html(full["message"], VALUE)}</p>' if full["message"] else ""
    sources = joined([links(f"{folder}/{name}.parquet", f"{name}.parquet") for name in ("tasks", "rollouts", "grades")], " · ")
    return Html(
        f'<article class="card"><p><span class="kind {escape(task["kind"])}">{escape(task["kind"])}</span> · '
        f"{task['right']} of {task['attempts']} attempts correct<br>"
        f'<span class="small"><span class="teacher">{escape(task["teacher_id"])}</span> asked '
        f'<span class="student">{escape(students)}</span> in generation {generation} · '
        f"<code>{escape(task['task_id'])}</code></span></p>"
        f'<pre class="code">{python_html(full["program"], PROGRAM)}</pre>'
        f"{_pairs(full)}{message}"
        f'<p class="small">{escape(ASKED[Kind(task["kind"])])}</p>'
        f"{_answers(attempts)}"
        f'<p class="small">{escape(folder)}: {sources}</p></article>'
    )


def _pairs(task: Row) -> Html:
    """Return calls with their results."""
    outputs = list(task["outputs"]) + [""] * (len(task["inputs"]) - len(task["outputs"]))
    lines = [
        f"f({python_html(given, VALUE)}) → {python_html(got, VALUE)}" for given, got in zip(task["inputs"], outputs, strict=True)
    ]
    return Html(f'<pre class="code value">{chr(10).join(lines)}</pre>')


def _attempts(reader: _Reader, task: Row) -> list[Row]:
    """Return the task's rollouts with their grades."""
    grades = {row["rollout_id"]: row for row in reader.rows(task["generation"], "grades", task["task_id"])}
    rollouts = reader.rows(task["generation"], "rollouts", task["task_id"])
    return [row | {"status": grades[row["rollout_id"]]["status"]} for row in rollouts if row["rollout_id"] in grades]


def _answers(attempts: Sequence[Row]) -> Html:
    """Return the most frequent answers with verdict and count."""
    if not attempts:
        return Html('<p class="small">The attempts cannot be read.</p>')
    counted = Counter(
        (row["answer"] if row["answer"] is not None else row["text"], row["answer"] is None, row["status"]) for row in attempts
    )
    rows = []
    for (answer, unread, status), count in counted.most_common(ANSWERS):
        said = f"<code>{text_html(answer, ANSWER)}</code>" + (' <span class="small">(not an answer)</span>' if unread else "")
        look = status if status in ("correct", "wrong", "format") else "wrong"
        rows.append(f'<tr><td class="wrap">{said}</td><td class="{look}">{escape(status)}</td><td>{count}×</td></tr>')
    rest = len(counted) - ANSWERS
    more = f'<p class="small">and {rest} other answer{"s" if rest > 1 else ""}</p>' if rest > 0 else ""
    head = "<tr><th>answer</th><th>verdict</th><th></th></tr>"
    return Html(f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>{more}')
