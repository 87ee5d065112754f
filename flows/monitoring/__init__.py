"""What a run's tables say while it runs: status, alarms, Prometheus telemetry and experiment trackers, and what it costs.

May import: flows.config, flows.settings, flows.stages, flows.storage, flows.run, flows.prefect_ops.prefect_api,
stages.analysis, stages.core.
"""
