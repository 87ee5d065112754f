"""What leaves a run: an adapter as a PEFT folder or a merged model, and the run's tasks with a data card.

May import: flows.config, flows.storage, flows.backend, flows.run, stages.reward, stages.core, torch (adapter), transformers
(adapter).
"""
