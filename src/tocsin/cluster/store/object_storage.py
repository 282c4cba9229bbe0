"""Object storage behind the protocol S3, opened with Arrow.

Credentials come from where the tools of S3 look for them: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and
`AWS_SESSION_TOKEN` in the environment, the files in `~/.aws`, or the role of the machine. They are never part of a
root, a setting, a pickled object or a log line.
"""

from __future__ import annotations

import io
import os
import time
from contextlib import suppress
from typing import Any

import pyarrow as pa

from tocsin.cluster.store.s3_place import S3, check_root
from tocsin.cluster.store.s3_requests import Credentials, delete_object
from tocsin.wire.errors import Code, TocsinError

ATTEMPTS = 8
"""Attempts of a request, with growing pauses of up to 20 s: a store that is busy answers 503 for some seconds."""
PAUSE_S = 0.05
"""Pause before the second attempt; it doubles with each attempt."""
WHOLE_BYTES = 16 << 20
"""Objects up to this size are read with one request."""
CONNECT_S = 5.0
SILENT_S = 20.0
"""A request whose connection is silent for this long is repeated."""


class ObjectStorage:
    def __init__(self, root: str, s3: S3) -> None:
        self.base = check_root(root)
        """Bucket and prefix."""
        self._endpoint = _endpoint(s3)
        self._region = _region(s3, self.base.partition("/")[0], has_endpoint=self._endpoint is not None)
        self._credentials = Credentials.of_environment()
        self.filesystem = _client(self._endpoint, self._region)

    def open(self, path: str) -> pa.NativeFile:
        """An object for reading. A small one is read at once: a request takes longer than its bytes."""
        file = self.filesystem.open_input_file(f"{self.base}/{path}")
        reads = _RepeatedReads(file)
        if reads.size <= WHOLE_BYTES:
            return pa.BufferReader(reads.at(0, reads.size))
        return pa.PythonFile(reads, mode="r")

    def delete(self, path: str) -> None:
        """Delete an object below the base. A missing one is no error."""
        if self._endpoint is None or self._credentials is None:
            self._delete_with_arrow(f"{self.base}/{path}")
            return
        for attempt in range(1, ATTEMPTS + 1):
            try:
                delete_object(self._endpoint, self._region, self._credentials, f"{self.base}/{path}", SILENT_S)
                return
            except OSError:
                if attempt == ATTEMPTS:
                    raise
            _pause(attempt)

    def _delete_with_arrow(self, full: str) -> None:
        """For AWS, where only Arrow's client finds every kind of credentials."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(full)


class _RepeatedReads(io.RawIOBase):
    """Reads parts of an object, and repeats a read that fails.

    Arrow's client does not repeat a read whose error has a longer text than the part that it reads.
    """

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self._place = 0
        self.size: int = file.size()

    def at(self, place: int, length: int) -> bytes:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                content: bytes = self._file.read_at(length, place)
                return content
            except OSError:
                if attempt == ATTEMPTS:
                    raise
            _pause(attempt)
        raise AssertionError("the last attempt has returned or raised")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size}[whence]
        return self._place

    def read(self, length: int | None = -1) -> bytes:
        rest = max(0, self.size - self._place)
        content = self.at(self._place, rest if length is None or length < 0 else min(length, rest))
        self._place += len(content)
        return content


def _pause(attempt: int) -> None:
    time.sleep(min(PAUSE_S * 2**attempt, 20.0))


def _client(endpoint: tuple[str, str] | None, region: str) -> Any:
    """An `S3FileSystem` of Arrow."""
    from pyarrow import fs  # executors that read a folder never load the client

    if endpoint is not None:
        # AWS's client sends checksums after the body, in a form that other servers refuse: without a length.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    return fs.S3FileSystem(
        region=region,
        endpoint_override=None if endpoint is None else endpoint[1],
        scheme="https" if endpoint is None else endpoint[0],
        connect_timeout=CONNECT_S,
        request_timeout=SILENT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        # A small object is one PUT, which is atomic. A large one is an upload of parts, which the last request makes
        # an object.
        allow_delayed_open=True,
    )


def _endpoint(s3: S3) -> tuple[str, str] | None:
    """(scheme, host and port) of the server; None for AWS."""
    environment = os.environ
    address = s3.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if not address:
        return None
    scheme, _, host = address.rpartition("://")
    host = host.rstrip("/")
    if "@" in address:  # Spark shows its sources' options: the address must not be repeated either
        reason = "credentials belong in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), not in s3_endpoint"
        raise TocsinError(Code.BAD_REQUEST, reason)
    if scheme not in ("", "http", "https") or not host or "/" in host:
        raise TocsinError(Code.BAD_REQUEST, f"s3_endpoint {address}: expected an address such as https://s3.example")
    return scheme or "https", host


def _region(s3: S3, bucket: str, *, has_endpoint: bool) -> str:
    region = s3.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region or has_endpoint:
        return region or "us-east-1"  # servers other than AWS take any region
    from pyarrow import fs

    resolved: str = fs.resolve_s3_region(bucket)
    return resolved
