"""`populora try-prompts`: what a model makes of each prompt style."""

import json
import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from flows.base_model.folder import LARGE, ModelFolder
from flows.commands.arguments import Add, add_settings
from flows.config import ConfigError, apply
from stages.core.prompts.styles import Kind

if TYPE_CHECKING:
    from flows.backend import Backend
    from flows.monitoring.meter import Meter
    from stages.trial import StyleAttempt

STYLES = ("compact", "trace", "document", "chat", "azr")
GROUP, REFERENCES, SAMPLES, SHOWN = 4, 3, 3, 600


def add(command: Add) -> None:
    """Add the command and its options."""
    parser = command("try-prompts", "Show what a model makes of each prompt style, and which one to use.", try_prompts)
    parser.add_argument("model", metavar="MODEL", help="folder of a checkpoint, or a name on the Hugging Face hub")
    parser.add_argument("--style", action="append", choices=STYLES, help="style to try (repeatable; default: those that may fit)")
    parser.add_argument("--rows", type=int, default=8, metavar="N", help="proposals and answers of each kind (default: 8)")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="longest completion (default: 256)")
    parser.add_argument("--json", action="store_true", help="print one JSON object with all figures and samples instead")
    add_settings(parser, "a setting, e.g. threads=8, sandbox.kind=local or engine.kind=vllm")


def try_prompts(arguments: Namespace) -> int:
    """Print a table row for each style, part and kind as soon as its style is done, then samples and the style to use."""
    from flows.backend import Backend
    from flows.base_model import hub
    from flows.benchmarks.targets import model_name
    from flows.cards import one_card, usable
    from flows.monitoring.meter import Meter
    from flows.monitoring.progress import Display

    if arguments.rows < 1 or arguments.max_new_tokens < 1:
        raise ConfigError("--rows and --max-new-tokens must be positive")
    values = {
        "model": {"name": model_name(arguments.model), "rank": 1, "style": "document"},
        "propose": {"references": REFERENCES},
    }
    config = hub.pinned(apply(values, arguments.set))
    found: list[StyleAttempt] = []
    with Display() as display, display.step("try-prompts") as shown, one_card(usable(config.model.device)):
        meter = Meter(shown)
        with closing(Backend(config, meter)) as backend:
            backend.check()
            if not arguments.json:
                display.print(_HEADER)
            for name, attempts, said in _tried(backend, meter, arguments):
                found += attempts
                display.print(said, sys.stderr)
                if not arguments.json:
                    display.print("\n".join(_line(name, part, kind, own) for (part, kind), own in _parts(attempts)))
    print(json.dumps(_as_json(arguments.model, found)) if arguments.json else f"{_samples(found)}\n{_advice(found)}")
    return 0


def _tried(backend: "Backend", meter: "Meter", arguments: Namespace) -> Iterator[tuple[str, list["StyleAttempt"], str]]:
    """Yield each style with its attempts and what they took."""
    from stages.core.method.proposing import PromptTooLong, ProposalPlan
    from stages.trial import TrialPlan, stored_tasks, try_style

    config, described = backend.config, backend.model_folder()
    rule = config.propose
    plan = ProposalPlan(
        1, GROUP, REFERENCES, rule.num_inputs, min(arguments.max_new_tokens, backend.window // 2), config.engine.temperature
    )
    trial = TrialPlan(plan, arguments.rows, plan.max_new_tokens, config.seed)
    stored = stored_tasks(backend.sandbox(), backend.shipped_tasks(), rule.num_inputs)
    for name in arguments.style or fitting(described):
        began = time.monotonic()
        meter.begin()
        style = backend.style_named(name)
        try:
            attempts = try_style(backend.engine({}), backend.sandbox(), style, name, stored, trial)
        except PromptTooLong as error:
            raise ConfigError(f"style {name}: {error}; leave it out") from error
        tokens, seconds = sum(one.tokens for one in attempts), time.monotonic() - began
        yield name, attempts, f"{name}: {len(attempts)} completions, {tokens} tokens in {seconds:.0f} s"


def fitting(described: ModelFolder) -> tuple[str, ...]:
    """Return the styles that a model may follow: it has the tokens, the template or the size for them."""
    if described.style in ("compact", "trace"):
        return (described.style,)
    chat = ("chat",) if described.has_template else ()
    return ("document", *chat, *(("azr",) if described.parameters >= LARGE else ()))


def _parts(attempts: Sequence["StyleAttempt"]) -> list[tuple[tuple[str, Kind], list["StyleAttempt"]]]:
    keys = dict.fromkeys((one.part, one.kind) for one in attempts)
    return [(key, [one for one in attempts if (one.part, one.kind) == key]) for key in keys]


_COLUMNS = "{:9} {:8} {:10} {:>4} {:>10} {:>6} {:>7} {:>6} {:>6}  {}"
_HEADER = _COLUMNS.format("style", "part", "kind", "n", "readable %", "± s.e.", "good %", "± s.e.", "tokens", "why not")


def _line(name: str, part: str, kind: Kind, own: Sequence["StyleAttempt"]) -> str:
    from stages.trial import reasons

    numbers = _numbers(own)
    why = ", ".join(f"{reason} {count}" for reason, count in reasons(own)[:4])
    shares = (f"{100 * numbers[key]:.1f}" for key in ("readable", "readable_stderr", "good", "good_stderr"))
    return _COLUMNS.format(name, part, kind, len(own), *shares, f"{numbers['tokens']:.0f}", why)


def _numbers(own: Sequence["StyleAttempt"]) -> dict[str, float]:
    """Return shares with their standard errors, and mean lengths. `good`: valid tasks, or correct answers."""
    n, readable, good = len(own), sum(one.readable for one in own), sum(one.good for one in own)
    return {
        "n": n,
        "readable": readable / n,
        "readable_stderr": _stderr(readable / n, n),
        "good": good / n,
        "good_stderr": _stderr(good / n, n),
        "tokens": sum(one.tokens for one in own) / n,
        "prompt_tokens": sum(one.prompt for one in own) / n,
    }


def _stderr(share: float, n: int) -> float:
    """Return the standard error of a share of `n` attempts; 0 where there is only one."""
    return math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else 0.0


def _chosen(own: Sequence["StyleAttempt"]) -> list["StyleAttempt"]:
    """Return samples: a good one first, then a readable one and a refused one where there are such."""
    order = sorted(range(len(own)), key=lambda at: ((own[at].good, own[at].readable), at))
    picked = dict.fromkeys([order[-1], order[0], order[len(order) // 2]])
    return [own[at] for at in picked][:SAMPLES]


def _samples(found: Sequence["StyleAttempt"]) -> str:
    blocks = []
    for name in dict.fromkeys(one.style for one in found):
        for (part, kind), own in _parts([one for one in found if one.style == name]):
            for one in _chosen(own):
                text = one.text if len(one.text) <= SHOWN else one.text[:SHOWN] + " …"
                detail = f" ({visible(one.detail)})" if one.detail else ""
                blocks.append(f"--- {name}, {part} {kind}: {one.status}{detail}\n{visible(text)}")
    return "\n".join(["", *blocks])


def visible(text: str) -> str:
    """Return model text that is safe to print on a terminal: control characters other than line breaks are escaped."""
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)


def _advice(found: Sequence["StyleAttempt"]) -> str:
    from stages.trial import best_style

    best = best_style(found)
    if best is None:
        return "\nuse      no style: the model wrote no valid proposal with readable answers; a run cannot learn from it"
    valid = _numbers([one for one in found if one.style == best and one.part == "propose"])
    solved = _numbers([one for one in found if one.style == best and one.part == "solve"])
    shares = [
        f"{100 * part[key]:.0f} ± {100 * part[key + '_stderr']:.0f} %" for part, key in ((valid, "good"), (solved, "readable"))
    ]
    return (
        f'\nuse      model.style = "{best}": {shares[0]} of its proposals are valid, {shares[1]} of its answers can be read '
        f"(n = {valid['n']:.0f} each)"
    )


def _as_json(model: str, found: Sequence["StyleAttempt"]) -> dict[str, Any]:
    from stages.trial import best_style, reasons

    rows = []
    for name in dict.fromkeys(one.style for one in found):
        for (part, kind), own in _parts([one for one in found if one.style == name]):
            samples = [{"status": one.status, "detail": one.detail, "text": one.text} for one in _chosen(own)]
            rows.append(
                {"style": name, "part": part, "kind": kind, **_numbers(own), "reasons": dict(reasons(own)), "samples": samples}
            )
    return {"model": model, "use": best_style(found), "rows": rows}
