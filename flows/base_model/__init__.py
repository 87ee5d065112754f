"""The model that a run begins with: its commit on the Hugging Face Hub, its files, and what its folder says of it.

May import: flows.config, stages.core.
"""
