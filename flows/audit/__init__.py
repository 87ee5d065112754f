"""Checks of a stored run and of a store: digests, references, the method's invariants, replayed stages.

May import: flows.added_rewards, flows.config, flows.choices, flows.storage, flows.store, flows.backend,
flows.run, flows.trust, stages.
"""
