"""What a run will need, by arithmetic before it starts: tokens, FLOP, memory, seconds of each stage, hours and money.

Nothing here looks at a card or starts a process. May import: flows.config, flows.run.retention, flows.monitoring.cost_text,
flows.monitoring.prices, stages.core.prompts.
"""
