"""The steps of a generation: what each stage reads, the stage, and what is written of it; also in the parts of several machines.

May import: flows.added_rewards, flows.backend, flows.base_model, flows.benchmarks, flows.choices, flows.config, flows.plan,
flows.program, flows.run, stages.
"""
