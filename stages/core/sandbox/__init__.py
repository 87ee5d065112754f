"""Sandboxes that run model-written programs: Docker containers or local processes, behind one protocol.

Imports `values`; Docker in `docker` only.
"""
