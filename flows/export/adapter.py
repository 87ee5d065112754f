"""`populora export RUN ADAPTER DIR [--merge]`: an adapter as a PEFT folder, or merged into its base, with a model card."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load

from flows.backend import Backend
from flows.config import parse
from flows.export.base_model import BaseModel, base_of
from flows.export.card import Subject, model_card
from flows.export.folder import whole_folder
from flows.export.markdown import code
from flows.run.lineage import no_adapter
from flows.run.resume import BRING_BACK, check_base
from flows.run.run import Run
from flows.storage import NotStored, StoreRefused
from stages.core.lora.adapter import Weights
from stages.core.lora.adapter_files import CONFIG_FILE, WEIGHTS_FILE

CARD_FILE = "README.md"
KEPT_ENOUGH = 0.9
"""Share of an adapter's change below which a merge warns that rounding lost the rest."""
PEFT_FOLDER = "The LoRA adapter {} in PEFT's format."


def export_adapter(
    run: Run,
    adapter_id: str,
    folder: Path,
    merge: bool,
    base: BaseModel | None = None,
    loaded_as: str = "",
    dtype: str = "",
) -> str:
    """Write the folder and return a summary. Raises StoreRefused if the adapter is unknown or the folder exists.

    `base` is what the card says about the base model, by default what the run's configuration says; `loaded_as` is the name by
    which the card loads the adapter, by default the folder's. `dtype` is the number format of a merged model, by default the
    wider of the run's and the checkpoint's. A second line warns if rounding to it loses more than a tenth of the change.
    """
    config = described(run)["config"]
    base = base or base_of(config["model"])
    files = read_files(run, adapter_id, (CONFIG_FILE, WEIGHTS_FILE))
    if not merge:
        with whole_folder(folder) as unfinished:
            (unfinished / CONFIG_FILE).write_bytes(published_config(json.loads(files[CONFIG_FILE]), base))
            (unfinished / WEIGHTS_FILE).write_bytes(files[WEIGHTS_FILE])
            (unfinished / CARD_FILE).write_text(peft_card(run, adapter_id, base, loaded_as or folder.name), encoding="utf-8")
        return f"wrote      {folder}: LoRA adapter {adapter_id} in PEFT format, described in its {CARD_FILE}"
    adapter, weights = json.loads(files[CONFIG_FILE]), load(files[WEIGHTS_FILE])
    with whole_folder(folder) as unfinished:
        backend = Backend(parse(config))
        check_base(run, backend.config, BRING_BACK)
        backend.model_folder()
        scale = adapter["lora_alpha"] / adapter["r"]
        kept, written = merge_into(backend.model_path, weights, scale, unfinished, dtype, config["model"]["dtype"])
        rounding = f"rounding to {written} kept {kept:.1%} of its change"
        what = f"The adapter {code(adapter_id)}, merged into its base model; {rounding}."
        subject = Subject(adapter_id, files, adapter, base, loaded_as or folder.name, what, merged=True)
        (unfinished / CARD_FILE).write_text(model_card(run, described(run), subject), encoding="utf-8")
    line = f"wrote      {folder}: adapter {adapter_id} merged into its base model, {rounding}; described in its {CARD_FILE}"
    if kept >= KEPT_ENOUGH:
        return line
    lost = f"warning    {written} is too coarse for this adapter: {1 - kept:.0%} of what it learned is not in {folder}"
    return f"{line}\n{lost}; --dtype float32 keeps all of it"


def peft_card(run: Run, adapter_id: str, base: BaseModel, loaded_as: str) -> str:
    """Return the README.md of the adapter's PEFT folder, loaded by this name."""
    files = read_files(run, adapter_id, (CONFIG_FILE, WEIGHTS_FILE))
    what = PEFT_FOLDER.format(code(adapter_id))
    subject = Subject(adapter_id, files, json.loads(files[CONFIG_FILE]), base, loaded_as, what, merged=False)
    return model_card(run, described(run), subject)


def described(run: Run) -> dict[str, Any]:
    """Return run.json. Raises StoreRefused if there is no such run."""
    found = run.history.description()
    if found is None:
        raise StoreRefused(f"there is no run {run.run_id} in {run.store.url}")
    return found


def read_files(run: Run, adapter_id: str, names: Sequence[str]) -> dict[str, bytes]:
    """Return files of an adapter, verified. Raises StoreRefused if the run has no such adapter, NotStored if it was retired."""
    try:
        run.history.find(f"adapters/{adapter_id}/{WEIGHTS_FILE}")
    except NotStored:
        raise no_adapter(run, adapter_id) from None
    return run.read_adapter(adapter_id, names)


def published_config(adapter: Mapping[str, Any], base: BaseModel) -> bytes:
    """Return adapter_config.json with the base model's name as the card gives it: never a path of this machine."""
    return (json.dumps({**adapter, "base_model_name_or_path": base.name}, indent=2, sort_keys=True) + "\n").encode()


def merge_into(base: str, weights: Weights, scale: float, folder: Path, dtype: str = "", trained: str = "") -> tuple[float, str]:
    """Write the base model with W + scale B A for every adapted W, and its tokenizer. Return the share kept and the format.

    `dtype` is the number format, by default the wider of the checkpoint's and `trained`, the run's. Sums are made in float32.
    The share is that of the change which survives rounding: 1 - |W' - W - scale B A| / |scale B A|, over all matrices, at least
    0. Early in training, an adapter's change is below the resolution of bfloat16 weights.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", use_safetensors=True, trust_remote_code=False)
    found = model.dtype
    wanted = getattr(torch, dtype) if dtype else torch.promote_types(found, getattr(torch, trained) if trained else found)
    lost, moved = 0.0, 0.0
    with torch.no_grad():
        for name in (name for name in weights if name.endswith(".lora_A.weight")):
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            weight = model.get_submodule(path).weight
            A_RI, B_OR = (torch.from_numpy(weights[key]) for key in (name, name.replace("lora_A", "lora_B")))
            exact_OI = weight.float() + scale * B_OR @ A_RI
            rounded_OI = exact_OI.to(wanted)
            moved += float((exact_OI - weight.float()).square().sum())
            lost += float((exact_OI - rounded_OI.float()).square().sum())
            weight.data = rounded_OI
    model.to(wanted).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base, trust_remote_code=False).save_pretrained(folder)
    readable = (folder / "config.json").stat().st_mode  # as the umask has it; safetensors writes for the owner alone
    for file in folder.iterdir():
        if file.is_file():  # a folder without the right to search it could not be read
            file.chmod(readable)
    return (max(0.0, 1 - (lost / moved) ** 0.5) if moved else 1.0), str(wanted).removeprefix("torch.")
