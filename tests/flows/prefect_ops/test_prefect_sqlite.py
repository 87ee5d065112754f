"""Prefect on SQLite: transactions that read while another wrote are refused, unless each takes the lock as it begins; and two
first servers of a home create the same tables, unless they do so in turn."""

import asyncio
import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.interface import PrefectDBInterface

from flows.prefect_ops import ui_server


async def _read_then_write_beside_a_writer(file: Path) -> list[str]:
    """What was written, in order, when a second transaction begins after the first has read and before it writes."""
    database = AioSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{file}")
    engine = await database.engine()
    has_read = asyncio.Event()

    async def write(name: str, first: bool) -> None:
        if not first:
            await has_read.wait()
        session = await database.session(engine)
        async with session, database.begin_transaction(session):
            await session.execute(sa.text("select * from written"))
            if first:
                has_read.set()
                await asyncio.sleep(0.5)
            await session.execute(sa.text("insert into written values (:name)"), {"name": name})

    async with engine.begin() as connection:
        await connection.execute(sa.text("create table written (name text)"))
    try:
        await asyncio.gather(write("first", True), write("second", False))
        async with engine.connect() as connection:
            return [row[0] for row in await connection.execute(sa.text("select name from written order by rowid"))]
    finally:
        await engine.dispose()


def test_the_trap(tmp_path: Path) -> None:
    with pytest.raises(sa.exc.OperationalError, match="database is locked"):
        asyncio.run(_read_then_write_beside_a_writer(tmp_path / "trap.db"))


def test_transactions_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AioSqliteConfiguration, "begin_transaction", AioSqliteConfiguration.begin_transaction)  # put back after
    ui_server.take_turns()
    assert asyncio.run(_read_then_write_beside_a_writer(tmp_path / "turns.db")) == ["first", "second"]


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("sqlite+aiosqlite:///{home}/prefect.db", ["begun", "done"] * 2),
        ("sqlite+aiosqlite:///file::memory:?cache=shared&uri=true", ["begun"] * 2 + ["done"] * 2),
        ("sqlite+aiosqlite:///file:/nowhere/prefect.db?uri=true", ["begun"] * 2 + ["done"] * 2),
        ("postgresql+asyncpg://user@host/prefect", ["begun"] * 2 + ["done"] * 2),
    ],
)
def test_only_files_of_this_machine_are_created_in_turn(
    url: str, seen: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    async def create(_: Any) -> None:
        found.append("begun")
        await asyncio.sleep(0.3)
        found.append("done")

    async def two_servers() -> None:
        server: Any = SimpleNamespace(database_config=SimpleNamespace(connection_url=url.format(home=tmp_path)))
        await asyncio.gather(PrefectDBInterface.create_db(server), PrefectDBInterface.create_db(server))

    monkeypatch.setattr(PrefectDBInterface, "create_db", create)
    ui_server.migrate_in_turn()
    asyncio.run(two_servers())
    assert found == seen


def test_a_server_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ui_server, "TURN_SECONDS", 0.2)
    held = (tmp_path / "prefect.db.lock").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    with held, (tmp_path / "prefect.db.lock").open("w") as lock, pytest.raises(TimeoutError):
        asyncio.run(ui_server._wait_for_turn(lock))
    assert "prefect.db.lock, which other Prefect servers hold" in capsys.readouterr().err
