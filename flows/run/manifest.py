"""Manifests: what each stage read and wrote, chained by digest. A stage is done when its manifest exists and its digests match.

Everything that may differ between two equal runs is under `clock`, which no digest covers.
`flows/run/run.py` reads and writes them.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.stages import REQUIRED, STAGE_NAMES
from flows.store.errors import Damaged, StoreRefused

SCHEMA = 1
LATEST = 1e11  # seconds since 1970: in the year 5138

Json = dict[str, Any]


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces, the form that is hashed. NaN and infinities are rejected."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def readable_json(value: Any) -> bytes:
    """Return the same value as stored: sorted keys, one key per line."""
    return json.dumps(value, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def sha256_hex(data: bytes) -> str:
    """Return the digest that identifies an artifact."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Ref:
    """One artifact: its name relative to the run, its digest, and its rows if it is a table. Tasks pass these to each other.

    `origin` is the run that holds it if that is another one (a fork's parent), else empty. `stamp` is the store's mark of the
    very object that this process wrote; with it a commit detects that a concurrent copy replaced it.
    """

    uri: str
    sha256: str
    rows: int | None = None
    origin: str = ""
    stamp: str = field(default="", compare=False, repr=False)

    def to_json(self, rows: bool = True) -> Json:
        """Return the entry of a manifest (inputs carry no rows)."""
        entry: Json = {"uri": self.uri, "sha256": self.sha256}
        if rows and self.rows is not None:
            entry["rows"] = self.rows
        if self.origin:
            entry["from"] = self.origin
        return entry

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Ref":
        """Return the reference written by `to_json`."""
        return cls(entry["uri"], entry["sha256"], entry.get("rows"), entry.get("from", ""))


@dataclass(frozen=True)
class Manifest:
    """What one stage of one generation did. `generation` is None for `start`; a part's stage reads `update.parts/t0`."""

    run: str
    generation: int | None
    stage: str
    previous: str
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref, ...]
    counts: Json = field(default_factory=dict)
    versions: Json = field(default_factory=dict)
    clock: Json = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def whole_stage(self) -> str:
        """The stage, also for a part: `update` for `update.parts/t0`."""
        return self.stage.partition(".parts/")[0]

    def to_json(self) -> Json:
        """Return plain values with exactly the documented keys."""
        return {
            "schema": self.schema,
            "run": self.run,
            "generation": self.generation,
            "stage": self.stage,
            "previous": self.previous,
            "inputs": [ref.to_json(rows=False) for ref in self.inputs],
            "outputs": [ref.to_json() for ref in self.outputs],
            "counts": self.counts,
            "versions": self.versions,
            "clock": self.clock,
        }

    def output(self, name: str) -> Ref:
        """Return the output whose name ends in `name`. Raises LookupError."""
        for ref in self.outputs:
            if ref.uri == name or ref.uri.endswith(f"/{name}"):
                return ref
        raise LookupError(f"{self.stage} of generation {self.generation} has no output {name}")


def digest(manifest: Manifest | Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON without `clock`; the next manifest carries it as `previous`."""
    values = manifest.to_json() if isinstance(manifest, Manifest) else manifest
    return sha256_hex(canonical_json({key: value for key, value in values.items() if key != "clock"}))


def read_json(data: bytes, uri: str) -> Json:
    """Parse a JSON object of a known schema. Raises Damaged, or StoreRefused if a newer version wrote it."""
    try:
        values = json.loads(data)
        version = int(values["schema"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Damaged(uri, "not a JSON object with a schema version") from error
    if version > SCHEMA:
        raise StoreRefused(f"{uri}: schema {version} is newer than this version of populora reads ({SCHEMA}); update populora")
    return dict(values)


def is_moment(value: object) -> bool:
    """Return whether this is a time of a clock, in seconds, or a length of time: a number that a calendar can show."""
    return isinstance(value, int | float) and 0 <= value < LATEST


def read_manifest(data: bytes, uri: str) -> Manifest:
    """Parse the manifest in `data`. Raises Damaged, or StoreRefused if a newer version wrote it."""
    values = read_json(data, uri)
    try:
        found = Manifest(
            run=values["run"],
            generation=values["generation"],
            stage=values["stage"],
            previous=values["previous"],
            inputs=tuple(Ref.from_json(entry) for entry in values["inputs"]),
            outputs=tuple(Ref.from_json(entry) for entry in values["outputs"]),
            counts=values["counts"],
            versions=values["versions"],
            clock=values["clock"],
            schema=values["schema"],
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise Damaged(uri, f"the manifest has a missing or invalid field: {error}") from error
    if wrong := _wrong(found):
        raise Damaged(uri, f"the manifest has a missing or invalid field: {wrong}")
    return found


def _wrong(manifest: Manifest) -> str:
    """Return the first field that readers could not use; empty if there is none."""
    for name in ("counts", "versions", "clock"):
        if not isinstance(getattr(manifest, name), dict):
            return name
    numbers = ("started", "seconds", "generations")
    return next((f"clock.{name}" for name in numbers if not is_moment(manifest.clock.get(name, 0))), "")


def place_of(generation: int | None, stage: str) -> int:
    """Return the place of a stage in the run's total order; `start` is -1."""
    return -1 if generation is None else generation * len(STAGE_NAMES) + STAGE_NAMES.index(stage)


def skipped(after: int, before: int) -> list[tuple[int | None, str]]:
    """Return the stages strictly between two places that must have a manifest."""
    found: list[tuple[int | None, str]] = [(None, "start")] if after < -1 < before else []
    for place in range(max(after + 1, 0), before):
        generation, stage = place // len(STAGE_NAMES), STAGE_NAMES[place % len(STAGE_NAMES)]
        if stage in REQUIRED:
            found.append((generation, stage))
    return found


def folder_of(generation: int | None) -> str:
    """Return `start`, or `generation=0007`."""
    return "start" if generation is None else f"generation={generation:04d}"


def generation_of(folder: str) -> int | None:
    """Return the number in `generation=0007`; None for any other folder, such as a copy that someone made."""
    found = re.fullmatch(r"generation=(\d{4,})", folder)
    return int(found[1]) if found else None


def manifest_uri(stage: str, generation: int | None, part: str | None = None) -> str:
    """Return the path of a stage's manifest, or of one of its parts, relative to the run."""
    if generation is None:
        assert stage == "start" and part is None, (stage, part)
        return "start/start.json"
    assert stage in STAGE_NAMES, f"unknown stage {stage}; add it to flows/stages.py"
    return f"{folder_of(generation)}/{stage}.parts/{part}.json" if part else f"{folder_of(generation)}/{stage}.json"
