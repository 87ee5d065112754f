"""The measurements of `populora bench`, each against a rival in the same run.

May import: flows, stages, torch, transformers, peft, prefect, docker, boto3.
"""
