"""The notes that a run shows in the Prefect UI.

Imports `flows.run`, `flows.monitoring` and figures; Prefect in `publish` only.
"""
