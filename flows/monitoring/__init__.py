"""What a run's tables say while it works: tables of a run, status, alarms, Prometheus telemetry and experiment trackers.

Imports `flows.run` and `flows.store`; no Prefect.
"""
