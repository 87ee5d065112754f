"""What leaves a run: an adapter as a PEFT folder or a merged model, for the Hugging Face hub if wanted, the run's tasks with a data
card, and its pages as a static site.

May import: flows.config, flows.storage, flows.store, flows.backend, flows.run, flows.browser (site), stages.reward, stages.core,
torch (adapter), transformers (adapter).
"""
