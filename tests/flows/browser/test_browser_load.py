"""The browser under load: files go out in pieces, searches in pages, and nothing waits for ever or takes the machine's memory."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn
from fastapi.testclient import TestClient

from flows.browser import limits
from flows.browser.app import make_app
from flows.config import PROJECT
from flows.pages.library import Library
from flows.run.lease import hold
from flows.run.run import Run
from flows.run.verified import PIECE, Reader, open_verified
from flows.storage import Damaged
from flows.store.file_store import FileStore
from flows.store.table_bytes import encode_table
from tests.support import example_run
from tests.support.servers import s3_servers

MOST = 300 << 20
ROLLOUTS = "generation=0000/rollouts.parquet"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run of 25 generations."""
    root = tmp_path_factory.mktemp("load")
    with hold(FileStore(root), "long") as epoch:
        example_run.build(Run(FileStore(root), "long", epoch), 25)
    return root


def ask(app, path):
    """(status, headers, pieces of the body) of a GET, as the application sends them."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http"}
    scope |= {"headers": [(b"host", b"127.0.0.1")], "http_version": "1.1", "root_path": "", "client": None, "server": None}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), [message["body"] for message in sent[1:] if message.get("body")]


def swap(root, run_id, uri, digest, rows=None):
    """Makes every manifest of the run name this digest for an artifact that the test has put in place of the run's own."""
    for path in (root / run_id).rglob("*.json"):
        found = json.loads(path.read_text())
        refs = [ref for ref in found.get("outputs", []) if isinstance(ref, dict) and ref["uri"] == uri]
        for ref in refs:
            ref |= {"sha256": digest} | ({"rows": rows} if rows else {})
        if refs:
            path.write_text(json.dumps(found))


def test_a_download_goes_out_in_pieces_after_its_digest_was_checked(store):
    uri, data = "adapters/t0-g0000/optimizer.safetensors", os.urandom(3 * PIECE + 5)
    (store / "long" / uri).write_bytes(data)
    assert ask(make_app(str(store)), f"/runs/long/files/{uri}")[0] == 502
    swap(store, "long", uri, hashlib.sha256(data).hexdigest())
    status, headers, pieces = ask(make_app(str(store)), f"/runs/long/files/{uri}")
    assert status == 200 and headers[b"content-length"] == str(len(data)).encode() and b"".join(pieces) == data
    assert [len(piece) for piece in pieces] == [PIECE] * 3 + [5]


def test_what_is_read_later_is_what_was_checked(tmp_path):
    files = FileStore(tmp_path)
    with hold(files, "run") as epoch:
        run = Run(files, "run", epoch)
        ref = run.write_blob("adapters/t0-start/adapter_config.json", b"first" * 1000)
    file = open_verified(run, ref)
    readers = [Reader(file), Reader(file)]
    place = tmp_path / "run" / ref.uri
    place.unlink()
    place.write_bytes(b"other" * 1000)
    readers[0].seek(5)
    assert readers[1].read() == b"first" * 1000 and readers[0].read(5) == b"first"
    with pytest.raises(Damaged, match="its digest is not"):
        open_verified(run, ref)


def test_a_file_kept_open_is_checked_anew_when_the_stores_is_another(store):
    library = Library(str(store))
    run = library.run("long")
    ref = run.history.find("generation=0003/tasks.parquet")
    rows = library.parquet(run, ref).metadata.num_rows
    place = store / "long" / ref.uri
    data = place.read_bytes()
    place.unlink()
    place.write_bytes(data[:-1] + b"x")
    with pytest.raises(Damaged):
        library.parquet(run, ref)
    place.unlink()
    place.write_bytes(data)
    assert library.parquet(run, ref).metadata.num_rows == rows


def test_later_generations_are_searched_a_page_at_a_time(store):
    with TestClient(make_app(str(store)), base_url="http://127.0.0.1") as pages:
        first = pages.get("/runs/long/tasks/g0000-m00-p000")
        assert "generations 1 to 20" in first.text and 'href="?later=2"' in first.text and "?later=0" not in first.text
        second = pages.get("/runs/long/tasks/g0000-m00-p000?later=2")
        assert "generations 21 to 24" in second.text and 'href="?later=1"' in second.text and "?later=3" not in second.text
        assert "There is no page 3 of later generations" in pages.get("/runs/long/tasks/g0000-m00-p000?later=3").text


def test_an_answer_that_does_not_come_is_503():
    async def silent(_scope, _receive, _send):
        await asyncio.Event().wait()

    status, _, pieces = ask(limits.Limited(silent, answer=0.05), "/")
    assert status == 503 and b"no answer in time" in pieces[0]


def test_a_reader_that_takes_nothing_is_left():
    async def endless(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(limits.Limited(endless, piece=0.05)({"type": "http", "path": "/"}, None, send))


def test_a_connection_that_asks_nothing_is_ended():
    class Hasty(limits.Impatient):
        patience = 0.1

    async def silence():
        config = limits.config(None)
        config.http = Hasty
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Hasty(config, server.server_state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(b"GET / HTT")
        assert await reader.read() == b""
        writer.close()
        listening.close()

    asyncio.run(silence())


def large(root):
    """Makes the run's adapters 10 GB of (sparse) files, and its rollouts a million; returns names of adapters."""
    size, zeros = 512 << 20, hashlib.sha256()
    for _ in range(512):
        zeros.update(bytes(PIECE))
    adapters = sorted(folder.name for folder in (root / "big" / "adapters").iterdir())[:20]
    for adapter in adapters:
        uri = f"adapters/{adapter}/adapter_model.safetensors"
        (root / "big" / uri).unlink()
        with (root / "big" / uri).open("wb") as file:
            file.truncate(size)
        swap(root, "big", uri, zeros.hexdigest())
    place = root / "big" / ROLLOUTS
    few = pq.read_table(place)
    data = encode_table(pa.concat_tables([many(few, part) for part in range(20)]))
    place.unlink()
    place.write_bytes(data)
    swap(root, "big", ROLLOUTS, hashlib.sha256(data).hexdigest(), 1_000_000)
    return adapters


def many(few, part):
    """50,000 rollouts with texts and tokens of their own."""
    rows = few.take(pa.array([at % few.num_rows for at in range(50_000)]))
    texts = pa.array([f"{part} {at} " + "words " * 30 for at in range(rows.num_rows)])
    ids = pa.array([f"g0000-m00-p000-r{part * rows.num_rows + at:02d}" for at in range(rows.num_rows)])
    tokens = pa.array([list(range(at, at + 64)) for at in range(rows.num_rows)], few.schema.field("completion_ids").type)
    for name, column in (("text", texts), ("rollout_id", ids), ("completion_ids", tokens)):
        rows = rows.set_column(rows.schema.get_field_index(name), few.schema.field(name), column)
    return rows


def peak(pid):
    """The most memory that a process ever had, in bytes."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_gigabytes_of_adapters_and_a_million_rows_fit_into_300_mb(tmp_path):
    with hold(FileStore(tmp_path), "big") as epoch:
        example_run.build(Run(FileStore(tmp_path), "big", epoch), 10)
    adapters = large(tmp_path)
    port = s3_servers.free_port()
    command = [sys.executable, "-m", "flows.cli", "browse", "--store", str(tmp_path), "--port", str(port)]
    table = f"/tables/{ROLLOUTS}"
    asked = ["", "/adapters", f"/adapters/{adapters[5]}", "/figures", table, f"{table}?page=20000", f"/rows/999999/{ROLLOUTS}"]
    asked += [f"{table}?column=seed&value=1", f"{table}?sort=seed", f"{table}?column=text&value=none", "/generations/0"]
    asked += ["/tasks/g0001-m00-p000"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            for address in asked:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/runs/big{address}", timeout=600) as page:
                    page.read()
                print(f"{peak(process.pid) >> 20} MB after {address or '/'}")
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/runs/big{table}?sort=text", timeout=600)
            for adapter in (adapters[5], adapters[12]):
                url = f"http://127.0.0.1:{port}/runs/big/files/adapters/{adapter}/adapter_model.safetensors"
                with urllib.request.urlopen(url, timeout=600) as download:
                    assert sum(len(piece) for piece in iter(lambda: download.read(PIECE), b"")) == 512 << 20
            print(f"{peak(process.pid) >> 20} MB after everything")
            assert peak(process.pid) < MOST
        finally:
            process.terminate()
    print(f"{sum(f.stat().st_size for f in (tmp_path / 'big' / 'adapters').rglob('*')) >> 30} GB of adapters")
