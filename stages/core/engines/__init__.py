"""Engines that generate completions with adapters: transformers and vLLM, behind one protocol.

Imports torch and `training`'s grouped layers.
"""
