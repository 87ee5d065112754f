"""Everything that serves Prefect: deployments and their flows, the server and its walls, pool workers, `populora serve`.

Imports every room below the commands.
"""
