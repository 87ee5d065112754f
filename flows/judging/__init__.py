"""The standalone judge of `populora verify` and `populora grade`: JSON lines in, a verdict per line out.

May import: stages.core.
"""
