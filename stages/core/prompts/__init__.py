"""Prompt styles: how a task is asked and how an answer is read.

Imports `values`; no torch.
"""
