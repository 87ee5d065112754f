"""Object stores behind one protocol: a local folder and S3-compatible servers, with their errors.

Imports `stages.core.tables` only, and no other room.
"""
