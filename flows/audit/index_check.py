"""The index of earlier tasks against the tables that it was made from: every segment is made again and compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from flows.run.earlier_index import BEGIN, KEYS, ROWS, TASKS
from flows.run.manifest import Manifest, folder_of
from stages.core.earlier_tasks import joined_keys, joined_rows, keys_of, rows_of
from stages.core.method.leak import believed


@dataclass(frozen=True)
class _Made:
    """The segment of generations `begin` to `end` - 1, made from their tables."""

    begin: int
    end: int
    keys: pa.Table
    rows: pa.Table


class IndexCheck:
    """Goes through the generations in order and keeps the segments that later ones are joined from."""

    def __init__(self) -> None:
        self._made: list[_Made] = []
        self._readable_since = 0  # all tables from this generation on could be read

    def problems(self, generation: int, manifest: Manifest | None, found: Mapping[str, pa.Table]) -> Iterator[tuple[str, str]]:
        """Yield (uri, problem) where the generation's segment is not what its tables say.

        `manifest` is that of `verify`, and `found` holds the generation's sound tables by uri. A segment is not compared where a
        table that it covers cannot be read: that is reported on its own.
        """
        folder = folder_of(generation)
        tasks = found.get(f"{folder}/{TASKS}.parquet")
        if tasks is None:
            self._made, self._readable_since = [], generation + 1
            return
        tasks = believed(tasks)
        own = _Made(generation, generation + 1, keys_of(tasks), rows_of(tasks))
        begin = None if manifest is None else manifest.counts.get(BEGIN)
        if begin is None:
            self._made.append(own)
            return
        parts = [one for one in self._made if one.begin >= begin] + [own]
        if not _covers(parts, begin):
            self._made.append(own)
            if begin >= self._readable_since:
                yield f"{folder}/{KEYS}.parquet", f"its segment begins at generation {begin}, inside an earlier segment"
            return
        made = _Made(begin, own.end, joined_keys([one.keys for one in parts]), joined_rows([one.rows for one in parts]))
        self._made = [one for one in self._made if one.begin < begin] + [made]
        for name, table in ((KEYS, made.keys), (ROWS, made.rows)):
            uri = f"{folder}/{name}.parquet"
            if uri in found and not found[uri].equals(table):
                yield uri, f"it is not the index of the tasks of generations {begin} to {generation}"


def _covers(parts: list[_Made], begin: int) -> bool:
    """Return whether the parts follow each other from `begin` on."""
    return [begin, *(one.end for one in parts[:-1])] == [one.begin for one in parts]
