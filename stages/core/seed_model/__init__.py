"""The recipes of the seed models: programs, tokenizers, pretraining, and the suites `probe` and `staircase`.

May import: stages.core.engines.protocol, stages.core.judging, stages.core.prompts, stages.core.sandbox, stages.core.values, torch,
transformers.
"""
