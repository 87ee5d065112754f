"""Python literals and their canonical typed text, read without evaluating anything.

Imports nothing of the project.
"""
