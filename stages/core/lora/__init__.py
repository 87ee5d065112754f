"""LoRA adapters as values: evolution operators, an evolution strategy, their algebra, distances, and the PEFT files.

May import: stages.core.randomness (strategy), torch.
"""
