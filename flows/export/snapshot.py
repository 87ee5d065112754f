"""A store as it was at one moment, for reading: the names of one run are listed once, however many pages ask for them."""

from bisect import bisect_left
from contextlib import AbstractContextManager
from typing import BinaryIO, NoReturn

from flows.storage import NotStored, Store, StoreRefused, Uris


class SnapshotStore:
    """One run as it stood when the snapshot was taken. Artifacts never change, so only names and run.json are kept.

    What a fork shares with other runs is asked of the store itself.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self.url = store.url
        self._store, self._own = store, f"{run_id}/"
        self._names = sorted(store.list(self._own))
        self._known = frozenset(self._names)
        self._description = store.read(f"{run_id}/run.json")

    def read(self, uri: str) -> bytes:
        """Return the whole artifact. Raises NotStored."""
        if uri == f"{self._own}run.json":
            return self._description
        self._check(uri)
        return self._store.read(uri)

    def open(self, uri: str) -> BinaryIO:
        """Open the artifact. Raises NotStored."""
        self._check(uri)
        return self._store.open(uri)

    def exists(self, uri: str) -> bool:
        """Return whether the artifact existed."""
        return uri in self._known if self._is_own(uri) else self._store.exists(uri)

    def size(self, uri: str) -> int:
        """Return the artifact's size in bytes. Raises NotStored."""
        self._check(uri)
        return self._store.size(uri)

    def stamp(self, uri: str) -> str:
        """Return the store's stamp: readers that keep a file open ask whether it is still the same."""
        return self._store.stamp(uri)

    def list(self, prefix: str, hidden: bool = False) -> Uris:
        """Return the artifacts whose name starts with `prefix`, sorted."""
        if hidden or not self._is_own(prefix):
            return self._store.list(prefix, hidden)
        first = bisect_left(self._names, prefix)
        last = bisect_left(self._names, prefix + "\U0010ffff")
        return self._names[first:last]

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the bytes of each artifact whose name starts with `prefix`."""
        found = self._store.sizes(prefix)
        return {uri: size for uri, size in found.items() if uri in self._known or not uri.startswith(self._own)}

    def folders(self, prefix: str) -> Uris:
        """Return the names directly below `prefix` that contained artifacts, sorted."""
        if not self._is_own(prefix):
            return self._store.folders(prefix)
        inside = (name.removeprefix(prefix).partition("/") for name in self.list(prefix))
        return sorted({folder for folder, slash, _ in inside if slash})

    def free(self) -> int | None:
        """Return how many bytes the store can still take."""
        return self._store.free()

    def create(self, uri: str, data: bytes) -> NoReturn:
        """Refuse: a snapshot is for reading, as are `replace`, `sweep`, `delete` and `lock`."""
        raise StoreRefused(f"{uri}: a snapshot cannot be written")

    def replace(self, uri: str, data: bytes) -> NoReturn:
        """Refuse."""
        self.create(uri, data)

    def sweep(self, prefix: str) -> NoReturn:
        """Refuse."""
        self.create(prefix, b"")

    def delete(self, uri: str) -> NoReturn:
        """Refuse."""
        self.create(uri, b"")

    def lock(self, run_id: str) -> AbstractContextManager[None]:
        """Refuse."""
        self.create(run_id, b"")

    def _is_own(self, uri: str) -> bool:
        return uri.startswith(self._own) and "/." not in uri  # leases and their like are the store's own business

    def _check(self, uri: str) -> None:
        if self._is_own(uri) and uri not in self._known:
            raise NotStored(f"{uri}: no such artifact")
