"""The commands of `populora`, one module each: its options, and the function that the command calls.

May import: flows, stages, torch (pretrain_recipe reasoner_recipe), transformers (pretrain_recipe reasoner_recipe), docker
(doctor).
"""
