"""The commands of `populora`, one module each: its options, and the function that the command calls.

May import: flows, stages, torch (export_adapter pretrain_recipe), transformers (export_adapter pretrain_recipe), docker
(doctor).
"""
