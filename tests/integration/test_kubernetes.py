"""The files for Kubernetes: the template fits Prefect's worker, nothing has more rights than it needs, no password is inside."""

import json
import re
from typing import Any

import pytest
import yaml

from flows.config import PROJECT

FOLDER = PROJECT / "infra" / "kubernetes"
TEMPLATE = json.loads((FOLDER / "worker-job-template.json").read_text())
POD = TEMPLATE["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
VALUES = {file.name: yaml.safe_load(file.read_text()) for file in sorted(FOLDER.glob("*.values.yaml"))}


def placeholders(values: Any) -> set[str]:
    return set(re.findall(r"{{ (\w+) }}", json.dumps(values)))


def test_every_variable_is_used_and_every_placeholder_declared() -> None:
    assert placeholders(TEMPLATE["job_configuration"]) == set(TEMPLATE["variables"]["properties"])


def test_the_job_is_one_that_prefects_worker_can_fill() -> None:
    manifest = TEMPLATE["job_configuration"]["job_manifest"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    assert POD["restartPolicy"] == "Never" and manifest["spec"]["backoffLimit"] == 0  # retries are Prefect's and ours
    assert [one["name"] for one in POD["containers"]] == ["prefect-job"]
    from prefect.utilities.templating import apply_values

    defaults = {name: field.get("default", "x") for name, field in TEMPLATE["variables"]["properties"].items()}
    filled = apply_values(TEMPLATE["job_configuration"], defaults)
    assert placeholders(filled) == set()
    assert filled["job_manifest"]["spec"]["ttlSecondsAfterFinished"] == 3600


def test_runs_have_no_privileges_and_no_account() -> None:
    container = POD["containers"][0]["securityContext"]
    assert POD["automountServiceAccountToken"] is False and POD["securityContext"]["runAsNonRoot"] is True
    assert container == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    mounted = {volume["name"]: volume for volume in POD["volumes"]}
    assert all("hostPath" not in volume for volume in mounted.values())  # never the node's own Docker daemon


def test_secrets_come_from_secrets() -> None:
    names = [one["name"] for one in POD["containers"][0]["env"] if "valueFrom" in one]
    assert names == ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    for name, values in VALUES.items():
        assert not re.search(r"(?i)(password|secret[-_]?key|auth[-_]?string): *['\"]?\w{8,}", yaml.safe_dump(values)), name


@pytest.mark.parametrize("name", sorted(VALUES))
def test_values_say_who_runs_and_how_much(name: str) -> None:
    part = VALUES[name]["server" if "server" in name else "worker"]
    assert part["podSecurityContext"]["runAsNonRoot"] and part["containerSecurityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert part["resources"]["limits"]["memory"] and part["image"]["prefectTag"] != "latest"
