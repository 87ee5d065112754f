"""Numbers about runs: a generation's metrics, its summary line, and comparisons between runs.

May import: stages.core.
"""
