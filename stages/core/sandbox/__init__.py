"""Sandboxes that run model-written programs, Docker containers or local processes, behind one protocol.

May import: stages.core.values, stages.core.unavailable, docker (docker).
"""
