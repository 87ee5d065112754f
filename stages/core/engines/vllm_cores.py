"""How vLLM uses the cores of a machine without a GPU. Needs no vLLM."""

from collections.abc import Collection, Mapping

BIND, RESERVED = "VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU"


def core_settings(environment: Mapping[str, str], cores: Collection[int], workers: int = 1) -> dict[str, str]:
    """Return the variables to set so that vLLM's workers compute on all these cores. What the user has set stays.

    By default vLLM keeps one core free per worker for its scheduler, half of a machine with two, although the scheduler waits
    while the model computes. Several workers share the cores in equal parts; cores left over stay free.
    """
    share = len(cores) // workers
    if share == 0:
        return {}
    ordered = sorted(cores)
    parts = [ordered[worker * share : (worker + 1) * share] for worker in range(workers)]
    chosen = {BIND: "|".join(",".join(str(core) for core in part) for part in parts), RESERVED: "0"}
    return {name: value for name, value in chosen.items() if name not in environment}
