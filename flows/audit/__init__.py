"""Checks of a finished or damaged run: file digests, references, the method's invariants and replayed stages.

Imports `flows.run`, `flows.store` and pure stages; no Prefect.
"""
