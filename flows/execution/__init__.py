"""Where a stage runs: the flow's session, stage subprocesses, work pools, Ray nodes, preflight checks and clean-up.

May import: flows.base_model, flows.cards, flows.notes, flows.config, flows.settings, flows.choices, flows.stages,
flows.storage, flows.suites (recorded), flows.backend, flows.steps, flows.run, flows.plan, flows.monitoring, flows.benchmarks,
stages.analysis, stages.core, prefect (pools flow_cleanup), ray (ray_cluster).
"""
