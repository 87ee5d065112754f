"""The notes that a run shows in the Prefect UI.

May import: flows.config, flows.form_links, flows.stages, flows.storage, flows.run, flows.monitoring, stages.analysis,
stages.figures, stages.core, prefect (publish telling endings apprise_block).
"""
