"""The commands that study a machine, a model or the method itself instead of working with one run, one module each.

May import: flows, stages.
"""
