"""Where a stage runs: the session of a flow, stage subprocesses, work pools, Ray nodes, preflight checks and clean-up.

Imports `flows.run`, `flows.monitoring`, `flows.benchmarks` and the steps; Prefect in `pools`, `ray_cluster` and `flow_cleanup` only.
"""
