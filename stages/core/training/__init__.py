"""The grouped trainer: many adapters in one forward and backward pass over one frozen base.

May import: stages.core.progress, stages.core.tables, stages.core.lora, torch, transformers (attention).
"""
