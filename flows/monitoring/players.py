"""Who plays in a run, in words, from the configuration that its store describes."""

from collections.abc import Mapping
from typing import Any


def players(config: Mapping[str, Any]) -> str:
    """Return for example `4 teachers and 4 students`, or what stands in for teachers."""
    if config.get("mode") == "single":
        return "a single agent in both roles"
    sizes = {role: config.get("population", {}).get(f"{role}s", "?") for role in ("teacher", "student")}
    teachers, students = (f"{size} {role}{'' if size == 1 else 's'}" for role, size in sizes.items())
    generated = config.get("propose", {}).get("curriculum")
    return f"{students}, tasks from the generator" if generated else f"{teachers} and {students}"
