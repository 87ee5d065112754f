"""The files for Kubernetes: the template fits Prefect's worker, nothing has more rights than it needs, no password is inside."""

import json
import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from flows.allowed import FOLDERS
from flows.config import PROJECT, load
from flows.execution.flow_cleanup import HEARTBEAT_SECONDS
from flows.plan.decoder_shape import shape_of
from flows.prefect_ops import ui_server

FOLDER = PROJECT / "infra" / "kubernetes"
TEMPLATES = {name: json.loads((FOLDER / f"{name}-job-template.json").read_text()) for name in ("worker", "gpu")}
TEMPLATE = TEMPLATES["worker"]
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


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_jobs_daemon_has_the_sandbox_image_before_the_job_starts(name: str) -> None:
    daemon, image = filled(name)["initContainers"]  # started in this order, each one up or done before the next
    assert daemon["restartPolicy"] == "Always" and daemon["startupProbe"] and "restartPolicy" not in image
    environment = {one["name"]: one["value"] for one in image["env"]}
    assert f"--host={environment['DOCKER_HOST']}" in daemon["args"]
    (job,) = filled(name)["containers"]
    assert {"name": "DOCKER_HOST", "value": environment["DOCKER_HOST"]} in job["env"]
    assert image["command"][-1].endswith('docker tag "$IMAGE" populora-sandbox:local')  # the default of sandbox.image
    assert environment["IMAGE"].partition("/")[0] == job["image"].partition("/")[0]
    assert image["securityContext"] == job["securityContext"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_job_may_open_the_socket_of_the_rootless_daemon(name: str) -> None:
    """Inside the daemon's user namespace, group 0 is group 1000 of the pod; no other number of the pod exists there."""
    pod = filled(name)
    daemon = pod["initContainers"][0]
    assert "--group=0" in daemon["args"]
    assert pod["securityContext"]["supplementalGroups"] == [daemon["securityContext"]["runAsGroup"]]


@pytest.mark.parametrize("name", TEMPLATES)
def test_one_secret_opens_a_private_registry_to_nodes_server_and_daemon(name: str) -> None:
    pod = filled(name)
    (secret,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    assert [{"name": secret["secretName"]}] == pod["imagePullSecrets"] and secret["optional"]
    assert [secret["secretName"]] == VALUES["prefect-server.values.yaml"]["global"]["prefect"]["image"]["pullSecrets"]
    image = pod["initContainers"][1]
    (mounted,) = (mount["mountPath"] for mount in image["volumeMounts"] if mount["name"] == "registry")
    assert {"name": "DOCKER_CONFIG", "value": mounted} in image["env"]


def test_secrets_come_from_secrets() -> None:
    names = [one["name"] for one in POD["containers"][0]["env"] if "valueFrom" in one]
    assert names == ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    for name, values in VALUES.items():
        assert not re.search(r"(?i)(password|secret[-_]?key|auth[-_]?string): *['\"]?\w{8,}", yaml.safe_dump(values)), name


@pytest.mark.parametrize("name", sorted(VALUES))
def test_values_say_who_runs_and_how_much(name: str) -> None:
    part = VALUES[name]["server" if "server" in name else "worker"]
    assert part["podSecurityContext"]["runAsNonRoot"] and part["containerSecurityContext"]["capabilities"] == {"drop": ["ALL"]}
    image = part["image"] if "worker" in name else VALUES[name]["global"]["prefect"]["image"]  # where each chart looks for it
    assert part["resources"]["limits"]["memory"] and image["prefectTag"] != "latest"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_job_is_heard_before_it_counts_as_lost_whoever_starts_it(name: str) -> None:
    (job,) = filled(name)["containers"]
    beats = {"name": "PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "value": str(HEARTBEAT_SECONDS)}
    assert beats in job["env"]
    image = (PROJECT / "containers" / name / "Dockerfile").read_text()
    assert f" {beats['name']}={beats['value']} " in image.rpartition("\nENV ")[2]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_job_may_name_no_functions_unless_the_template_says_so(name: str) -> None:
    (job,) = filled(name)["containers"]
    assert {"name": FOLDERS, "value": ""} in job["env"]


SCALE = {"Mi": 2**20, "Gi": 2**30}


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) * SCALE[quantity[-2:]]


def filled(name: str) -> dict[str, Any]:
    """The pod of a template at its defaults, as Prefect's worker fills it."""
    from prefect.utilities.templating import apply_values

    defaults = {key: field.get("default", "x") for key, field in TEMPLATES[name]["variables"]["properties"].items()}
    found: dict[str, Any] = apply_values(TEMPLATES[name]["job_configuration"], defaults)
    return dict(found["job_manifest"]["spec"]["template"]["spec"])


def test_the_two_templates_differ_in_size_and_image_only() -> None:
    worker, gpu = (TEMPLATES[name]["variables"]["properties"] for name in ("worker", "gpu"))
    assert {name for name in worker if worker[name] != gpu[name]} == {"image", "memory", "shared_memory", "gpus"}
    assert TEMPLATES["worker"]["job_configuration"] == TEMPLATES["gpu"]["job_configuration"]
    assert filled("gpu")["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_job_has_shared_memory_and_finds_models(name: str) -> None:
    pod = filled(name)
    (job,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in job["volumeMounts"]}
    assert mounted["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    claim = yaml.safe_load((FOLDER / "models.yaml").read_text())
    assert mounted["/models"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert {"name": "HF_HOME", "value": "/models"} in job["env"]
    dockerfile = (PROJECT / "containers" / "gpu" / "Dockerfile").read_text()
    assert "HF_HOME=/models" in dockerfile


def test_a_gpu_job_holds_the_published_setting() -> None:
    """The model asleep in vLLM and once more while the trainer loads it, all adapters with moments, and in shared memory."""
    config = load("paper")
    shape = shape_of(config.model.name)
    assert shape is not None
    linears, members = shape.linears(), config.population.teachers + config.population.students
    adapter = shape.layers * sum(config.model.rank * sum(linears[target]) for target in config.model.targets)
    pod = filled("gpu")
    shared = bytes_of(next(volume for volume in pod["volumes"] if volume["name"] == "shm")["emptyDir"]["sizeLimit"])
    assert shared >= members * 4 * adapter
    limit = bytes_of(pod["containers"][0]["resources"]["limits"]["memory"])
    assert limit >= shared + 2 * 2 * shape.parameters + members * 12 * adapter


CHART_VOLUMES, CHART_MOUNTS = {"scratch"}, {"/home/prefect", "/tmp", "/ui_build"}  # of Prefect's chart for the server, 2026


def test_the_server_fits_prefects_chart() -> None:
    server = VALUES["prefect-server.values.yaml"]["server"]
    assert server["command"] == ["python"] and server["args"][:2] == ["-m", ui_server.__name__]  # both, or the chart adds its own
    assert ui_server.options().parse_args(server["args"][2:]).port == 4200
    volumes = {one["name"] for one in server["extraVolumes"]}
    mounts = {one["mountPath"]: one["name"] for one in server["extraVolumeMounts"]}
    assert not volumes & CHART_VOLUMES and not mounts.keys() & CHART_MOUNTS and set(mounts.values()) == volumes


def test_the_server_answers_to_the_names_that_workers_and_people_call() -> None:
    worker = VALUES["prefect-worker.values.yaml"]["worker"]["selfHostedServerApiConfig"]["apiUrl"]
    environment = {one["name"]: one.get("value") for one in VALUES["prefect-server.values.yaml"]["server"]["env"]}
    full, page = urlsplit(worker).hostname, urlsplit(environment["PREFECT_UI_URL"]).hostname
    assert full == "prefect-server.populora.svc.cluster.local"
    short = {full.removesuffix(end) for end in (".svc.cluster.local", ".populora.svc.cluster.local", ".cluster.local")}
    assert set(environment["POPULORA_HOSTS"].split(",")) == {full, page, *short}
