"""The self-contained HTML report of a run.

Imports `flows.run`, `flows.monitoring` and figures; no Prefect.
"""
