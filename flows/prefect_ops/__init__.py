"""Everything that serves Prefect: deployments and their flows, the server, its workers, and `populora serve`.

May import: flows.allowed, flows.cards, flows.generation, flows.servers, flows.config, flows.form_links,
flows.prefect_password, flows.program, flows.storage, flows.store, flows.run, flows.stages, flows.suites, flows.benchmarks,
flows.execution, flows.monitoring, flows.notes, flows.report, flows.train, stages.analysis, stages.core, prefect.
"""
