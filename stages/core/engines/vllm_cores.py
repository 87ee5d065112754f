"""How vLLM uses the cores of a machine without a GPU. Needs no vLLM."""

from collections.abc import Collection, Mapping

BIND, RESERVED = "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU"


def core_settings(environment: Mapping[str, str], cores: Collection[int]) -> dict[str, str]:
    """Return the variables to set so that vLLM's worker computes on all these cores. What the user has set stays.

    By default vLLM keeps one core free for its scheduler, half of a machine with two, although the scheduler waits while the
    model computes.
    """
    chosen = {BIND: ",".join(str(core) for core in sorted(cores)), RESERVED: "0"}
    return {name: value for name, value in chosen.items() if name not in environment}
