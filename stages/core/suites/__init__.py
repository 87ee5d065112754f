"""Public benchmark suites: their problems, how they are asked, and how answers are scored.

May import: stages.core.sandbox, stages.core.tables, stages.core.values.
"""
