"""Fakes of engine and sandbox for stage tests: they answer what they were told, and nothing of the real ones is patched."""

from collections.abc import Iterable, Iterator, Sequence

from stages.core.engines.protocol import Completion, Ended, Request
from stages.core.prompts.styles import Kind, Proposed, Triplet, Unparsed
from stages.core.sandbox.protocol import IDLE, TICK, Job, Status, Verdict


class ScriptedEngine:
    """Completes every prompt with the next text of a cycle; a token is a character's code."""

    window = 4096

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = texts, 0

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids)

    def generate(self, requests: Sequence[Request], temperature: float, ended: Ended | None = None) -> list[Completion]:
        found: list[Completion] = []
        for place, _ in enumerate(requests):
            text = self.texts[self.asked % len(self.texts)]
            self.asked += 1
            found.append(Completion(tuple(self.encode(text)), tuple(-0.5 for _ in text), truncated=False))
            if ended is not None:
                ended(place, found[-1])
        return found


class PlainStyle:
    """Prompts and completions as `program|input`; an induction proposal is `input|input|...`."""

    def propose(self, kind: Kind, references: tuple[Triplet, ...]) -> str:
        return f"propose {kind}: " + " ; ".join(reference.program for reference in references)

    def propose_inputs(self, program: str, num_inputs: int) -> str:
        return f"inputs {num_inputs} for {program}"

    def solve(self, kind: Kind, program: str, inputs: tuple[str, ...], outputs: tuple[str, ...], message: str) -> str:
        return f"solve {kind}: {program} {inputs} {outputs}"

    def propose_stops(self, kind: Kind) -> tuple[str, ...]:
        return ("\n",)

    def solve_stops(self, kind: Kind) -> tuple[str, ...]:
        return ("\n",)

    def answer_end(self, kind: Kind, completion: str) -> int | None:
        answer, hash_sign, _ = completion.partition("#")
        return len(answer) if hash_sign else None

    def read_proposal(self, kind: Kind, completion: str, truncated: bool = False) -> Proposed:
        program, bar, given = completion.partition("|")
        if not bar:
            raise Unparsed("no bar")
        return Proposed(program, (given,))

    def read_inputs(self, completion: str, program: str, num_inputs: int, truncated: bool = False) -> Proposed:
        inputs = completion.split("|")
        if len(inputs) < num_inputs:
            raise Unparsed("too few inputs")
        return Proposed(program, tuple(inputs[:num_inputs]))

    def read_answer(self, kind: Kind, completion: str, truncated: bool = False) -> str:
        if not completion:
            raise Unparsed("nothing")
        return completion.partition("#")[0]


class TableSandbox:
    """Verdicts by (program, input), written down beforehand: a status, or the value's literal text."""

    def __init__(self, known: dict[tuple[str, str], str]) -> None:
        self.known = known

    def run(self, jobs: Iterable[Job]) -> Iterator[Verdict]:
        for job in jobs:
            if job is IDLE:
                yield TICK
                continue
            answer = self.known.get((job.program, job.input), "0")
            if answer in set(Status):
                yield Verdict(Status(answer), None, "as told", None)
            else:
                yield Verdict(Status.VALID, answer, "", f"key of {job.program}", answer)

    def attestation(self) -> dict[str, object]:
        return {"kind": "table"}

    def close(self) -> None:
        return None
