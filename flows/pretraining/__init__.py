"""The recipes of `populora pretrain`: how the shipped models are trained from scratch, scored, and given their model cards.

May import: flows.config, stages.core, torch (checkpoint reasoner_recipe), transformers (checkpoint seed_recipe reasoner_recipe).
"""
