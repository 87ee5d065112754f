"""One request to an S3-compatible server: what its responses mean, what is retried, and what the user must fix."""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as NotConnected
from urllib3.exceptions import HTTPError

from flows.store.errors import AccessRefused, NotStored, StoreRefused, StoreUnavailable

ATTEMPTS = 7
CONNECTIONS = 32
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
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
    "408",
)
BUSY = 429
UNREACHED = (HTTPClientError, NotConnected, HTTPError, ConnectionError, TimeoutError)
FULL = "Quota"
"""In the codes of a full bucket, where its owner may make room: QuotaExceeded, XMinioAdminBucketQuotaExceeded."""
UNKNOWN = ("NotImplemented", "501")
"""The server does not know what the request asks for; it is no fault that passes."""
ENDED = "NoSuchUpload"
"""A sweep or a rule of the bucket has ended the multipart upload: another one must begin."""
NO_ACCESS = {
    "NoSuchBucket": "the bucket does not exist",
    "InvalidAccessKeyId": "the server does not know this access key",
    "SignatureDoesNotMatch": "the server rejects the secret key",
    "ExpiredToken": "the credentials have expired",
    "InvalidToken": "the server rejects the session token",
    "AccessDenied": "access is denied: check credentials and rights",
    "403": "access is denied: check credentials and rights",
    "RequestTimeTooSkewed": "this machine's clock is too far from the server's",
}


class ObjectExists(Exception):
    """The condition failed: the object exists."""


class RetryableFault(Exception):
    """A fault detected on our side that a retry may resolve."""


@dataclass(frozen=True)
class Patience:
    """For how many seconds a request is repeated while the server cannot be reached, or says that it fails or is busy.

    Any transient fault has ATTEMPTS, which take some 6 seconds: what a user waits for should end soon.
    """

    seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


HURRIED = Patience()


def settled(url: str, uri: str, request: Callable[[], Any], patience: Patience = HURRIED) -> Any:
    """Return a request's response, retried with jitter while the fault is transient. Raises the store's own errors.

    Raises RetryableFault at once for a part of an upload that is gone: whoever began the upload begins it again.
    """
    began, attempt = patience.clock(), 0
    while True:
        try:
            return request()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if code in TAKEN:
                raise ObjectExists from error
            if code in ABSENT:
                raise NotStored(f"{uri}: no such artifact") from error
            if code == ENDED:
                raise RetryableFault("the upload was ended by a sweep or a rule of the bucket") from error
            if code in UNKNOWN:
                raise StoreRefused(f"store {url}: {uri}: this server cannot do what was asked ({code})") from error
            if code not in PASSING and FULL not in code and status < 500 and status not in (408, 429):
                kind = AccessRefused if code in NO_ACCESS or status in (401, 403) else StoreRefused
                raise kind(f"store {url}: {uri}: {NO_ACCESS.get(code, f'refused ({code})')}") from error
            fault, outage = code or f"HTTP {status}", (status >= 500 or status == BUSY) and FULL not in code
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise AccessRefused(
                f"store {url}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile"
            ) from error
        except ParamValidationError as error:
            raise StoreRefused(f"store {url}: {str(error).splitlines()[-1]}") from error
        except (BotoCoreError, HTTPError, RetryableFault, OSError) as error:
            fault, outage = str(error).split("\n")[0], isinstance(error, UNREACHED)
        attempt += 1
        if attempt >= ATTEMPTS and not (outage and patience.clock() - began < patience.seconds):
            raise StoreUnavailable(f"store {url}: {uri}: {fault} ({attempt} attempts)")
        pause(attempt - 1, patience.sleep)


def client(url: str, timeout: float) -> Any:
    """Return a boto3 client from the usual AWS variables and profile. Raises StoreRefused."""
    config = Config(
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1},
        connect_timeout=min(5.0, timeout),
        read_timeout=timeout,
        max_pool_connections=CONNECTIONS,
    )
    try:
        session = boto3.Session()
        named = os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION")  # boto3 itself ignores the latter
        region = named or session.region_name or "us-east-1"
        return session.client("s3", region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise StoreRefused(f"store {url!r}: {error}") from error


def pause(attempt: int, sleep: Callable[[float], None] = time.sleep) -> None:
    """Sleep with full jitter: a random time up to a bound that doubles per attempt."""
    sleep(random.uniform(0.0, min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt)))
