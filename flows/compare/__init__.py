"""Runs of a store side by side: the list to choose them from, and what they differ in, also while they run.

May import: flows.base_model, flows.config, flows.near_names, flows.stages, flows.storage, flows.store, flows.run,
flows.monitoring, stages.analysis, stages.core.
"""
