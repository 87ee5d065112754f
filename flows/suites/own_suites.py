"""The project's own suites: their problems, and what keeps their programs out of tasks."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.config import PROJECT, ConfigError
from flows.near_names import hint
from flows.settings import KINDS
from flows.suites.program_keys import probe_keys
from stages.core.seed_model.probe import probe_keys as own_keys
from stages.core.seed_model.programs import ProgramKeys

SUITES = PROJECT / "infra" / "benchmarks"
STORED = ("probe-dev", "probe-test", "staircase-dev", "staircase-test")
"""The project's own suites, one file each. Runs that begin now keep their programs out of the seeds."""
ONE_KIND = {f"{suite}-{kind}": (suite, kind) for suite in STORED for kind in KINDS}
"""The problems of one kind of them, each a suite of its own: its scores never mix with those of all kinds."""
PROBE = (*STORED, *ONE_KIND)
"""What is asked with the prompts of the run."""
STAIRCASE = tuple(suite for suite in PROBE if suite.startswith("staircase"))


class OwnSuites:
    """The suites' files. The keys of their programs are computed once."""

    def __init__(self) -> None:
        self._keys_of: dict[tuple[str, ...], frozenset[str]] = {}
        self._held_out: dict[tuple[str, ...], ProgramKeys] = {}

    def file(self, suite: str) -> Path:
        """Return the file with the problems of a suite. Raises ConfigError if it does not exist."""
        stored, _ = ONE_KIND.get(suite, (suite, ""))
        path = SUITES / f"{stored}.parquet"
        if not path.is_file():
            known = sorted(file.stem for file in SUITES.glob("*.parquet"))
            kinds = ", ".join(f"-{kind}" for kind in KINDS)
            said = f"{suite!r} is not one of {', '.join(known)}, nor one kind of these ({kinds})"
            raise ConfigError(f"benchmark.suite: {said}{hint(suite, [*known, *ONE_KIND])}")
        return path

    def problems(self, suite: str) -> pa.Table:
        """Return the problems of a suite. Raises ConfigError if the suite does not exist."""
        table, (_, kind) = pq.read_table(self.file(suite)), ONE_KIND.get(suite, (suite, ""))
        return table.filter(pc.equal(table["kind"], kind)) if kind else table

    def digest(self, suite: str) -> str:
        """Return the sha256 of the suite's file; of one kind, that of this digest and the kind."""
        whole = hashlib.sha256(self.file(suite).read_bytes()).hexdigest()
        _, kind = ONE_KIND.get(suite, (suite, ""))
        return hashlib.sha256(f"{whole} {kind}".encode()).hexdigest() if kind else whole

    def probe_keys(self, suites: Sequence[str] = STORED) -> frozenset[str]:
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
