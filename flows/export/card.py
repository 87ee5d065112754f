"""The model card of an adapter that leaves a run: metadata for the Hugging Face hub, then what the run recorded about it.

Every name in it was chosen by a user or written by a model, so each is escaped (flows/export/markdown.py), and the metadata are
written by the hub's own library. The same run gives the same text.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.export.base_model import BaseModel
from flows.export.markdown import block, code, escaped, leak_warning, one_line, table
from flows.run.history import OWN_WAY
from flows.run.leaking import warning
from flows.run.lineage import Json, Lineage, generation_of_row
from flows.run.manifest import sha256_hex
from flows.run.run import Run
from stages.core.engines.vllm_ranks import reserved_rank
from stages.core.lora.adapter_files import WEIGHTS_FILE
from stages.core.method.top_up import task_of
from stages.core.statistics.metric_rows import clustered

LINEAGE_STEPS = 60
"""Steps of the lineage that the card lists; the rest are counted."""
METHOD = ("population", "propose", "solve", "reward", "learning", "rating", "evolution", "seeding")
"""Groups of settings that the card shows. The others describe the machine."""

WITH_TEACHERS = """trained by self-play in a population of LoRA adapters: teachers write programming tasks, students solve
them, and a sandboxed Python executor judges both."""
WITHOUT_TEACHERS = """trained in a population of LoRA adapters: a generator of programs of graded depth poses tasks,
students solve them, and a sandboxed Python executor judges both."""
ALONE = """trained by self-play: a single LoRA adapter writes programming tasks and solves them, and a sandboxed Python executor
judges both."""
CARD = """# {adapter_id} of run {run}

{what} {how} No person has reviewed its output.

{facts}

## Loading

{loading}

The prompt style must be the run's own, {style}; the project's {style_file} writes and reads it.

## Where it comes from

{lineage}

## What it was trained on

{training}

## Rating

{rating}

## Scores

{scores}

## Configuration

{configuration}

## How to verify it

{verification}

## Licence

{licence}
"""

LOAD_ADAPTER = """```python
from peft import PeftModel
from transformers import AutoModelForCausalLM
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base}{revision}), "{folder}")
```

{base_is}The tokenizer is the base model's: `AutoTokenizer.from_pretrained({base})`.

vLLM: `vllm serve {served} --enable-lora --max-lora-rank {rank} --lora-modules adapter={folder}`,
then request the model `adapter`."""

LOAD_MERGED = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = AutoModelForCausalLM.from_pretrained("{folder}"), AutoTokenizer.from_pretrained("{folder}")
```

vLLM: `vllm serve {folder}`. A PEFT folder of the same adapter comes from `populora export` without `--merge`."""

VERIFICATION = """- The weights: `sha256sum adapter_model.safetensors` prints `{sha256}`. The run's manifests
  record this digest for the stage that made them, and its tables record it in every row that these weights wrote.
- The run: every stage's manifest contains the digest of the one before it, and the newest one's is
  `{head}`. With the run's store, `populora fsck RUN` computes the digest of every artifact again and checks the
  chain, and `populora status RUN` prints the head.
- This folder: `populora publish RUN ADAPTER DIR`, with a new folder of the same name and the same `--base-model`,
  `--license` and `--to`, writes the same bytes from the same state of the run."""

VERIFICATION_MERGED = """- The adapter that was merged: `populora export RUN ADAPTER DIR` writes its PEFT folder, where `sha256sum
  adapter_model.safetensors` prints `{sha256}`. The run's manifests record this digest for the stage that made
  it, and its tables record it in every row that these weights wrote.
- The run: every stage's manifest contains the digest of the one before it, and the newest one's is
  `{head}`. With the run's store, `populora fsck RUN` computes the digest of every artifact again and checks the
  chain, and `populora status RUN` prints the head."""


MARK = "\n<!-- As written by populora, sha256 of the text above: {sha256} -->\n"


@dataclass(frozen=True)
class Subject:
    """What the card describes: the exported adapter, its files' contents, and under which name it will be loaded."""

    adapter_id: str
    files: Mapping[str, bytes]
    adapter: Json
    """The content of adapter_config.json."""
    base: BaseModel
    loaded_as: str
    """The folder, or OWNER/NAME on the hub."""
    what: str
    merged: bool


def model_card(run: Run, description: Json, subject: Subject) -> str:
    """Return the README.md. Raises StoreRefused for an adapter that the run does not have."""
    lineage = Lineage(run)
    story = lineage.adapter(subject.adapter_id)
    config = description["config"]
    verification = VERIFICATION_MERGED if subject.merged else VERIFICATION
    text = CARD.format(
        adapter_id=escaped(subject.adapter_id),
        run=escaped(run.run_id),
        what=leak_warning(description) + subject.what,
        how=_how(config, story["backwards"]),
        facts=_facts(run, config, subject),
        loading=_loading(subject),
        style=code(config["model"]["style"]),
        style_file=code(f"stages/core/prompts/{config['model']['style']}.py"),
        lineage=_lineage(story["backwards"]),
        training=_training(lineage, story["backwards"]),
        rating=rating_text(lineage, subject.adapter_id, story["backwards"]),
        scores=_scores(story["forwards"]["scores"]),
        configuration=_configuration(config),
        verification=verification.format(sha256=sha256_hex(subject.files[WEIGHTS_FILE]), head=run.history.head()),
        licence=_licence(subject.base),
    )
    return marked(f"---\n{_metadata(run, subject, story['forwards']['scores'], bool(warning(description)))}\n---\n\n{text}")


def _how(config: Json, steps: list[Json]) -> str:
    """Return how these weights were trained, or how their run trains if they were not."""
    how = WITHOUT_TEACHERS if config["propose"].get("curriculum") else ALONE if config["mode"] == "single" else WITH_TEACHERS
    trained = any(step["parents"] and step.get("samples", {}).get("count") for step in steps)
    return f"It was {how}" if trained else f"These weights were not trained. Those of the run's later adapters are {how}"


def marked(text: str) -> str:
    """Return the card with its digest at the end, by which a card that nobody edited is recognised."""
    return text + MARK.format(sha256=sha256_hex(text.encode()))


def is_unedited(card: str) -> bool:
    """Return whether the card is as some version of this program wrote it."""
    text, found, _ = card.rpartition(MARK.partition("{")[0])
    return bool(found) and marked(text) == card


def _metadata(run: Run, subject: Subject, scores: list[Json], leaks: bool) -> str:
    """Return the hub's metadata. A base that is not on the hub is left out: the hub rejects a name that it does not know."""
    from huggingface_hub import EvalResult, ModelCardData  # noqa: PLC0415  half a second

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=one_line(row["suite"]),
            dataset_name=one_line(row["suite"]),
            metric_type=one_line(row["measure"]),
            metric_value=round(row["score"], 4),
            metric_name=one_line(row["measure"]),
            metric_args={"problems": row["problems"]}
            | ({} if row["stderr"] is None else {"stderr": round(row["stderr"], 4)})
            | ({"asked": row["question"]} if row["question"] else {}),
        )
        for row in _overall(scores)
    ]
    base, licence = subject.base, subject.base.licence
    data = ModelCardData(
        base_model=base.name if base.on_hub else None,
        library_name="transformers" if subject.merged else "peft",
        license=licence.identifier if licence else None,
        license_name=(licence.name or None) if licence else None,
        license_link=(licence.link or None) if licence else None,
        pipeline_tag="text-generation",
        tags=["populora", "lora", "self-play", "code", *(["gate-experiment"] if leaks else [])],
        model_name=f"{run.run_id}/{subject.adapter_id}" if results else None,
        eval_results=results or None,
        base_model_relation=("merge" if subject.merged else "adapter") if base.on_hub else None,
    )
    return str(data.to_yaml(line_break="\n")).strip()


def _overall(scores: list[Json]) -> list[Json]:
    """Return one score of each suite, way of asking and measure: that over the most problems."""
    whole = sorted((row for row in scores if row["group"] == "all"), key=lambda row: int(row["problems"]))
    return list({(row["suite"], row["question"], row["measure"]): row for row in whole}.values())


def _facts(run: Run, config: Json, subject: Subject) -> str:
    start, adapter = run.manifest("start"), subject.adapter
    base = code(subject.base.name) + (f" at commit {code(subject.base.revision)}" if subject.base.revision else "")
    modules = ", ".join(code(module) for module in adapter["target_modules"])
    digest = start.versions.get("base_model", "unknown") if start else "unknown"
    rows = [
        ["run", f"{code(run.run_id)}, mode {code(config['mode'])}, seed {escaped(config['seed'])}"],
        ["base model", f"{base} (digest {code(digest)})"],
        ["adapter", f"rank {int(adapter['r'])}, alpha {float(adapter['lora_alpha']):g}, modules {modules}"],
        ["sha256 of the adapter's weights", code(sha256_hex(subject.files[WEIGHTS_FILE]))],
        ["head of the run's manifest chain", code(run.history.head())],
        ["sampled in training at", f"temperature {escaped(config['engine']['temperature'])}"],
    ]
    return table(["", ""], rows)


def _loading(subject: Subject) -> str:
    folder = subject.loaded_as if code(subject.loaded_as).startswith("`") else "FOLDER"
    if subject.merged:
        return LOAD_MERGED.format(folder=folder)
    base = subject.base
    on_hub = base.on_hub and code(base.name).startswith("`")  # a name with marks could leave its quotes
    revision = f', revision="{base.revision}"' if base.revision.isalnum() else ""
    return LOAD_ADAPTER.format(
        base=f'"{base.name}"' if on_hub else "BASE",
        revision=revision if on_hub else "",
        served=base.name + (f" --revision {base.revision}" if revision else "") if on_hub else "BASE",
        base_is="" if on_hub else f"`BASE` is the base model {code(base.name)}: its folder. ",
        folder=folder,
        rank=reserved_rank(int(subject.adapter["r"])),
    )


def _lineage(steps: list[Json]) -> str:
    """Return the steps back to the start, newest first; a crossover follows its first parent."""
    births = sum(step["made_by"] == "evolve" for step in steps)
    updates = sum(step["made_by"] == "update" for step in steps)
    head = f"{updates} updates and {births} births lead from the starting weights to these, newest first:"
    shown = [_step(step) for step in steps[:LINEAGE_STEPS]]
    rest = [f"- … {len(steps) - LINEAGE_STEPS} earlier steps"] if len(steps) > LINEAGE_STEPS else []
    return "\n".join([head, "", *shown, *rest])


def _step(step: Json) -> str:
    """Return one line of the lineage."""
    made = f"- {code(step['adapter_id'])}: {escaped(step['made_by'])}"
    if step["generation"] is not None:
        made += f" of generation {step['generation']}"
    if birth := step.get("birth"):
        parents = ", ".join(code(parent) for parent in step["parents"])
        return f"{made}, operator {code(birth['operator'].rpartition('/')[2])} on {parents}, replacing {code(birth['replaces'])}"
    if samples := step.get("samples"):
        mean = _number(samples["mean_reward"])
        return f"{made}, on {samples['count']} samples of {len(samples['tasks'])} tasks, mean reward {mean}"
    return made


def _training(lineage: Lineage, steps: list[Json]) -> str:
    """Return how many tasks trained these weights and their ancestors (first parents): as their author, and as their solver."""
    written, solved, statuses, tokens = set[str](), set[str](), Counter[str](), 0
    right, tried = list[bool](), list[str]()  # of each attempt: its verdict and its task
    for step in steps:
        if not (step.get("samples") and step["parents"]):
            continue
        generation = step["generation"] - lineage.run.history.off_policy_steps()
        tokens += step["samples"]["tokens"]
        own = [row["sample_id"] for row in lineage.trained_on(step["generation"], step["adapter_id"].rpartition("-g")[0])]
        mine = {one for one in own if one == task_of(one)}
        written |= mine
        statuses.update(row["status"] for row in lineage.rows(generation, "tasks") if row["task_id"] in mine)
        tries = {one for one in own if one not in mine}
        solved |= {task_of(one) for one in tries}
        graded = [row for row in lineage.rows(generation, "grades") if row["rollout_id"] in tries]
        right += [bool(row["correct"]) for row in graded]
        tried += [task_of(row["rollout_id"]) for row in graded]
    if not (written or solved):
        return "These are starting weights, or an offspring of starting weights: they were not trained."
    seeds = sum(generation_of_row(task) is None for task in solved)
    rows = []
    if written:
        rows.append(["tasks made (written as a teacher)", f"{len(written)}, of which {statuses['valid']} were judged valid"])
    if solved:
        rows.append(["tasks seen (attempted as a student)", f"{len(solved)}{f', {seeds} of them seed tasks' if seeds else ''}"])
        rows.append(["attempts at them", f"{len(right)}, of which {sum(right)} were correct"])
        rows.append(["attempts correct, mean over tasks", _mean(right, tried)])
    rows.append(["tokens trained on", f"{tokens:,}"])
    return table(["along the lineage above", ""], rows)


def _mean(right: list[bool], tasks: list[str]) -> str:
    """Return the mean over tasks of the share of their attempts that are correct, with its standard error and n."""
    mean, stderr, n = clustered(right, tasks)
    return f"{mean:.1%}" + (f" ± {stderr:.1%}" if stderr is not None else "") + f", n = {n} {'task' if n == 1 else 'tasks'}"


def rating_text(lineage: Lineage, adapter_id: str, steps: list[Json]) -> str:
    """Return the newest TrueSkill rating of these weights, and how many rated matches of their line it rests on."""
    found, when = _rated(lineage, adapter_id)
    if found is None:
        return "These weights were not rated."
    if found.get("role") == "both":
        return "These weights were not rated: a single agent plays against itself."
    fitness = f", fitness {found['fitness']:.2f}" if "fitness" in found else ""
    at = f"after generation {when}" if when >= 0 else "at the start"
    return (
        f"TrueSkill mu {found['mu']:.2f}, sigma {found['sigma']:.2f}{fitness}, {at}; {_matches(lineage, steps, when)} rated "
        "matches along the lineage. Ratings compare members of one run and one role only."
    )


def _rated(lineage: Lineage, adapter_id: str) -> tuple[Json | None, int]:
    """Return the newest row that rates a member with these weights, and its generation; a member may keep weights for several."""
    for generation in reversed(lineage.generations()):
        for row in reversed(lineage.rows(generation, "ratings")):  # one row per match: the last is the rating after all of them
            if row["next_adapter_id"] == adapter_id:
                return row, generation
    for generation in lineage.generations():
        if child := lineage.row(generation, "offspring", "adapter_id", adapter_id):
            return child, generation
    return lineage.row(None, "population", "adapter_id", adapter_id), -1


def _matches(lineage: Lineage, steps: list[Json], when: int) -> int:
    """Count the rated matches of a line's members, each with its own weights, up to those that follow in the line."""
    until = dict(zip((step["adapter_id"] for step in steps), (when, *(step["generation"] for step in steps[:-1])), strict=True))
    return sum(
        row["result"] != "idle" and generation <= until.get(row["adapter_id"], -1)
        for generation in lineage.generations()
        for row in lineage.rows(generation, "ratings")
    )


def _scores(scores: list[Json]) -> str:
    """Return the run's scores of exactly these weights, never those of relatives."""
    if not scores:
        return "These weights were not scored."
    heads = ["suite", "group", "measure", "score", "standard error", "problems (n)", "asked"]
    rows = [
        [
            *(escaped(row[key]) for key in ("suite", "group", "measure")),
            f"{row['score']:.4f}",
            "–" if row["stderr"] is None else f"{row['stderr']:.4f}",
            str(row["problems"]),
            escaped(row["question"] or OWN_WAY),
        ]
        for row in scores
    ]
    return f"{table(heads, rows)}\n\nScores are shares of problems; the standard error is over problems."


def _configuration(config: Json) -> str:
    """Return the settings of the method. Those of the machine stay out, and of a path only its last part is shown."""
    model = {key: value for key, value in config["model"].items() if key in ("rank", "alpha", "targets", "style", "dtype")}
    shown: dict[str, Any] = {key: config[key] for key in ("mode", "generations", "seed", *METHOD) if key in config}
    return block(json.dumps(_without_paths(shown | {"model": model}), indent=1, sort_keys=True))


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(one) for one in value]
    return value.rpartition("/")[2] if isinstance(value, str) else value


def _licence(base: BaseModel) -> str:
    if base.licence is None:
        return "The licence of the base model is not known here; that of these weights depends on it."
    known = base.licence
    said = code(known.identifier) + (f" ({escaped(known.name)})" if known.name else "")
    return f"{said}, as stated for the base model or given by the publisher. A derivative of the base is bound by its terms."


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
