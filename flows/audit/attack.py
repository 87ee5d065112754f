"""`populora attack`: the attack catalogue against this machine's own Docker, runtime and kernel, and which walls held.

Every attack is followed by an honest program, which must be unaffected. Then the texts given as answers are graded, and the
walls that the sandbox reads back from inside are listed. Run it after a change of kernel, daemon, runtime or base image.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TextIO

from flows.audit.attack_catalogue import ANSWERS, ATTACKS, GROUPS, Attack
from flows.config import ConfigError
from stages.core.judging.judge import AnswerItem, judge_answers
from stages.core.sandbox.protocol import Job, Sandbox, Verdict

HONEST = Job("def f(x):  # other-job\n    return [x, {x: (x,)}]", "'ok'", True)
_UNHARMED = "['ok', {'ok': ('ok',)}]"


@dataclass(frozen=True)
class AttackOutcome:
    """The outcome of one attack: its word, its details, and whether the walls held."""

    row: str
    name: str
    group: str
    word: str
    detail: str
    held: bool

    def text(self) -> str:
        """One line for people."""
        return f"{'held' if self.held else 'LOST':5} {self.row:>5} {self.name:32} {self.word}" + (
            "" if self.held else f": {self.detail[:200]}"
        )


def outcomes(sandbox: Sandbox, attacks: Sequence[Attack]) -> Iterator[AttackOutcome]:
    """Yield the outcome of every attack, in order, as the verdicts arrive."""
    jobs = [job for attack in attacks for job in (Job(attack.program, attack.input, True), HONEST)]
    verdicts = sandbox.run(jobs)
    for attack in attacks:
        verdict, after = next(verdicts), next(verdicts)
        word, detail = _word(attack, verdict), verdict.text or verdict.detail
        if after.text != _UNHARMED:
            word, detail = "harmed", f"the next program got {after.status} {after.text or after.detail}"
        yield AttackOutcome(attack.row, attack.name, GROUPS[attack.row], word, detail, word in attack.want)
    assert next(verdicts, None) is None


def _word(attack: Attack, verdict: Verdict) -> str:
    """Return the verdict's word; for a value, whether the attack may return it."""
    if verdict.status == "valid":
        return "refused" if verdict.text == "'refused'" else "valid" if verdict.text in attack.values else "leaked"
    untried = verdict.status == "error" and verdict.detail.startswith("LookupError")  # `reach` found nothing to attack with
    return "untried" if untried else str(verdict.status)


def answered(sandbox: Sandbox) -> Iterator[AttackOutcome]:
    """Yield the outcome of every text that is given as an answer and is not one."""
    items = [AnswerItem("deduction", "", (), ("[1, 2]",), text) for _, _, text, _ in ANSWERS]
    for (row, name, text, want), judged in zip(ANSWERS, judge_answers(sandbox, items), strict=True):
        word = str(judged.status)
        yield AttackOutcome(row, name, "answers", word, text, word == want and not judged.correct)


def chosen(rows: Sequence[str], everything: bool) -> list[Attack]:
    """The attacks of these rows; without rows all, or all that are quick. Raises ConfigError for a row that there is not."""
    unknown = sorted(set(rows) - GROUPS.keys())
    if unknown:
        raise ConfigError(f"attack: no such row: {', '.join(unknown)} (flows/audit/attack_catalogue.py lists them)")
    return [one for one in ATTACKS if one.row in rows or (not rows and (everything or not one.slow))]


def attack(sandbox: Sandbox, out: TextIO, attacks: Sequence[Attack], as_json: bool) -> int:
    """Tries all and writes a line each, then the walls and the sum; 1 where one was lost. Raises SandboxUnavailable."""
    found = []
    for outcome in chain(outcomes(sandbox, attacks), answered(sandbox)):
        found.append(outcome)
        print(json.dumps(vars(outcome)) if as_json else outcome.text(), file=out, flush=True)
    attested = sandbox.attestation()
    missing = attested["missing"]
    assert isinstance(missing, list)
    lost = [outcome for outcome in found if not outcome.held]
    if as_json:
        print(json.dumps({"attacks": len(found), "lost": len(lost), "walls": attested}), file=out)
    else:
        _summary(found, missing, str(attested["kind"]), out)
    return 1 if lost else 0


def _summary(found: Sequence[AttackOutcome], missing: Sequence[str], kind: str, out: TextIO) -> None:
    for group in dict.fromkeys(outcome.group for outcome in found):
        own = [outcome.held for outcome in found if outcome.group == group]
        print(f"{group}: {sum(own)} of {len(own)} held", file=out)
    print(f"walls not in place ({kind}): {', '.join(missing) or 'none'}", file=out)
