"""The rules of the method: rewards, advantages, ratings, gates, the task buffer and what a proposal prompt shows.

May import: stages.core.engines.protocol, stages.core.judging (trace_reward likeness), stages.core.prompts,
stages.core.randomness, stages.core.values.canonical.
"""
