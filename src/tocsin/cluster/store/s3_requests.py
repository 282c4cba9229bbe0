"""Deletes an object of an S3 server by one signed request.

Arrow's client also puts an empty object `folder/` after a deletion. AWS keeps that apart from the folder's objects, but
other servers do not: rclone then shows a file in place of the folder. Signatures are those of AWS, version 4.
"""

from __future__ import annotations

import hmac
import os
from datetime import UTC, datetime
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple, Self
from urllib.parse import quote

_EMPTY = sha256(b"").hexdigest()
_DONE = (200, 204, 404)


class Credentials(NamedTuple):
    key: str
    secret: str
    token: str | None

    @classmethod
    def of_environment(cls) -> Self | None:
        key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        return cls(key, secret, os.environ.get("AWS_SESSION_TOKEN")) if key and secret else None

    def __repr__(self) -> str:
        return "Credentials(…)"


def delete_object(
    endpoint: tuple[str, str], region: str, credentials: Credentials, path: str, timeout_s: float = 20.0
) -> None:
    """Delete `bucket/key` at (scheme, host). A missing object is no error. Raises OSError."""
    scheme, host = endpoint
    uri = "/" + quote(path, safe="/-_.~")
    headers = signed_headers("DELETE", host, uri, region, credentials, datetime.now(UTC))
    connection = (HTTPSConnection if scheme == "https" else HTTPConnection)(host, timeout=timeout_s)
    try:
        connection.request("DELETE", uri, headers=headers)
        answer = connection.getresponse()
        answer.read()
    except HTTPException as error:
        raise OSError(f"deletion of {path}: {error!r}") from error
    finally:
        connection.close()
    if answer.status not in _DONE:
        raise OSError(f"deletion of {path}: HTTP status {answer.status}")


def signed_headers(
    method: str, host: str, uri: str, region: str, credentials: Credentials, now: datetime
) -> dict[str, str]:
    """The headers of a request without a body and without a query."""
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"{method}\n{uri}\n\n{lines}\n{names}\n{_EMPTY}"
    scope = f"{day}/{region}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(request.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    signed = f"Credential={credentials.key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": f"AWS4-HMAC-SHA256 {signed}"}
