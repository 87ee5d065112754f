"""Benchmarks of members, models and stored completions: who is scored, on what, when, and where scores are kept.

May import: flows.base_model, flows.cards, flows.config, flows.settings, flows.near_names, flows.storage, flows.suites,
flows.store (nightly), flows.run, flows.backend, flows.monitoring, flows.trust, stages.
"""
