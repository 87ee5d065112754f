"""The artifact browser: a server for the pages of every run in a store, with their addresses, templates, scripts and limits.

May import: flows.pages, flows.program, flows.servers, flows.config, flows.form_links, flows.storage, flows.run,
flows.monitoring, flows.report, flows.compare, stages.core.
"""
