"""Object stores behind one protocol: a local folder and S3-compatible servers, with their errors.

May import: stages.core.unavailable, boto3.
"""
