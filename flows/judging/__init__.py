"""The judge on its own, as `populora verify` and `populora grade` run it: JSON lines in, a verdict per line out.

May import: stages.core.
"""
