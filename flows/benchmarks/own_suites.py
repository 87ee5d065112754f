"""The project's own suites: their problems, and what keeps their programs out of tasks."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flows.benchmarks.program_keys import probe_keys
from flows.config import PROJECT, ConfigError
from flows.near_names import hint
from flows.settings import BenchmarkRule
from stages.benchmark import chosen_problems
from stages.core.seed_model.probe import probe_keys as own_keys
from stages.core.seed_model.programs import ProgramKeys
from stages.core.suites.problems import BadSuite

SUITES = PROJECT / "infra" / "benchmarks"
STAIRCASE = ("staircase-dev", "staircase-test")
PROBE = ("probe-dev", "probe-test", *STAIRCASE)
"""The project's own suites: asked with the prompts of the run. Runs that begin now keep their programs out of the seeds."""


class OwnSuites:
    """The suites' files. The keys of their programs are computed once."""

    def __init__(self) -> None:
        self._keys_of: dict[tuple[str, ...], frozenset[str]] = {}
        self._held_out: dict[tuple[str, ...], ProgramKeys] = {}

    def file(self, suite: str) -> Path:
        """Return where a suite is stored. Raises ConfigError if it does not exist."""
        path = SUITES / f"{suite}.parquet"
        if not path.is_file():
            known = sorted(file.stem for file in SUITES.glob("*.parquet"))
            raise ConfigError(f"benchmark.suite: {suite!r} is not one of {', '.join(known)}{hint(suite, known)}")
        return path

    def problems(self, suite: str) -> pa.Table:
        """Return the problems of a suite. Raises ConfigError if the suite does not exist."""
        return pq.read_table(self.file(suite))

    def digest(self, suite: str) -> str:
        """Return the sha256 of the suite's file."""
        return hashlib.sha256(self.file(suite).read_bytes()).hexdigest()

    def probe_keys(self, suites: Sequence[str] = PROBE) -> frozenset[str]:
        """Return the program keys of suites, as the sandbox computes them. A run's buffers may not contain those it keeps out."""
        if (chosen := tuple(suites)) not in self._keys_of:
            programs = {program for suite in chosen for program in self.problems(suite)["program"].to_pylist()}
            self._keys_of[chosen] = probe_keys(sorted(programs))
        return self._keys_of[chosen]

    def held_out(self, suites: Sequence[str]) -> ProgramKeys:
        """Return what the generator of a run may not write: the programs of suites, by syntax and by behaviour."""
        if (chosen := tuple(suites)) not in self._held_out:
            self._held_out[chosen] = own_keys(*(self.problems(suite) for suite in chosen))
        return self._held_out[chosen]


def own_problems(suite: str, limit: int, pattern: str = "") -> pa.Table:
    """Return the problems of one of the project's own suites. Raises ConfigError."""
    try:
        return chosen_problems(OwnSuites().problems(suite), limit, pattern)
    except BadSuite as error:
        raise ConfigError(f"suite {suite}: {error}") from error


def check_probe(rule: BenchmarkRule) -> None:
    """Raise ConfigError unless `benchmark.suite` exists, and `benchmark.problems` matches some of its problems."""
    own_problems(rule.suite, rule.limit, rule.problems)
