"""Arms times seeds: the specification, the flow that runs it, its cost, and the comparison of the runs.

Imports `flows.run`, `flows.execution`, `flows.benchmarks` and `flows.report`; Prefect in `flow` only.
"""
