"""What a run's tables say while it runs: status, live state, cost, alarms and Prometheus telemetry.

May import: flows.config, flows.settings, flows.stages, flows.storage, flows.store, flows.run, flows.prefect_password,
stages.analysis, stages.core.
"""
