"""Benchmark suites: their problems, how they are asked, how answers are graded, and the scores of contestants.

May import: stages.core.child_process, stages.core.prompts, stages.core.sandbox, stages.core.tables, stages.core.unavailable,
stages.core.values.
"""
