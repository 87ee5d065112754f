"""The measurements of `populora bench`. Where a comparable tool exists, both are timed in the same run.

May import: flows, stages, torch, transformers, peft, prefect, docker, boto3.
"""
