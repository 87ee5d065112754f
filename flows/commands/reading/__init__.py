"""The commands that read what runs have stored and change nothing of it, one module each.

May import: flows.
"""
