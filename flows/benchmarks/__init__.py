"""Benchmarks of members, models and stored completions: who is scored, on which problems, when, and where scores are kept.

Imports `flows.run`, `flows.backend` and the suites of `stages`; no Prefect.
"""
