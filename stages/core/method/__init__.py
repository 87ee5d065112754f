"""The rules of the method: rewards, advantages, ratings, gates, the task buffer and prompts of a proposal round.

Imports `stages.core.tables`, `statistics` and `judging`; no torch.
"""
