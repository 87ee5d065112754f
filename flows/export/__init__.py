"""What leaves a run: an adapter as a PEFT folder, also on the Hugging Face hub, or as a merged model; the run's tasks with a data
card; its pages as a static site.

May import: flows.base_model, flows.config, flows.storage, flows.store (tasks), flows.backend, flows.run, flows.browser
(site), flows.pages (site site_library site_places), stages.reward, stages.core, torch (adapter), transformers (adapter).
"""
