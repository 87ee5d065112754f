"""Artifacts in a bucket of any S3-compatible server that refuses to overwrite when asked (`If-None-Match: *`).

Endpoint, region and credentials come from the usual AWS variables and profile. Rules that hold on every server we know:
- condition only on PUT; on completing a multipart upload only where a probe shows that the server honours it there, otherwise
  large objects go in one PUT (up to 5 GiB), which every server conditions;
- 409 and 412 both mean that somebody else committed, unless the object carries our own token: then our first answer was lost;
- MD5 both ways for all but large objects, whose readers verify the digests of manifests anyway, and whose senders sign it (HTTP)
  or use TLS (HTTPS);
- what the network broke is tried again with jitter; what the user got wrong (credentials, bucket, rights) is not.
"""

import hashlib
import os
import random
import re
import secrets
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError, PartialCredentialsError
from urllib3.exceptions import HTTPError

from flows.file_store import NotStored, StoreRefused, StoreUnavailable, Uris, check_run_id, check_uri, locked

ATTEMPTS = 7
READS = 3  # of an object whose ETag does not fit the bytes that came
TIMEOUT = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
PART = 32 << 20
CHECKED = 8 << 20  # up to this size MD5 is worth its time
SINGLE = 5 << 30  # the most that one PUT takes
THREADS = 8
TAKEN = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
ABSENT = ("NoSuchKey", "NotFound", "404")
PASSING = (
    "SlowDown",
    "RequestTimeout",
    "BadDigest",
    "IncompleteBody",
    "XAmzContentSHA256Mismatch",
    "InternalError",
    "Throttling",
    "OperationAborted",
)
WORDS = {
    "NoSuchBucket": "there is no such bucket",
    "InvalidAccessKeyId": "the server does not know this access key",
    "SignatureDoesNotMatch": "the server refuses the secret key",
    "AccessDenied": "access is denied: check credentials and rights",
    "403": "access is denied: check credentials and rights",
    "RequestTimeTooSkewed": "this machine's clock is too far from the server's",
}


class S3Store:
    """A prefix in a bucket. Writing begins with a probe that declines a server which overwrites."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url)
        prefix = parts.path.removeprefix("/").removesuffix("/")
        if not parts.netloc or parts.query or parts.fragment:
            raise StoreRefused(f"store {url!r}: write s3://bucket/prefix")
        if prefix:
            check_uri(prefix)
        self.bucket, self._prefix = parts.netloc, f"{prefix}/" if prefix else ""
        self.url = f"s3://{parts.netloc}/{prefix}".rstrip("/")
        self._client = _client(url, timeout)
        self._probing = threading.Lock()
        self._conditional_multipart: bool | None = None

    def read(self, uri: str) -> bytes:
        """The whole artifact. Raises NotStored."""
        for attempt in range(READS):
            data, answer = self._call(uri, lambda: self._get(uri))
            if _fits(data, answer):
                break
            _pause(attempt)
        return bytes(data)  # if it never fits, the server itself has other bytes than it was given: the reader's digest tells

    def create(self, uri: str, data: bytes) -> str | None:
        """Writes the artifact unless one is there already and returns its stamp; None: somebody else did, theirs is untouched."""
        self.probe()
        return self._create(uri, data, multipart=bool(self._conditional_multipart) and len(data) > 2 * PART)

    def replace(self, uri: str, data: bytes) -> None:
        """Overwrites a dotted object, such as a lease; nothing else may be overwritten."""
        assert uri.rpartition("/")[2].startswith("."), uri
        key = self._key(uri)
        self._call(uri, lambda: self._client.put_object(Bucket=self.bucket, Key=key, Body=data, ContentMD5=_md5(data)))

    def exists(self, uri: str) -> bool:
        """Whether the artifact is there."""
        return self._head(uri) is not None

    def size(self, uri: str) -> int:
        """Bytes of the artifact. Raises NotStored."""
        head = self._head(uri)
        if head is None:
            raise NotStored(f"{uri}: no such artifact")
        return int(head["ContentLength"])

    def stamp(self, uri: str) -> str:
        """The object's ETag, which changes when other bytes are written; empty when there is none."""
        head = self._head(uri)
        return _bare(head) if head else ""

    def delete(self, uri: str) -> None:
        """Removes debris or a retired artifact; nothing happens when there is none."""
        key = self._key(uri)
        self._call(uri, lambda: self._client.delete_object(Bucket=self.bucket, Key=key))

    def sweep(self, prefix: str) -> None:
        """Aborts the multipart uploads that killed writers left under `prefix`: they cost space and nobody can see them."""
        where = self._prefix + prefix
        found = self._call(prefix, lambda: self._client.list_multipart_uploads(Bucket=self.bucket, Prefix=where))
        for upload in found.get("Uploads", []):
            self._abort(upload["Key"], upload["UploadId"])

    def list(self, prefix: str, hidden: bool = False) -> Uris:
        """All artifacts whose name starts with `prefix`, sorted; dotted ones (leases) only if `hidden`."""
        found: Uris = []
        more: dict[str, str] = {}
        while True:
            wanted = {"Bucket": self.bucket, "Prefix": self._prefix + prefix} | more
            page = self._call(prefix, partial(self._client.list_objects_v2, **wanted))
            found += [entry["Key"].removeprefix(self._prefix) for entry in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                break
            more = {"ContinuationToken": page["NextContinuationToken"]}
        return sorted(uri for uri in found if hidden or not any(part.startswith(".") for part in uri.split("/")))

    def free(self) -> int | None:
        """Buckets do not say."""
        return None

    @contextmanager
    def lock(self, run_id: str) -> Iterator[None]:
        """One writer at a time on this machine; S3 has no locks, so across machines writers check again (flows.manifest)."""
        name = hashlib.sha256(f"{self._client.meta.endpoint_url} {self.url} {check_run_id(run_id)}".encode()).hexdigest()[:16]
        with locked(Path(tempfile.gettempdir()) / f"populora-locks-{os.getuid()}" / name, run_id):
            yield

    def probe(self) -> None:
        """Once a process: writes, tries to overwrite on condition, and declines the server if that succeeds."""
        with self._probing:
            if self._conditional_multipart is not None:
                return
            uri = f".probe-{secrets.token_hex(8)}"
            try:
                for body in (b"first", b"second"):
                    if (self._create(uri, body, multipart=False) is None) != (body == b"second"):
                        raise StoreRefused(
                            f"store {self.url}: this server overwrites objects although asked not to (If-None-Match), so two "
                            "writers would destroy each other's work; use another server"
                        )
                self._conditional_multipart = self._honours_multipart(uri)
            finally:
                self.delete(uri)

    def _honours_multipart(self, uri: str) -> bool:
        """Whether the condition holds when a multipart upload completes; False, too, where there are no multipart uploads."""
        try:
            return self._create(uri, b"third", multipart=True) is None
        except StoreRefused:
            return False

    # inside -------------------------------------------------------------------------------------------------------------------

    def _key(self, uri: str) -> str:
        return self._prefix + check_uri(uri)

    def _get(self, uri: str) -> tuple[bytes, dict[str, Any]]:
        answer = self._client.get_object(Bucket=self.bucket, Key=self._key(uri))
        return answer["Body"].read(), answer

    def _head(self, uri: str) -> dict[str, Any] | None:
        key = self._key(uri)
        try:
            return dict(self._call(uri, lambda: self._client.head_object(Bucket=self.bucket, Key=key)))
        except NotStored:
            return None

    def _create(self, uri: str, data: bytes, multipart: bool) -> str | None:
        key, token = self._key(uri), secrets.token_hex(8)
        if len(data) > SINGLE and not multipart:
            raise StoreRefused(
                f"{uri}: {len(data)} bytes are more than one PUT takes, and this server has no conditional multipart"
            )
        put = self._put_parts if multipart else self._put
        for attempt in range(ATTEMPTS):
            try:
                return self._call(uri, lambda: put(key, data, token))
            except _Taken:
                head = self._head(uri)
                if head is not None:
                    ours = head.get("Metadata", {}).get("writer") == token
                    return _bare(head) if ours else None
                _pause(attempt)  # a conflict with a writer or deleter that left nothing
        raise StoreUnavailable(f"{uri}: the server keeps answering that another writer is at it")

    def _put(self, key: str, data: bytes, token: str) -> str:
        put = {"Bucket": self.bucket, "Key": key, "Body": data, "IfNoneMatch": "*", "Metadata": {"writer": token}}
        if len(data) > CHECKED:
            return _bare(self._client.put_object(**put))
        answer = self._client.put_object(**put, ContentMD5=_md5(data))
        if _fits(data, answer):
            return _bare(answer)
        self._client.delete_object(Bucket=self.bucket, Key=key)
        raise _Again("the server received other bytes than were sent")

    def _put_parts(self, key: str, data: bytes, token: str) -> str:
        begun = self._client.create_multipart_upload(Bucket=self.bucket, Key=key, Metadata={"writer": token})
        upload = {"Bucket": self.bucket, "Key": key, "UploadId": begun["UploadId"]}
        try:
            view = memoryview(data)
            pieces = [view[at : at + PART] for at in range(0, len(data), PART)]

            def send(number: int) -> dict[str, Any]:
                body = bytes(pieces[number - 1])
                part = self._call(key, partial(self._client.upload_part, **upload, PartNumber=number, Body=body))
                return {"PartNumber": number, "ETag": part["ETag"]}

            with ThreadPoolExecutor(THREADS) as pool:
                parts = list(pool.map(send, range(1, len(pieces) + 1)))
            return _bare(self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"))
        except BaseException:
            self._abort(key, begun["UploadId"])
            raise

    def _abort(self, key: str, upload_id: str) -> None:
        with suppress(ClientError, BotoCoreError):  # it is gone, or stays for the next sweep; no artifact depends on it
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)

    def _call(self, uri: str, request: Callable[[], Any]) -> Any:
        """A request's answer, tried again with jitter while the fault is a passing one. Raises the store's own errors."""
        for attempt in range(ATTEMPTS):
            try:
                return request()
            except ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))
                status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
                if code in TAKEN:
                    raise _Taken from error
                if code in ABSENT:
                    raise NotStored(f"{uri}: no such artifact") from error
                if code not in PASSING and status < 500 and status != 429:
                    raise StoreRefused(f"store {self.url}: {uri}: {WORDS.get(code, f'refused ({code})')}") from error
                fault = code or f"HTTP {status}"
            except (NoCredentialsError, PartialCredentialsError) as error:
                raise StoreRefused(
                    f"store {self.url}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile"
                ) from error
            except ParamValidationError as error:
                raise StoreRefused(f"store {self.url}: {str(error).splitlines()[-1]}") from error
            except (BotoCoreError, HTTPError, _Again, OSError) as error:
                fault = str(error).split("\n")[0]
            _pause(attempt)
        raise StoreUnavailable(f"store {self.url}: {uri}: {fault} ({ATTEMPTS} attempts)")


class _Taken(Exception):
    """The condition failed: an object is there."""


class _Again(Exception):
    """A fault that we noticed ourselves and that another attempt may mend."""


def _client(url: str, timeout: float) -> Any:
    config = Config(
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1},
        connect_timeout=min(5.0, timeout),
        read_timeout=timeout,
        max_pool_connections=4 * THREADS,
    )
    try:
        session = boto3.Session()
        return session.client("s3", region_name=session.region_name or "us-east-1", config=config)
    except (BotoCoreError, ValueError) as error:
        raise StoreRefused(f"store {url!r}: {error}") from error


def _pause(attempt: int) -> None:
    """Full jitter: anywhere up to a bound that doubles."""
    time.sleep(random.uniform(0.0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt)))


def _md5(data: bytes) -> str:
    return b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _bare(answer: dict[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _fits(data: bytes, answer: dict[str, Any]) -> bool:
    """Whether an ETag is the MD5 of these bytes; also where it cannot tell (large objects, servers with ETags of their own)."""
    encrypted = answer.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in answer
    if len(data) > CHECKED or encrypted or not re.fullmatch(r"[0-9a-f]{32}", _bare(answer)):
        return True
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == _bare(answer)
