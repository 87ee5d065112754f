"""The measurements of `populora bench`, each next to a rival in the same run.

May import: flows, stages, torch, transformers, peft, prefect, docker, boto3.
"""
