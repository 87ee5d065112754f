"""Figures, one function for each question: tables in, matplotlib figures out.

Imports `stages.core` and `stages.analysis`; the only room with matplotlib.
"""
