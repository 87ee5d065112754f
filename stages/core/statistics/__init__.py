"""Estimates, paired differences and other statistics that tables and figures carry.

May import: stages.core.judging, stages.core.method, stages.core.tables.
"""
