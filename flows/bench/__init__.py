"""Measurements for `populora bench`, each next to a rival in the same run.

May import every room and torch; only `populora bench` imports it.
"""
