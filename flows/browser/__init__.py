"""Read-only pages of every run in a store.

May import: flows.servers, flows.config, flows.near_names, flows.program, flows.stages, flows.storage, flows.store, flows.run,
flows.monitoring, flows.report, flows.compare, stages.analysis, stages.figures, stages.core.
"""
