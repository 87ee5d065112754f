"""Numbers about runs: a generation's metrics, the summary line, and comparisons between runs.

Imports `stages.core`; pure, as the stages are.
"""
