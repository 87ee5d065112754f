"""What helps at first contact: where one stands, a new configuration, every setting explained, and what a shell completes.

May import: flows.config, flows.near_names, flows.stages, flows.storage, flows.store, flows.run, flows.monitoring, flows.plan,
flows.suites.
"""
