"""The commands of `populora`, one module each: its options, and the function that the command calls.

May import: flows, stages, docker (doctor).
"""
