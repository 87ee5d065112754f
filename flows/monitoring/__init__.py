"""What a run's tables say while it runs: status, live state, cost, alarms, Prometheus telemetry and experiment trackers.

May import: flows.config, flows.settings, flows.stages, flows.storage, flows.store, flows.run, flows.prefect_ops.prefect_api,
stages.analysis, stages.core.
"""
