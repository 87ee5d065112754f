"""`populora export RUN --tasks DIR`: the distinct tasks that teachers wrote and the sandbox found valid, with a data card."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.export.base_model import public_name
from flows.export.folder import whole_folder
from flows.export.markdown import code, leak_warning
from flows.run.manifest import sha256_hex
from flows.run.run import Run
from flows.storage import StoreRefused
from flows.store.table_bytes import encode_table
from stages.core.method.buffer import task_key
from stages.reward import solve_rates

_STRS = pa.list_(pa.field("item", pa.string(), nullable=False))
SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("generation", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("program", pa.string(), nullable=False),
        pa.field("inputs", _STRS, nullable=False),
        pa.field("outputs", _STRS, nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("teacher_id", pa.string(), nullable=False),
        pa.field("adapter_sha256", pa.string(), nullable=False),
        pa.field("probe_overlap", pa.bool_(), nullable=False),
        pa.field("gate", pa.string()),
        pa.field("solve_rate", pa.float64()),
    ],
    metadata={"table": "exported_tasks", "schema": "1"},
)
MEANINGS = {
    "task_id": "unique in the run; `g0007-m00-p003` is proposal 3 of match 0 in generation 7",
    "generation": "when it was written, from 0",
    "kind": "deduction (predict the output), abduction (find an input), induction (write the program)",
    "program": "Python source that defines `f`",
    "inputs": "arguments as in a call of `f`; several for induction",
    "outputs": "what `f` returned for each input, as Python literal text",
    "message": "the teacher's hint; induction only, often empty",
    "teacher_id": "the member that wrote it, or `generator`",
    "adapter_sha256": "digest of the weights that wrote it; empty: the generator did",
    "probe_overlap": "equals a program of a suite that the run keeps out: leave it out of training if you report that suite",
    "gate": "the rule that kept it from being posed to students; null: it was posed",
    "solve_rate": "share of the matched student's attempts that were correct; null: it was not posed",
}
CARD = """# Tasks of run {run}

{warning}{count} programming tasks in `tasks.parquet`, written by {writers} and found valid by execution: the
program parses, defines `f`, uses nothing banned, stays within its limits, and returned the same value in two separately started
sandboxes. Repeated tasks (equal normalised program and inputs, within the run or in its seed tasks) are left out.

| | |
|---|---|
| run | `{run}`, {generations} generations, mode {mode} |
| base model | {model} (digest `{base}`) |
| head of the run's manifest chain | `{head}` |
| sha256 of `tasks.parquet` | `{sha256}` |
| proposals behind them | {proposals}, of which {valid} were valid and {count} are new |
| by kind | {kinds} |
| equal to a probe task | {overlap} |

## Columns

{columns}

## Use

Programs are machine-written and were never reviewed by a person. Run them only in a sandbox: they were judged harmless to ours,
which has no network and no files. Solve rates are those of one student of the run at that time, over {attempts} attempts; they
are not an absolute difficulty. The licence of the texts depends on the licence of the base model's outputs.
"""


def export_tasks(run: Run, folder: Path) -> str:
    """Write the folder, `tasks.parquet` and `README.md`, and return a one-line summary.

    Raises StoreRefused if there is no such run, or the folder exists and is not empty.
    """
    description = run.history.description()
    if description is None:
        raise StoreRefused(f"there is no run {run.run_id} in {run.store.url}")
    with whole_folder(folder) as unfinished:
        done = [number for number in run.history.generations() if run.manifest("verify", number) is not None]
        statuses: Counter[str] = Counter()
        table = pa.Table.from_pylist(list(_rows(run, done, statuses)), schema=SCHEMA)
        data = encode_table(table)
        card = _card(run, description, table, statuses, len(done), sha256_hex(data))
        (unfinished / "tasks.parquet").write_bytes(data)
        (unfinished / "README.md").write_text(card, encoding="utf-8")
    return f"{table.num_rows} tasks in {folder / 'tasks.parquet'}, described in {folder / 'README.md'}"


def _rows(run: Run, generations: list[int], statuses: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield valid tasks that do not repeat an earlier one, and count every status."""
    seeds = run.read_table(None, "seeds").to_pylist()
    seen = {task_key(row["kind"], row["program_key"], row["inputs"]) for row in seeds}
    for generation in generations:
        digests = _digests(run, generation)
        rates = solve_rates(run.read_table(generation, "grades")) if run.manifest("grade", generation) else {}
        for row in run.read_table(generation, "tasks").to_pylist():
            statuses[row["status"]] += 1
            if row["status"] != "valid":
                continue
            key = task_key(row["kind"], row["program_key"], row["inputs"])
            if row["duplicate"] or key in seen:
                continue
            seen.add(key)
            own = {"generation": generation, "adapter_sha256": digests[row["task_id"]], "solve_rate": rates.get(row["task_id"])}
            own["gate"] = row["gate"] and row["gate"].rpartition("/")[2]  # of a user's own, the file and the function
            yield {name: (row | own)[name] for name in SCHEMA.names}


def _digests(run: Run, generation: int) -> dict[str, str]:
    proposals = run.read_table(generation, "proposals")
    return dict(zip(proposals["proposal_id"].to_pylist(), proposals["adapter_sha256"].to_pylist(), strict=True))


def _card(run: Run, description: dict[str, Any], table: pa.Table, statuses: Counter[str], generations: int, sha256: str) -> str:
    start = run.manifest("start")
    kinds = Counter(table["kind"].to_pylist())
    config = description["config"]
    return CARD.format(
        run=run.run_id,
        warning=leak_warning(description),
        count=table.num_rows,
        generations=generations,
        mode=config["mode"],
        writers="a generator of programs of graded depth"
        if config["propose"].get("curriculum")
        else "language-model teachers in self-play",
        model=code(public_name(config["model"])),
        base=start.versions.get("base_model", "unknown") if start else "unknown",
        head=run.history.head(),
        sha256=sha256,
        proposals=statuses.total(),
        valid=statuses["valid"],
        kinds=", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none",
        overlap=sum(table["probe_overlap"].to_pylist()),
        columns="\n".join(f"- `{name}`: {MEANINGS[name]}" for name in SCHEMA.names),
        attempts=config["solve"]["attempts"],
    )
