"""Estimates, paired differences and other statistics that tables and figures carry.

Imports `stages.core.tables` only.
"""
