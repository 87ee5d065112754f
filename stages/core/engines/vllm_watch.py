"""Calls that wait for vLLM's engine process raise when that process ends. Needs no vLLM.

Without this they wait for ever: vLLM (0.32) waits for outputs and replies without a limit, a process that is killed, such as by
the kernel when memory is short, sends no last message, and vLLM's own monitor affects only the calls after it.
"""

from collections.abc import Callable
from concurrent.futures import InvalidStateError
from contextlib import suppress
from multiprocessing.connection import wait
from threading import Thread
from typing import Any


def watch(client: Any, dead: Callable[[], Exception]) -> None:
    """Start a thread that raises `dead()` in the call that waits, once an engine process of vLLM's client has ended.

    Does nothing where the engine runs in this process.
    """
    if _manager(client) is not None:  # the client itself may be collected, which ends its process
        needed = (client.resources, client.outputs_queue, client.utility_results, dead)
        Thread(target=_release, args=needed, name="vllm-watch", daemon=True).start()


def exit_codes(client: Any) -> str:
    """Return which engine processes have ended, with their exit codes, in parentheses; empty if there are none."""
    codes = {} if (manager := _manager(client)) is None else manager.finished_procs()
    return "".join(f" ({name} exited with code {code})" for name, code in codes.items())


def _manager(client: Any) -> Any:
    return getattr(getattr(client, "resources", None), "engine_manager", None)


def _release(resources: Any, outputs: Any, replies: Any, dead: Callable[[], Exception]) -> None:
    wait(resources.engine_manager.sentinels())
    resources.engine_dead = True  # calls that begin from now on raise by themselves
    outputs.put(dead())
    for reply in list(replies.values()):
        with suppress(InvalidStateError):  # it came before the end
            reply.set_exception(dead())
