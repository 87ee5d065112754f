"""The recipe of the shipped seed model: programs, tokenizer, pretraining and its probe.

May import: stages.core.engines.protocol, stages.core.judging, stages.core.prompts, stages.core.sandbox, stages.core.values,
torch, transformers.
"""
