"""Artifacts in a bucket of any S3-compatible server that supports conditional writes (`If-None-Match: *`).

Endpoint, region and credentials come from the usual AWS variables and profile. Rules that hold on every server we know:
- The condition is set only on PUT, and on completing a multipart upload if a probe shows that the server honours it there.
  Otherwise large objects are sent in one PUT (up to 5 GiB), for which every server honours it.
- 409 and 412 both mean that another writer committed, unless the object carries our own token: then our first response was lost.
- Large objects are sent and read in parts, several at once.
- MD5 is checked both ways for all but large objects. Their readers verify the digests of manifests anyway, and their senders
  sign it (HTTP) or use TLS (HTTPS).
- Network failures are retried with jitter, for a few seconds or with as much patience as the store was opened with; user errors
  (credentials, bucket, permissions) are not.
"""

import hashlib
import os
import re
import secrets
import stat
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, cast
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from flows.store.errors import NotStored, StoreRefused, StoreUnavailable
from flows.store.machine_lock import LOCK_SECONDS, locked
from flows.store.names import Uris, check_run_id, check_uri
from flows.store.s3_calls import ATTEMPTS, ENDED, HURRIED, ObjectExists, Patience, RetryableFault, client, pause, settled

READS = 3  # attempts for an object whose ETag does not match the bytes received
TIMEOUT = 30.0
PART = 32 << 20
CHECKED = 8 << 20  # up to this size MD5 is computed
SPOOLED = 1 << 20  # bytes written at once when an object is spooled to a file
SINGLE = 5 << 30  # maximum size of one PUT
THREADS = 8


class S3Store:
    """A prefix in a bucket. The first write runs a probe that rejects a server which overwrites objects."""

    def __init__(self, url: str, timeout: float = TIMEOUT, patience: Patience = HURRIED) -> None:
        parts = urlsplit(url)
        prefix = parts.path.removeprefix("/").removesuffix("/")
        if not parts.netloc or parts.query or parts.fragment:
            raise StoreRefused(f"store {url!r}: write s3://bucket/prefix")
        if prefix:
            check_uri(prefix)
        self.bucket, self._prefix = parts.netloc, f"{prefix}/" if prefix else ""
        self.url = f"s3://{parts.netloc}/{prefix}".rstrip("/")
        self._client = client(url, timeout)
        self._patience = patience
        self._probing = threading.Lock()
        self._conditional_multipart: bool | None = None

    def make_bucket(self) -> None:
        """Create the bucket unless it exists. Only for a server of your own; elsewhere the owner sets the rules of buckets."""
        try:
            self._settled("", lambda: self._client.head_bucket(Bucket=self.bucket))
        except NotStored:
            with suppress(ObjectExists):
                self._settled("", lambda: self._client.create_bucket(Bucket=self.bucket))

    def read(self, uri: str) -> bytes:
        """Return the whole artifact. Raises NotStored."""
        for attempt in range(READS):
            data, answer = self._settled(uri, lambda: self._get(uri))
            if _fits(data, answer):
                break
            pause(attempt)
        return bytes(data)  # if it never matches, the server itself has wrong bytes: the reader's digest check reports that

    def open(self, uri: str) -> BinaryIO:
        """Open the artifact as an unnamed file in the temporary folder, to read in chunks. Raises NotStored."""
        return cast(BinaryIO, self._settled(uri, lambda: self._spool(uri)))

    def create(self, uri: str, data: bytes) -> str | None:
        """Write the artifact and return its stamp. Return None and change nothing if it already exists."""
        self.probe()
        return self._create(uri, data, multipart=bool(self._conditional_multipart) and len(data) > 2 * PART)

    def replace(self, uri: str, data: bytes) -> None:
        """Overwrite a dotted object, such as a lease; nothing else may be overwritten."""
        assert uri.rpartition("/")[2].startswith("."), uri
        key = self._key(uri)
        self._settled(uri, lambda: self._client.put_object(Bucket=self.bucket, Key=key, Body=data, ContentMD5=_md5(data)))

    def exists(self, uri: str) -> bool:
        """Return whether the artifact exists."""
        return self._head(uri) is not None

    def size(self, uri: str) -> int:
        """Return the artifact's size in bytes. Raises NotStored."""
        head = self._head(uri)
        if head is None:
            raise NotStored(f"{uri}: no such artifact")
        return int(head["ContentLength"])

    def stamp(self, uri: str) -> str:
        """Return the object's ETag, which changes when other bytes are written; empty if there is none."""
        head = self._head(uri)
        return _bare(head) if head else ""

    def delete(self, uri: str) -> None:
        """Remove debris or a retired artifact; do nothing if there is none."""
        key = self._key(uri)
        self._settled(uri, lambda: self._client.delete_object(Bucket=self.bucket, Key=key))

    def sweep(self, prefix: str) -> None:
        """Abort the multipart uploads that killed writers left under `prefix`: they use space and no listing shows them.

        Do nothing where the server has no such uploads, or the user may not list them.
        """
        wanted = {"Bucket": self.bucket, "Prefix": self._prefix + prefix}
        while True:
            try:
                found = self._settled(prefix, partial(self._client.list_multipart_uploads, **wanted))
            except StoreRefused:
                return
            for upload in found.get("Uploads", []):
                self._abort(upload["Key"], upload["UploadId"])
            if not found.get("IsTruncated"):
                return
            wanted |= {"KeyMarker": found["NextKeyMarker"], "UploadIdMarker": found["NextUploadIdMarker"]}

    def list(self, prefix: str, hidden: bool = False) -> Uris:
        """List all artifacts whose name starts with `prefix`, sorted; dotted ones (leases) only if `hidden`."""
        uris = [uri for page in self._pages(prefix) for uri in self._named(page)]
        return sorted(uri for uri in uris if hidden or not _is_hidden(uri))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of every artifact whose name starts with `prefix`, except dotted ones."""
        found = {uri: size for page in self._pages(prefix) for uri, size in self._named(page).items()}
        return {uri: found[uri] for uri in sorted(found) if not _is_hidden(uri)}

    def folders(self, prefix: str) -> Uris:
        """List the folders directly below `prefix` (empty, or ending in /) that hold artifacts, sorted, except dotted ones."""
        found = [entry["Prefix"] for page in self._pages(prefix, Delimiter="/") for entry in page.get("CommonPrefixes", [])]
        names = (name.removeprefix(self._prefix + prefix).removesuffix("/") for name in found)
        return sorted(name for name in names if not name.startswith("."))

    def free(self) -> int | None:
        """Return None: buckets do not report their free space."""
        return None

    @contextmanager
    def lock(self, run_id: str) -> Iterator[None]:
        """Admit one writer at a time on this machine. S3 has no locks, so across machines writers check again (flows.run.run)."""
        name = hashlib.sha256(f"{self._client.meta.endpoint_url} {self.url} {check_run_id(run_id)}".encode()).hexdigest()[:16]
        folder = _own_folder(Path(tempfile.gettempdir()) / f"populora-locks-{os.getuid()}")
        with locked(folder / name, run_id, LOCK_SECONDS + self._patience.seconds):  # its holder may be as patient
            yield

    def probe(self) -> None:
        """Once per process, write, try to overwrite conditionally, and reject the server if that succeeds."""
        with self._probing:
            if self._conditional_multipart is not None:
                return
            uri = f".probe-{secrets.token_hex(8)}"
            try:
                for body in (b"first", b"second"):
                    if (self._create(uri, body, multipart=False) is None) != (body == b"second"):
                        raise StoreRefused(
                            f"store {self.url}: this server ignores If-None-Match and overwrites objects, so two "
                            "writers would destroy each other's work; use another server"
                        )
                self._conditional_multipart = self._honours_multipart(uri)
            finally:
                with suppress(StoreRefused):  # whoever may not remove may still write
                    self.delete(uri)

    def _honours_multipart(self, uri: str) -> bool:
        """Return whether the server honours the condition on completing a multipart upload; False without multipart uploads."""
        try:
            return self._create(uri, b"third", multipart=True) is None
        except StoreRefused:
            return False

    # inside -------------------------------------------------------------------------------------------------------------------

    def _settled(self, uri: str, request: Callable[[], Any]) -> Any:
        return settled(self.url, uri, request, self._patience)

    def _pages(self, prefix: str, **more: str) -> Iterator[dict[str, Any]]:
        """Yield the responses of a listing, page by page."""
        while True:
            wanted = {"Bucket": self.bucket, "Prefix": self._prefix + prefix} | more
            page = dict(self._settled(prefix, partial(self._client.list_objects_v2, **wanted)))
            yield page
            if not page.get("IsTruncated"):
                return
            more = more | {"ContinuationToken": page["NextContinuationToken"]}

    def _named(self, page: dict[str, Any]) -> dict[str, int]:
        return {entry["Key"].removeprefix(self._prefix): int(entry["Size"]) for entry in page.get("Contents", [])}

    def _key(self, uri: str) -> str:
        return self._prefix + check_uri(uri)

    def _get(self, uri: str) -> tuple[bytes, dict[str, Any]]:
        answer = self._client.get_object(Bucket=self.bucket, Key=self._key(uri))
        if answer["ContentLength"] <= 2 * PART:
            return answer["Body"].read(), answer
        answer["Body"].close()
        return self._get_parts(uri, answer["ContentLength"], answer["ETag"]), answer

    def _get_parts(self, uri: str, size: int, tag: str) -> bytes:
        """Read a large object in ranges, several at once: one connection to S3 carries about 90 MB/s (AWS)."""
        whole = {"Bucket": self.bucket, "Key": self._key(uri), "IfMatch": tag}

        def part(at: int) -> bytes:
            last = min(at + PART, size) - 1
            data: bytes = self._client.get_object(**whole, Range=f"bytes={at}-{last}")["Body"].read()
            if len(data) != last + 1 - at:
                raise RetryableFault(f"the server sent {len(data)} bytes of the range {at} to {last}")
            return data

        try:
            with ThreadPoolExecutor(THREADS) as pool:
                return b"".join(pool.map(lambda at: self._settled(uri, partial(part, at)), range(0, size, PART)))
        except ObjectExists:  # what a failed condition means to a writer
            raise RetryableFault("the object was replaced while it was read") from None

    def _spool(self, uri: str) -> IO[bytes]:
        answer = self._client.get_object(Bucket=self.bucket, Key=self._key(uri))
        file = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
        try:
            for piece in answer["Body"].iter_chunks(SPOOLED):
                file.write(piece)
            file.flush()
        except BaseException:
            file.close()
            raise
        return file

    def _head(self, uri: str) -> dict[str, Any] | None:
        key = self._key(uri)
        try:
            return dict(self._settled(uri, lambda: self._client.head_object(Bucket=self.bucket, Key=key)))
        except NotStored:
            return None

    def _create(self, uri: str, data: bytes, multipart: bool) -> str | None:
        key, token = self._key(uri), secrets.token_hex(8)
        if len(data) > SINGLE and not multipart:
            raise StoreRefused(
                f"{uri}: {len(data)} bytes exceed the limit of one PUT, and this server has no conditional multipart uploads"
            )
        put = self._put_parts if multipart else self._put
        for attempt in range(ATTEMPTS):
            try:
                return self._settled(uri, lambda: put(key, data, token))
            except ObjectExists:
                head = self._head(uri)
                if head is not None:
                    ours = head.get("Metadata", {}).get("writer") == token
                    return _bare(head) if ours else None
                pause(attempt)  # a conflict with a writer or deleter that left no object
        raise StoreUnavailable(f"{uri}: the server keeps reporting a conflict with another writer")

    def _put(self, key: str, data: bytes, token: str) -> str:
        put = {"Bucket": self.bucket, "Key": key, "Body": data, "IfNoneMatch": "*", "Metadata": {"writer": token}}
        if len(data) > CHECKED:
            return _bare(self._client.put_object(**put))
        answer = self._client.put_object(**put, ContentMD5=_md5(data))
        if _fits(data, answer):
            return _bare(answer)
        self._client.delete_object(Bucket=self.bucket, Key=key)
        raise RetryableFault("the server received different bytes than were sent")

    def _put_parts(self, key: str, data: bytes, token: str) -> str:
        begun = self._client.create_multipart_upload(Bucket=self.bucket, Key=key, Metadata={"writer": token})
        upload = {"Bucket": self.bucket, "Key": key, "UploadId": begun["UploadId"]}
        try:
            view = memoryview(data)
            pieces = [view[at : at + PART] for at in range(0, len(data), PART)]

            def send(number: int) -> dict[str, Any]:
                body = bytes(pieces[number - 1])
                part = self._settled(key, partial(self._client.upload_part, **upload, PartNumber=number, Body=body))
                return {"PartNumber": number, "ETag": part["ETag"]}

            with ThreadPoolExecutor(THREADS) as pool:
                parts = list(pool.map(send, range(1, len(pieces) + 1)))
            return _bare(self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"))
        except BaseException as error:
            self._abort(key, begun["UploadId"])
            if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") == ENDED:
                raise RetryableFault("the upload was ended before it was complete") from error
            raise

    def _abort(self, key: str, upload_id: str) -> None:
        with suppress(ClientError, BotoCoreError):  # it is gone, or remains for the next sweep; no artifact depends on it
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)


def _own_folder(folder: Path) -> Path:
    """Return a folder that only this user can enter, created if missing. Raises StoreRefused if another user created it.

    Any user may write in the temporary folder: a link or a folder of another user could redirect our lock files.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise StoreRefused(f"{folder} is not a folder owned by this user; remove it, or set TMPDIR to another folder")
        if found.st_mode & 0o077:  # created so by older versions
            folder.chmod(0o700)
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error.strerror or error}") from error
    return folder


def _is_hidden(uri: str) -> bool:
    return any(part.startswith(".") for part in uri.split("/"))


def _md5(data: bytes) -> str:
    return b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _bare(answer: dict[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _fits(data: bytes, answer: dict[str, Any]) -> bool:
    """Return whether an ETag is the MD5 of these bytes; True if it cannot tell (large objects, servers with other ETags)."""
    encrypted = answer.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in answer
    if len(data) > CHECKED or encrypted or not re.fullmatch(r"[0-9a-f]{32}", _bare(answer)):
        return True
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == _bare(answer)
