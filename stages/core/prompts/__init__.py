"""Prompt styles: how a task is asked and how an answer is read.

May import: stages.core.values.leading.
"""
