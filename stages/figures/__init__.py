"""Figures, one function for each question: tables in, matplotlib figures out.

May import: stages.core, matplotlib.
"""
