"""Save a model in training as a checkpoint that the engines read."""

import copy
import json
import os
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM

from stages.core.seed_model import pretraining, seed_tokenizer
from stages.core.seed_model.seed_tokenizer import Vocabulary


def save(model: LlamaForCausalLM, out: Path, vocabulary: Vocabulary = seed_tokenizer.COMPACT) -> None:
    """Save the checkpoint in bfloat16 with its tokenizer; each file is replaced atomically."""
    part = out / ".part"
    part.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(model).to(torch.bfloat16)
    ids = vocabulary.ids
    half.generation_config = GenerationConfig(
        eos_token_id=ids[seed_tokenizer.EOS], pad_token_id=ids[seed_tokenizer.PAD], do_sample=True
    )
    half.save_pretrained(part)
    documents = {
        "tokenizer.json": vocabulary.tokenizer_json(),
        "tokenizer_config.json": vocabulary.tokenizer_config(pretraining.WINDOW),
    }
    for name, document in documents.items():
        (part / name).write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for path in sorted(part.iterdir()):
        path.chmod(0o644)
        os.replace(path, out / path.name)
    part.rmdir()
