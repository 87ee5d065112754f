"""What pages show of the runs in a store, as values: tables, tasks, adapters, figures, runs side by side. No template, no server.

May import: flows.config, flows.near_names, flows.program, flows.stages, flows.storage, flows.store, flows.run, flows.monitoring,
flows.report, flows.compare, stages.analysis, stages.figures, stages.core.
"""
