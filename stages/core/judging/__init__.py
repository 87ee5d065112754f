"""What is asked of the sandbox and how its answers become a status.

Imports `values` and `sandbox`; no torch.
"""
