"""Python literals and their canonical typed text, read without evaluating anything.

May import: nothing of the project.
"""
