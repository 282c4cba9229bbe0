"""Where a data root in object storage is. Imports no Arrow: settings are read before anything large is loaded."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from tocsin.wire.errors import Code, TocsinError


class S3(NamedTuple):
    """Where a root of object storage is, besides its URI."""

    endpoint: str | None = None
    """Address of the server; None for AWS, or for `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` in the environment."""
    region: str | None = None
    """None for `AWS_REGION` or `AWS_DEFAULT_REGION` in the environment, else the region of the bucket."""


def is_object_storage(root: str) -> bool:
    return urlsplit(root).scheme == "s3"


def check_root(root: str) -> str:
    """Bucket and prefix of a root. Raises for a root with other parts, and for one without a bucket."""
    parts = urlsplit(root)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise TocsinError(
            Code.BAD_REQUEST,
            "a root on object storage is s3://bucket/prefix: credentials belong in the environment (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY), endpoint and region in the settings s3_endpoint and s3_region",
        )
    if not parts.netloc:
        raise TocsinError(Code.BAD_REQUEST, f"the root {root} has no bucket: expected s3://bucket/prefix")
    return f"{parts.netloc}{parts.path}".rstrip("/")
