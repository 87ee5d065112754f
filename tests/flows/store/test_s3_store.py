"""The store in a bucket: on moto every day, on a real Ceph gateway where there is one, and behind a network that fails."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from flows.audit.conformance import conformance
from flows.audit.fsck import fsck
from flows.run.lease import Fenced, LeaseHeld, hold
from flows.run.retention import unnamed
from flows.run.run import Manifest, Overtaken, Ref, Run, canonical_json, sha256_hex
from flows.run.scan import survey_of
from flows.storage import Damaged, NotStored, Store, StoreRefused, StoreUnavailable, open_store
from flows.store.machine_lock import LOCK_SECONDS
from flows.store.s3_store import PART, S3Store
from tests.support import example_run
from tests.support.servers import s3_servers
from tests.support.servers.faulty_proxy import FAULTS, FaultyProxy

ROOT = Path(__file__).parents[3]
BUCKET = "populora-tests"


@pytest.fixture(scope="module", params=["moto", pytest.param("rgw", marks=[pytest.mark.rgw, pytest.mark.timeout(300)])])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own with an empty bucket, and the environment that points to it."""
    if request.param == "rgw" and (gap := s3_servers.rgw_gap()):
        pytest.skip(gap)
    server = s3_servers.moto() if request.param == "moto" else s3_servers.rgw(tmp_path_factory.mktemp("rgw"))
    with server as url, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_servers.environment(url).items():
            patch.setenv(name, value)
        s3_servers.make_bucket(BUCKET)
        yield url


@pytest.fixture
def store(endpoint: str, request: pytest.FixtureRequest) -> Store:
    """A prefix of its own for every test."""
    return open_store(f"s3://{BUCKET}/{sha256_hex(request.node.nodeid.encode())[:12]}")


def test_every_promise_of_a_store_is_kept(store: Store) -> None:
    checks = list(conformance(store.url))
    assert [(check.name, check.detail) for check in checks if not check.good] == []
    assert len(checks) == 7
    assert store.list("", hidden=True) == []


def test_listing_goes_over_pages(store: Store) -> None:
    names = [f"r/{number:04d}.bin" for number in range(1050)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.create(name, b"x"), names))
    assert store.list("r/") == names
    store.replace("r/.lease", b"hidden")
    assert store.sizes("r/") == dict.fromkeys(names, 1)
    assert store.folders("") == ["r"] and store.folders("r/") == []


def test_large_objects_are_whole_and_written_once(store: Store) -> None:
    data = random.Random(0).randbytes(1 << 20) * 70
    assert len(data) > 2 * PART
    stamp = store.create("r/large.bin", data)
    assert stamp == store.stamp("r/large.bin") and store.size("r/large.bin") == len(data)
    assert store.create("r/large.bin", data[::-1]) is None
    assert store.read("r/large.bin") == data


def test_a_large_object_is_read_in_parts_and_never_mixed_with_another(store: Any) -> None:
    first, second = (random.Random(seed).randbytes(1 << 20) * 70 for seed in (1, 2))
    key, ranges, replaced = f"{store._prefix}r/large.bin", list[str](), threading.Event()
    store._client.put_object(Bucket=BUCKET, Key=key, Body=first)
    other: Any = open_store(store.url)

    def asked(params: dict[str, Any], **_: Any) -> None:
        if asked_range := params.get("Range"):
            ranges.append(asked_range)
            if not replaced.is_set():
                replaced.set()
                other._client.put_object(Bucket=BUCKET, Key=key, Body=second)

    store._client.meta.events.register("provide-client-params.s3.GetObject", asked)
    assert store.read("r/large.bin") == second
    assert set(ranges) == {"bytes=0-33554431", "bytes=33554432-67108863", f"bytes=67108864-{len(second) - 1}"}
    ranges.clear()
    assert store.read("r/large.bin") == second and len(ranges) == 3


def test_uploads_left_by_a_killed_writer_are_swept(store: Any) -> None:
    key = f"{store._prefix}r/adapters/x.bin"
    store._client.create_multipart_upload(Bucket=BUCKET, Key=key)
    store.sweep("r/adapters/")
    assert "Uploads" not in store._client.list_multipart_uploads(Bucket=BUCKET, Prefix=store._prefix)


def test_a_run_in_a_bucket_is_the_run_in_a_folder(store: Store, tmp_path: Path) -> None:
    heads = []
    for place in (store, open_store(str(tmp_path))):
        with hold(place, "smoke") as epoch:
            run = example_run.build(Run(place, "smoke", epoch), 1)
        assert fsck(Run(place, "smoke")) == []
        heads.append(run.history.head())
        assert not place.exists("smoke/.lease")
    assert heads[0] == heads[1]
    ours = {uri: store.read(uri) for uri in store.list("smoke/") if not uri.endswith(".json")}
    assert ours == {uri: (tmp_path / uri).read_bytes() for uri in ours}


def test_a_flipped_bit_in_a_bucket_is_damage(store: Any) -> None:
    with hold(store, "smoke") as epoch:
        run = Run(store, "smoke", epoch)
        ref = run.write_blob("generation=0000/matches.parquet", b"sound")
        run.commit("match", 0, [], [ref])
    store._client.put_object(Bucket=BUCKET, Key=f"{store._prefix}smoke/{ref.uri}", Body=b"tound")
    with pytest.raises(Damaged, match=r"matches\.parquet: its digest is not"):
        Run(store, "smoke").read_blob(ref.uri)


# --- two writers, without locks -------------------------------------------------------------------------------------------------


def test_a_second_holder_is_refused_and_a_fenced_one_commits_nothing(store: Store) -> None:
    refused = pytest.raises(LeaseHeld, match="is in use by process")
    with hold(store, "smoke", beat_seconds=0.3), refused, hold(store, "smoke", beat_seconds=0.3):
        pass
    with hold(store, "smoke", beat_seconds=3600) as old:  # a beat would tell that it was overtaken
        frozen = Run(store, "smoke", old)
        store.delete("smoke/.lease")
        with hold(store, "smoke") as new:
            run = Run(store, "smoke", new)
            ref = run.write_blob("generation=0000/matches.parquet", b"new")
            with pytest.raises(Fenced):
                frozen.write_blob("generation=0000/matches.parquet", b"old")
            with pytest.raises(Fenced):
                frozen.commit("match", 0, [], [Ref(ref.uri, sha256_hex(b"old"))])
            run.commit("match", 0, [], [ref])
            assert run.done("match", 0)


def test_of_many_copies_of_one_task_one_wins_and_all_go_on(store: Store) -> None:
    with hold(store, "smoke") as epoch:

        def attempt(number: int) -> Manifest:
            copy = Run(store, "smoke", epoch)
            while True:
                try:
                    refs = [copy.write_blob(f"generation=0000/{name}", f"{name} {number % 3}".encode()) for name in "ab"]
                    return copy.commit("solve", 0, [], refs, clock={"copy": number})
                except Overtaken:
                    time.sleep(random.random())  # as retries are: far apart

        with ThreadPoolExecutor(3) as pool:
            manifests = list(pool.map(attempt, range(3)))
        assert Run(store, "smoke").done("solve", 0)
        assert len({canonical_json(one.to_json()) for one in manifests}) == 1


@pytest.mark.timeout(240)
def test_a_writer_killed_anywhere_leaves_whole_objects(store: Store, endpoint: str) -> None:
    code = """
import sys
sys.path.append("tests")
from tests.support import example_run
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
store = open_store(sys.argv[1])
with hold(store, "smoke") as epoch:
    print("ready", flush=True)
    example_run.build(Run(store, "smoke", epoch), 2)
"""
    rng, pipes = random.Random(3), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", code, store.url], cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload]
        assert process.stdout is not None and process.stdout.readline() == "ready\n", process.communicate()
        return process

    for _ in range(3):
        process = start()
        time.sleep(rng.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start()
    assert process.communicate() == ("", "") and process.returncode == 0
    assert fsck(Run(store, "smoke")) == []
    with hold(store, "again") as epoch:
        whole = example_run.build(Run(store, "again", epoch), 2)
    for uri in store.list("again/"):
        if not uri.endswith(".json"):
            assert store.read(uri) == store.read(uri.replace("again/", "smoke/")), uri
    assert len(store.list("again/")) == len(store.list("smoke/")) and whole.history.head() != ""


def test_a_missing_bucket_is_one_clear_line(endpoint: str) -> None:
    store = open_store("s3://no-such-bucket/x")
    for use in (lambda: store.create("r/a", b""), lambda: store.list("r/"), lambda: store.read("r/a")):
        with pytest.raises(StoreRefused, match=r"store s3://no-such-bucket/x: .*the bucket does not exist"):
            use()
    with pytest.raises(StoreRefused, match="Invalid bucket name"):
        open_store("s3://not_a(bucket/x").list("r/")


@pytest.mark.rgw
def test_wrong_credentials_are_one_clear_line(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto takes any credentials; the gateway does not."""
    if _takes_anything(monkeypatch):
        pytest.skip("this server takes any credentials")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreRefused, match="rejects the secret key"):
        open_store(f"s3://{BUCKET}/x").create("r/a", b"")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(StoreRefused, match="does not know this access key"):
        open_store(f"s3://{BUCKET}/x").list("r/")


def _takes_anything(monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        try:
            open_store(f"s3://{BUCKET}/x").list("r/")
        except StoreRefused:
            return False
        return True


def test_no_credentials_at_all_is_one_clear_line(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreRefused, match="no credentials; set AWS_ACCESS_KEY_ID"):
        open_store(f"s3://{BUCKET}/x").list("r/")


# --- a network that fails -------------------------------------------------------------------------------------------------------


RUNS = 3  # at once, each with a proxy of its own, so that the waits of one are the work of another


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(40, marks=pytest.mark.timeout(300)),
        pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_injected_faults_make_no_artifact_wrong_or_double(endpoint: str, monkeypatch: pytest.MonkeyPatch, wanted: int) -> None:
    """So many faults over runs; each run ends as if nothing had happened."""
    heads, counted, seed = set(), 0, wanted
    while counted < wanted:
        share = (wanted - counted + RUNS - 1) // RUNS
        proxies = [FaultyProxy(endpoint, seed + number, rate=0.2, most=share, stall=3.0) for number in range(RUNS)]
        stores = []
        with ExitStack() as stack:
            for proxy in proxies:
                seed += 1
                monkeypatch.setenv("AWS_ENDPOINT_URL", stack.enter_context(proxy).endpoint)
                stores.append(S3Store(f"s3://{BUCKET}/faults-{seed}", timeout=2.5))
            with ThreadPoolExecutor(RUNS) as pool:
                list(pool.map(_whole_run, stores))
        counted += sum(proxy.faults.total() for proxy in proxies)
        assert set().union(*(proxy.faults for proxy in proxies)) <= set(FAULTS)
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        heads |= {_sound_head(open_store(store.url)) for store in stores}
    print(f"{counted} faults over runs on {endpoint}, heads {heads}")
    assert len(heads) == 1 and counted >= wanted


def _whole_run(store: Store) -> None:
    """Ends whole, or stops with the one clear error and is started again."""
    for _ in range(5):
        with suppress(StoreUnavailable):
            with hold(store, "smoke") as epoch:
                example_run.build(Run(store, "smoke", epoch), 1)
            return
    pytest.fail("five starts were not enough")


def _sound_head(store: Store) -> str:
    """The head of a run in which nothing is wrong, double or left over."""
    assert fsck(Run(store, "smoke")) == []
    assert unnamed(survey_of(Run(store, "smoke"))) == []
    assert not [uri for uri in store.list("", hidden=True) if "/.probe-" in uri or uri.startswith(".")]
    return Run(store, "smoke").history.head()


def test_a_store_that_stays_away_ends_in_one_clear_line(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyProxy(endpoint, 1, rate=1.0, most=10**6, stall=0.3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        store = S3Store(f"s3://{BUCKET}/away", timeout=0.2)
        with pytest.raises(StoreUnavailable, match=r"^store s3://populora-tests/away: .* \(7 attempts\)$"), hold(store, "smoke"):
            pass
    assert StoreUnavailable.exit_code == 3 and LOCK_SECONDS > 0


def test_a_lost_answer_of_a_conditional_write_is_still_ours(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = FaultyProxy(endpoint, 0, rate=0.0, most=1, stall=0.0)
    proxy.draw = lambda: answers.pop(0) if answers else ""  # type: ignore[method-assign]
    answers: list[str] = []
    with proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        store = S3Store(f"s3://{BUCKET}/lost")
        store.probe()
        answers.append("lost_answer")
        stamp = store.create("r/a.bin", b"mine")
        assert answers == [] and stamp == store.stamp("r/a.bin")
        assert store.create("r/a.bin", b"mine") is None
        answers += ["wrong_bytes"]
        assert store.read("r/a.bin") == b"mine"
        with pytest.raises(NotStored):
            store.read("r/b.bin")
