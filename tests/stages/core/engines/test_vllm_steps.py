"""vLLM's loop of steps, on a vLLM that answers what it was told; tests of the engine itself need vLLM (test_vllm_engine)."""

from dataclasses import dataclass, field
from typing import Any

from stages.core.engines.protocol import Completion
from stages.core.engines.vllm_steps import stepped


@dataclass
class Output:
    """What vLLM says about a request after a step."""

    request_id: str
    token_ids: tuple[int, ...]
    finished: bool


@dataclass
class Scripted:
    """A vLLM whose requests end in a given order; `counted` is how many it has answered before."""

    steps: list[list[tuple[int, bool]]]
    counted: int
    asked: list[Any] = field(default_factory=list)

    @property
    def llm_engine(self) -> "Scripted":
        return self

    def enqueue(self, prompts: list[Any], samplings: list[Any], lora_request: list[Any], use_tqdm: bool) -> list[str]:
        self.asked = [prompts, samplings, lora_request, use_tqdm]
        return [f"{self.counted + place}-1a2b3c4d" for place in range(len(prompts))]

    def has_unfinished_requests(self) -> bool:
        return bool(self.steps)

    def step(self) -> list[Output]:
        return [Output(str(self.counted + place), (place,) * (place + 1), ended) for place, ended in self.steps.pop(0)]


def test_completions_are_reported_as_they_end_and_returned_in_the_order_of_the_requests() -> None:
    llm = Scripted([[(0, False)], [(2, True)], [], [(0, True), (1, True)]], counted=40)
    heard: list[tuple[int, Completion]] = []
    told: list[tuple[str, float, float, int]] = []

    def completion_of(output: Output) -> Completion:
        return Completion(output.token_ids, (0.0,) * len(output.token_ids), False)

    def progress(what: str, done: float, total: float, tokens: int = 0) -> None:
        told.append((what, done, total, tokens))

    found = stepped(llm, ["a", "b", "c"], [1, 2, 3], [None] * 3, completion_of, lambda *ended: heard.append(ended), progress)
    assert [one.token_ids for one in found] == [(0,), (1, 1), (2, 2, 2)]
    assert [place for place, _ in heard] == [2, 0, 1] and [one for _, one in heard] == [found[2], found[0], found[1]]
    assert told == [("completions", done, 3, tokens) for done, tokens in ((0, 0), (1, 3), (2, 4), (3, 6))]
    assert llm.asked == [["a", "b", "c"], [1, 2, 3], [None] * 3, False]
