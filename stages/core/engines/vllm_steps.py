"""vLLM's steps one by one: each completion is reported as it ends.

`LLM.generate` returns when all have ended, and until then keeps an object for every token, six times as large as ours.
"""

from collections.abc import Callable, Sequence
from typing import Any

from stages.core.engines.protocol import Completion, Ended
from stages.core.progress import Progress


def stepped(
    llm: Any,
    prompts: Sequence[Any],
    samplings: Sequence[Any],
    adapters: Sequence[Any],
    completion_of: Callable[[Any], Completion],
    ended: Ended | None,
    progress: Progress,
) -> list[Completion]:
    """Return the completions that `llm.generate` would give, in the order of the prompts, and report each as it ends.

    The requests are added as `generate` adds them, and the steps are those that it takes. `completion_of` reads an output.
    """
    names = llm.enqueue(prompts, samplings, lora_request=adapters, use_tqdm=False)
    first = int(str(names[0]).partition("-")[0])  # vLLM counts its requests, and adds random letters after the number
    found: dict[int, Completion] = {}
    tokens = 0
    progress("completions", 0, len(prompts), 0)  # the first completion may take minutes
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            if output.finished:
                place = int(output.request_id) - first
                found[place] = completion_of(output)
                tokens += len(found[place].token_ids)
                progress("completions", len(found), len(prompts), tokens)
                if ended is not None:
                    ended(place, found[place])
    return [found[place] for place in range(len(prompts))]
