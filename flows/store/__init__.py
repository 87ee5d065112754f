"""Object stores behind one protocol: a local folder and S3-compatible servers, with their errors; tables as bytes.

May import: stages.core.tables, stages.core.unavailable, boto3.
"""
