"""The problems of suites: the project's own, and public ones from a folder or the hub, checked against what is pinned.

May import: flows.base_model, flows.config, flows.near_names, flows.settings, flows.storage, stages.
"""
