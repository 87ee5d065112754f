"""The commands of `populora`, one module each: what it reads from the command line, and what it does.

May import every room; nothing but `flows.cli` imports it.
"""
