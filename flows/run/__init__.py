"""One run as artifacts: manifests, history, lease, resume, retention, forks, lineage, and what a stage reads and writes.

May import: flows.base_model (resume), flows.config, flows.settings, flows.near_names, flows.stages, flows.storage,
flows.store, stages.core.
"""
