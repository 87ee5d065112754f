"""What to run first on a new GPU machine: kernels, engine, trainer and one short generation of a configuration, each measured.

Every check compares with something that the project states elsewhere: the reference loop, the plan's memory, the drift bounds.
May import: flows.cards, flows.choices, flows.config, flows.backend, flows.storage, flows.run, flows.plan, flows.monitoring,
stages.core, torch.
"""
