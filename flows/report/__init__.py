"""The self-contained HTML report of a run.

May import: flows.config, flows.stages, flows.storage, flows.store, flows.run, flows.monitoring, stages.figures, stages.core.
"""
