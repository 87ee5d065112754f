"""LoRA adapters as values: evolution operators, their algebra, distances, and the PEFT files.

Imports torch; no engine and no trainer.
"""
