"""One run as artifacts: manifests, history, lease, resume, retention, forks, lineage, and what a stage reads and writes.

Imports `flows.store` and the configuration; no Prefect.
"""
