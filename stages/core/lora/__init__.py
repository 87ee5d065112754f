"""LoRA adapters as values: evolution operators, their algebra, distances, and the PEFT files.

May import: torch.
"""
