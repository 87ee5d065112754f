"""Engines that generate completions with adapters, transformers and vLLM, behind one protocol.

May import: stages.core.progress, stages.core.lora, stages.core.training, stages.core.tables,
stages.core.unavailable, torch, transformers, vllm.
"""
