"""`populora bench storage`: the cost of storing everything.

    populora bench storage [RUN] [--store URL] [--members 2] [--to URL] [--megabytes 1024]
    populora bench storage --growth 1,20,100,200 [--to URL]

- `generation`: every artifact of a run's newest complete generation is read, verified, written and committed again, into a
  separate store on the same kind of disk, compared with the seconds that the generation took.
- `members`: adapters of Qwen2.5-7B's size (rank 32, seven projections; weights and moments in fp32) hashed and stored as in a
  run, against plain writes of the same bytes with one fsync per file.
- `upload` and `download` (with `--to s3://…`): an adapter set of a gigabyte, against boto3's managed transfer, which the AWS
  command line uses, and against a download in one request.
- `growth` (with `--growth`, and then nothing else): requests, bytes and seconds of every stage at these generations of a
  synthetic run with the paper's tables, in a temporary folder or in `--to` (flows.bench.growth).

Each side begins every other turn and medians are compared, since disks and machines are shared.
"""

import argparse
import io
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from flows.bench.growth import growth
from flows.bench.turns import in_turns
from flows.commands.arguments import OneLineParser
from flows.config import ConfigError
from flows.run.lease import hold
from flows.run.manifest import Manifest, Ref
from flows.run.run import Retired, Run
from flows.run.stage_io import StageIO
from flows.storage import Store, open_store
from stages.core.lora.adapter import Adapter

WEIGHTS_7B, RANK = 80_740_352 * 4, 32  # bytes of one adapter's factors in fp32
Line = dict[str, Any]


def main(options: Sequence[str]) -> Iterator[Line]:
    """Yield one JSON object per figure."""
    parser = OneLineParser(prog="populora bench storage")
    parser.add_argument("run", nargs="?", default="quickstart", help="a finished run to measure against")
    parser.add_argument("--store", default="runs", help="folder, file:///folder or s3://bucket/prefix of the run")
    parser.add_argument("--members", type=int, default=2, help="adapters of 7B size; 0 skips this part")
    parser.add_argument("--to", default="", help="an S3 prefix for the upload; credentials from the environment")
    parser.add_argument("--megabytes", type=int, default=1024, help="megabytes of the file that --to uploads")
    parser.add_argument("--repeats", type=int, default=3, help="measurements; the median counts")
    parser.add_argument("--growth", type=_generations, default=(), help="generations to compare, such as 1,20,100,200")
    arguments = parser.parse_args(options)
    if arguments.growth:
        with tempfile.TemporaryDirectory(prefix="populora-bench-", dir=os.environ.get("TMPDIR")) as folder:
            run_id = f"growth-{secrets.token_hex(4)}"
            yield from growth(arguments.to or folder, arguments.growth, arguments.repeats, run_id=run_id)
        return
    yield from generation(Run(open_store(arguments.store), arguments.run), arguments.repeats)
    if arguments.members:
        yield from members(arguments.members, arguments.repeats)
    if arguments.to:
        yield from transfers(arguments.to, arguments.megabytes << 20, arguments.repeats)


def _generations(text: str) -> tuple[int, ...]:
    """Parse `1,20,100`. Raises ArgumentTypeError unless the numbers rise."""
    numbers = tuple(int(one) for one in text.split(",") if one.strip().isdecimal())
    if len(numbers) != text.count(",") + 1 or any(later <= one for one, later in pairwise(numbers)):
        raise argparse.ArgumentTypeError(f"{text!r}: give rising generations, such as 1,20,100,200")
    return numbers


def generation(run: Run, repeats: int) -> Iterator[Line]:
    """Measure reading, hashing and writing what the newest complete generation read and wrote, and its share of the duration."""
    whole = run.finished_generations()
    if not whole:
        raise ConfigError(f"run {run.run_id} in {run.store.url} has no complete generation to measure")
    manifests = list(run.history.of_generation(whole[-1], parts=True))
    took = sum(float(one.clock.get("seconds", 0.0)) for one in manifests)
    seconds = statistics.median(_again(run, manifests) for _ in range(repeats))
    yield {"name": "generation", "value": round(seconds, 4), "unit": "s", "artifacts": sum(len(one.outputs) for one in manifests)}
    if took:
        yield {"name": "generation_share", "value": round(seconds / took, 5), "unit": "share", "of": round(took, 3)}


def _again(run: Run, manifests: Sequence[Manifest]) -> float:
    """Return the seconds to read all inputs and to write and commit all outputs of these stages, into an empty store."""
    written = {ref.uri: _bytes(run, ref) for one in manifests for ref in one.outputs}
    with tempfile.TemporaryDirectory(prefix="populora-bench-") as folder:
        store = open_store(folder)
        with hold(store, "copy") as epoch:
            copy, began = Run(store, "copy", epoch), time.perf_counter()
            for one in manifests:
                for ref in one.inputs:
                    _bytes(run, ref)
                stage, _, part = one.stage.partition(".parts/")
                refs = [copy.write_blob(ref.uri, written[ref.uri], ref.rows) for ref in one.outputs]
                copy.commit(stage, one.generation, one.inputs, refs, one.counts, one.versions, one.clock, part or None)
            return time.perf_counter() - began


def _bytes(run: Run, ref: Ref) -> bytes:
    """Return an artifact's bytes, verified; empty if retention has removed it."""
    try:
        return run.read_blob(ref)
    except Retired:
        return b""


def members(count: int, repeats: int) -> Iterator[Line]:
    """Store adapters of 7B size as an update does, against the disk alone."""
    adapter = _adapter_7b()
    names, bytes_each = [f"t{number}-start" for number in range(count)], 3 * sum(one.nbytes for one in adapter.weights.values())

    def ours(folder: Path) -> None:
        store = open_store(str(folder))
        with hold(store, "members") as epoch:
            StageIO(Run(store, "members", epoch), "start", None, None, "model", 32.0).write_adapters(
                dict.fromkeys(names, adapter)
            )

    def theirs(folder: Path) -> None:
        data = secrets.token_bytes(1 << 20) * (bytes_each >> 20)
        for name in names:
            with open(folder / name, "wb", buffering=0) as file:
                file.write(data)
                os.fsync(file.fileno())

    yield _paired("members", count * bytes_each, "disk", _in_folder(ours), _in_folder(theirs), repeats)


def _adapter_7b() -> Adapter:
    """Return an adapter with as many values as one of the 7B model, in one module, and its moments."""
    width = WEIGHTS_7B // 4 // 2 // RANK
    rng = np.random.default_rng(0)
    weights = {
        f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight": rng.random(shape, dtype=np.float32)
        for side, shape in (("A", (RANK, width)), ("B", (width, RANK)))
    }
    return Adapter(weights, {f"{moment}.{name}": one for moment in ("exp_avg", "exp_avg_sq") for name, one in weights.items()}, 1)


def _in_folder(write: Callable[[Path], None]) -> Callable[[], float]:
    """Return a function that times a write into a temporary folder."""

    def timed() -> float:
        with tempfile.TemporaryDirectory(prefix="populora-bench-", dir=os.environ.get("TMPDIR")) as folder:
            began = time.perf_counter()
            write(Path(folder))
            return time.perf_counter() - began

    return timed


def transfers(url: str, size: int, repeats: int) -> Iterator[Line]:
    """Send and fetch one adapter set of `size` bytes, against boto3's managed transfer to and from the same server."""
    import boto3
    from botocore.config import Config

    store, data = open_store(url), secrets.token_bytes(1 << 20) * (size >> 20)
    bucket, prefix = urlsplit(url).netloc, urlsplit(url).path.strip("/")
    client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))

    def key_of(uri: str) -> str:
        return f"{prefix}/{uri}".lstrip("/")

    def sent() -> float:
        uri = f"bench/{secrets.token_hex(8)}"
        return _timed(lambda: store.create(uri, data), lambda: store.delete(uri))

    def sent_by_boto3() -> float:
        key = key_of(f"bench/{secrets.token_hex(8)}")
        held = io.BytesIO(data)  # from memory, as ours
        return _timed(lambda: client.upload_fileobj(held, bucket, key), lambda: client.delete_object(Bucket=bucket, Key=key))

    _warm(store)
    yield _paired("upload", size, "boto3-transfer", sent, sent_by_boto3, repeats)
    there = "bench/fetched"
    key, none = key_of(there), lambda: None
    store.delete(there)  # left by a bench that was stopped
    store.create(there, data)
    rivals: dict[str, Callable[[], object]] = {
        "boto3-transfer": lambda: client.download_fileobj(bucket, key, io.BytesIO()),
        "one-connection": lambda: client.get_object(Bucket=bucket, Key=key)["Body"].read(),
    }
    for rival, fetched in rivals.items():
        theirs = partial(_timed, fetched, none)
        yield _paired("download", size, rival, lambda: _timed(lambda: store.read(there), none), theirs, repeats)
    store.delete(there)


def _warm(store: Store) -> None:
    """Trigger the probe that the first write runs; it is not part of an upload."""
    store.create("bench/warm", b"warm")
    store.delete("bench/warm")


def _timed(work: Callable[[], object], clear: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    clear()
    return seconds


def _paired(name: str, size: int, rival: str, ours: Callable[[], float], theirs: Callable[[], float], repeats: int) -> Line:
    """Megabytes a second of both, in turns."""
    turns = in_turns(repeats, {"ours": ours, "theirs": theirs})
    rate, other = (size / statistics.median(turns[side]) / 1e6 for side in ("ours", "theirs"))
    line = {"name": name, "value": round(rate, 1), "unit": "MB/s", "bytes": size}
    return line | {"against": rival, "rival": round(other, 1), "ratio": round(rate / other, 3)}
