"""`populora gpu-check`: what to run first on a new GPU machine."""

import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.commands.arguments import Add, add_settings
from flows.commands.doctor import examine
from flows.config import ConfigError, RunConfig, apply, dump, load
from flows.plan.decoder_shape import shape_of

if TYPE_CHECKING:
    from flows.gpu_check.finding import CheckFinding

FAILED = 1
VLLM_PYTHON = ".venv-vllm/bin/python"  # as `make vllm` makes it
DOCKER = ("Docker", "sandbox image")  # not needed by the local sandbox


def add(command: Add) -> None:
    """Add the command and its options."""
    summary = "Check kernels, engine, trainer and one short generation on this machine; prints a page and writes a JSON file."
    parser = command("gpu-check", summary, gpu_check)
    parser.add_argument("-c", "--config", help="TOML file, or a name in infra/runs (default: one-gpu; without a GPU, smoke)")
    add_settings(parser, "override a setting, e.g. model.rank=8")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="longest completion (default: 64)")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="the JSON file (default: gpu-check.json)")


def gpu_check(arguments: Namespace) -> int:
    """Print a line for every finding as it is made, and the summary; 0 if nothing failed, otherwise 1."""
    from flows.cards import cards
    from flows.gpu_check.finding import summary, write_json

    if arguments.tokens < 1:
        raise ConfigError("--tokens must be positive")
    source = arguments.config or ("one-gpu" if cards() else "smoke")
    config = load(source, arguments.set)
    findings: list[CheckFinding] = []
    started = time.monotonic()
    try:
        for finding in _findings(config, source, arguments):
            findings.append(replace(finding, elapsed_s=round(time.monotonic() - started, 1)))
            print(findings[-1], flush=True)
    finally:
        write_json(arguments.out, dump(config), findings)
    print(f"{summary(findings)} All figures: {arguments.out}")
    return FAILED if any(finding.good is False for finding in findings) else 0


def _findings(config: RunConfig, source: str, arguments: Namespace) -> Iterator["CheckFinding"]:
    from flows.gpu_check import generation
    from flows.gpu_check.finding import guarded

    yield from guarded("machine", lambda: _doctor(config.sandbox.kind == "docker"))
    yield from guarded("model", lambda: _on_the_model(config, arguments.tokens))
    with tempfile.TemporaryDirectory(prefix="populora-gpu-check-") as folder:
        own = Path(folder)
        yield from guarded("generation", lambda: generation.examine(config, source, arguments.set, own, arguments.tokens))


def _on_the_model(config: RunConfig, tokens: int) -> Iterator["CheckFinding"]:
    """Check device, kernels, engine and trainer in this process, on one card, and leave the card free."""
    from flows.cards import one_card
    from flows.execution.preflight import cards_for
    from flows.gpu_check import machine
    from flows.gpu_check.finding import guarded
    from stages.core.training.cpu import use_cpu

    use_cpu(config.threads)
    with one_card(cards_for(config)):  # before torch looks for cards
        device = machine.device_of(config.model.device)
        yield from guarded("machine", lambda: machine.examine(config, device))
        yield from _engine_and_trainer(config, device, tokens)
        machine.release(device)
        yield from guarded("other engine", lambda: _other_engine(config, device, tokens))
        machine.release(device)


def _engine_and_trainer(config: RunConfig, device: str, tokens: int) -> Iterator["CheckFinding"]:
    from flows.backend import Backend
    from flows.execution.recomputation import settled
    from flows.gpu_check import attention, kernels, policy
    from flows.gpu_check.finding import guarded
    from flows.gpu_check.machine import MemoryMeter

    with closing(Backend(settled(apply(dump(config), [f"solve.max_new_tokens={tokens}"])))) as backend:
        shape = shape_of(backend.model_path)
        if shape is not None:
            widths = config.model.rank, shape.hidden, shape.feed_forward
            yield from guarded("kernels", lambda: kernels.examine(device, backend.dtype, *widths))
        yield from guarded("policy", policy.PolicyCheck(backend, device, MemoryMeter(device)).examine)
        yield from guarded("attention", lambda: attention.examine(device, backend.dtype))
        flex = config.learning.attention == "flex"
        yield from guarded("flex attention", lambda: attention.examine_flex(device, backend.dtype, flex))


def _other_engine(config: RunConfig, device: str, tokens: int) -> Iterator["CheckFinding"]:
    """Check the engine that the configuration does not use, too, where it is installed and the plan says that it fits."""
    from flows.backend import Backend
    from flows.execution.recomputation import settled
    from flows.gpu_check import machine, policy
    from flows.gpu_check.finding import CheckFinding

    kind = "vllm" if config.engine.kind == "transformers" else "transformers"
    chosen = [f"solve.max_new_tokens={tokens}", f"engine.kind={kind}", f"engine.python={config.engine.python or VLLM_PYTHON}"]
    with closing(Backend(settled(apply(dump(config), chosen)))) as backend:
        reason = machine.unusable(backend.config, device, backend.model_path)
        if reason:
            yield CheckFinding(f"engine {kind}", None, f"not checked: {reason}")
            return
        for finding in policy.PolicyCheck(backend, device, machine.MemoryMeter(device)).examine():
            yield replace(finding, name=f"{kind}: {finding.name}")


def _doctor(with_docker: bool) -> Iterator["CheckFinding"]:
    from flows.gpu_check.finding import CheckFinding

    for found in examine(None):
        optional = found.optional or (found.name in DOCKER and not with_docker)
        yield CheckFinding(found.name, None if optional and not found.good else found.good, found.detail)
