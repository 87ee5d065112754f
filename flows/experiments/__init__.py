"""Arms times seeds: the specification, the flow that runs it, its cost, and the comparison of its runs; children against clones.

May import: flows.base_model, flows.generation, flows.config, flows.settings, flows.storage, flows.suites, flows.store,
flows.run, flows.benchmarks, flows.execution, flows.plan, flows.monitoring, flows.report, flows.train, stages.analysis,
stages.figures, stages.core, prefect (flow).
"""
