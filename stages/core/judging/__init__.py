"""What is asked of the sandbox, and how its answers become a status.

May import: stages.core.row_errors, stages.core.sandbox, stages.core.values.
"""
