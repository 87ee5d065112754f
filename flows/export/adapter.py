"""`populora export RUN ADAPTER DIR [--merge]`: an adapter as a PEFT folder, or merged into its base, with a model card."""

import json
from pathlib import Path
from typing import Any

from flows.backend import Backend
from flows.config import parse
from flows.run.lineage import Lineage
from flows.run.manifest import sha256_hex
from flows.run.run import Run
from flows.storage import StoreRefused
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import CONFIG_FILE, OPTIMIZER_FILE, WEIGHTS_FILE, read_adapter

CARD = """---
base_model: {model}
library_name: {library}
tags:
- populora
- lora
---

# {adapter_id} of run {run}

{what} The adapter was trained by self-play in a population of LoRA adapters: teachers write programming tasks, students solve
them, a sandbox judges. No person has reviewed its output.

| | |
|---|---|
| run | `{run}`, mode {mode}, seed {seed} |
| base model | `{model}` (digest `{base}`) |
| adapter | rank {rank}, alpha {alpha}, modules {targets} |
| sha256 of the adapter's weights | `{sha256}` |
| head of the run's manifest chain | `{head}` |
| prompt style | `{style}`; sampled at temperature {temperature} |

## Lineage, newest first

{lineage}

## Scores

{scores}

## Loading

{loading}

The prompt style must be the run's own; the project's `stages/core/{style}_prompts.py` writes and reads it. The licence of the
weights depends on the licence of the base model.
"""

LOAD_ADAPTER = """`BASE` is the base model above; a relative name starts at the project's folder.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), "{folder}")
tokenizer = AutoTokenizer.from_pretrained(BASE)
```

transformers alone (PEFT installed): `model = AutoModelForCausalLM.from_pretrained(BASE); model.load_adapter("{folder}")`.

vLLM: `vllm serve BASE --enable-lora --max-lora-rank {rank} --lora-modules {adapter_id}={folder}`, then request the model
`{adapter_id}`."""

LOAD_MERGED = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("{folder}"), AutoTokenizer.from_pretrained("{folder}")
```

vLLM: `vllm serve {folder}`. A PEFT folder of the same adapter comes from `populora export` without `--merge`."""


def export_adapter(run: Run, adapter_id: str, folder: Path, merge: bool) -> str:
    """Write the folder and return a one-line summary. Raises StoreRefused if the adapter is unknown or the folder exists."""
    description = run.history.description()
    if description is None:
        raise StoreRefused(f"there is no run {run.run_id} in {run.store.url}")
    lineage = Lineage(run).adapter(adapter_id)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreRefused(f"{folder} already exists; choose another folder")
    files = run.read_adapter(adapter_id)
    config = json.loads(files[CONFIG_FILE])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if merge:
            base = Backend(parse(description["config"])).model_path
            weights = read_adapter(files[WEIGHTS_FILE], files[OPTIMIZER_FILE]).weights
            kept = merge_into(base, weights, config["lora_alpha"] / config["r"], folder)
            what = f"The adapter `{adapter_id}`, merged into its base model; rounding kept {kept:.1%} of its change."
        else:
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                (folder / name).write_bytes(files[name])
            what = f"The LoRA adapter `{adapter_id}` in PEFT's format."
        (folder / "README.md").write_text(_card(run, description, lineage, config, files, folder, what, merge), encoding="utf-8")
    except OSError as error:
        raise StoreRefused(f"{folder}: {error.strerror or error}") from error
    return f"{what} It is in {folder}, described in {folder / 'README.md'}"


def merge_into(base: str, weights: Weights, scale: float, folder: Path) -> float:
    """Write the base model with W + scale B A for every adapted W, in the checkpoint's own dtype, and its tokenizer.

    Sums are made in float32. Returns the share of the change that survives rounding: 1 - |W' - W - scale B A| / |scale B A|,
    over all matrices. Early in training, an adapter's change is below the resolution of bfloat16 weights.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    lost, moved = 0.0, 0.0
    with torch.no_grad():
        for name in (name for name in weights if name.endswith(".lora_A.weight")):
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            weight = model.get_submodule(path).weight
            A_RI, B_OR = (torch.from_numpy(weights[key]) for key in (name, name.replace("lora_A", "lora_B")))
            wanted_OI = weight.float() + scale * B_OR @ A_RI
            moved += float((wanted_OI - weight.float()).square().sum())
            weight.copy_(wanted_OI)
            lost += float((wanted_OI - weight.float()).square().sum())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return 1 - (lost / moved) ** 0.5 if moved else 1.0


def _card(
    run: Run,
    description: dict[str, Any],
    lineage: dict[str, Any],
    adapter: dict[str, Any],
    files: dict[str, bytes],
    folder: Path,
    what: str,
    merge: bool,
) -> str:
    config, start = description["config"], run.manifest("start")
    names = {"adapter_id": lineage["adapter_id"], "folder": folder.name, "rank": adapter["r"]}
    return CARD.format(
        **names | {"alpha": adapter["lora_alpha"], "targets": ", ".join(adapter["target_modules"])},
        what=what,
        library="transformers" if merge else "peft",
        run=run.run_id,
        mode=config["mode"],
        seed=config["seed"],
        model=config["model"]["name"],
        style=config["model"]["style"],
        temperature=config["engine"]["temperature"],
        base=start.versions.get("base_model", "unknown") if start else "unknown",
        sha256=sha256_hex(files[WEIGHTS_FILE]),
        head=run.history.head(),
        lineage="\n".join(_step(step) for step in lineage["backwards"]),
        scores=_scores(lineage["forwards"]["scores"]),
        loading=(LOAD_MERGED if merge else LOAD_ADAPTER).format(**names),
    )


def _step(step: dict[str, Any]) -> str:
    """Return one line of the lineage."""
    made = f"- `{step['adapter_id']}`: {step['made_by']}"
    if step["generation"] is not None:
        made += f" of generation {step['generation']}"
    if birth := step.get("birth"):
        parents = ", ".join(f"`{parent}`" for parent in step["parents"])
        return f"{made}, operator {birth['operator']} on {parents}, replacing {birth['replaces']}"
    if samples := step.get("samples"):
        return f"{made}, on {samples['count']} samples"
    return made


def _scores(scores: list[dict[str, Any]]) -> str:
    """Return the run's scores of exactly these weights as a table, never those of relatives."""
    if not scores:
        return "These weights were not scored."
    lines = ["| suite | group | measure | score | standard error | problems |", "|---|---|---|---|---|---|"]
    for row in scores:
        error = "" if row["stderr"] is None else f"{row['stderr']:.4f}"
        lines.append(f"| {row['suite']} | {row['group']} | {row['measure']} | {row['score']:.4f} | {error} | {row['problems']} |")
    return "\n".join(lines)
