"""The settings of a data cluster, with units, defaults and reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from tocsin.cluster.feed.outcomes import FeedLimits
from tocsin.cluster.store.s3_place import S3, is_object_storage

if TYPE_CHECKING:
    from tocsin.cluster.store.storage import Storage

LEASE_S = 6.0
"""How long a data cluster leads after a renewal of its lease [decision 26]."""


@dataclass(frozen=True, slots=True)
class NarrowingLimits:
    """When an execution leaves out the rows that cannot take part: see `cluster.narrowing`."""

    most_rows: int = 50_000
    """The most rows of a dataset, and the most subscriptions, that may be left."""
    most_new_rows: int = 20_000
    """The most NEW records."""
    least_rows: int = 1_000
    """Datasets with fewer rows are read as a whole."""
    least_subscriptions: int = 1_000
    """Channels with fewer subscriptions use all of them."""
    in_background: bool = True
    """False if an execution waits until the rows of a dataset are in memory."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    root: Annotated[
        str,
        "Data root: a folder, a shared mount, `s3://bucket/prefix`, or another URI that Spark and Arrow both read "
        "(`hdfs://…`). Credentials for S3 come from the environment (`AWS_ACCESS_KEY_ID` and the like).",
    ] = "tocsin-data"
    s3_endpoint: Annotated[
        str | None, "Address of the server of `s3://` roots. Default: `AWS_ENDPOINT_URL` in the environment, else AWS."
    ] = None
    s3_region: Annotated[
        str | None, "Region of the bucket. Default: `AWS_REGION` in the environment, else that of the bucket."
    ] = None
    state: Annotated[
        str | None,
        "Local folder for the catalog, the feed logs and the admin token. Default: `state` inside the root. "
        "Required if the root is not local.",
    ] = None
    log: Annotated[
        str,
        "Where the gateway keeps accepted records of new datasets until they are in the dataset: `local`, in the state "
        "folder, `shared`, as objects below the root, or `auto`: shared for roots on object storage, else local.",
    ] = "auto"
    catalog: Annotated[str | None, "SQLAlchemy URL of the catalog. Default: SQLite in the state folder."] = None
    files: Annotated[
        str,
        "Folders or URIs, separated by commas, in which STATIC datasets and feeds may read files. Links and `..` are "
        "resolved; hidden files and the data root are never read. `.` is the folder in which the process was started.",
    ] = "."
    feed_formats: Annotated[
        str,
        "Formats, separated by commas, that feeds may use. `kafka` and `socket` connect to the addresses that an "
        "application names: add them if you trust its author with that.",
    ] = "csv,json,orc,parquet,text,rate"
    execution_s: Annotated[
        float,
        "Longest time of one execution of a channel. A longer one is cancelled and reported; the channel runs again at "
        "its next tick.",
    ] = 1_800.0
    unheld_s: Annotated[
        float,
        "How long a subscription that no broker holds any more goes on getting results. A subscriber that changes its "
        "broker within this time misses nothing, even if the old broker releases before the new one subscribes.",
    ] = 30.0
    keyed_memory_mib: Annotated[
        int,
        "Memory in MiB for the current rows of KEYED datasets that channels join with NEW records. Beyond it, Spark "
        "reads the files of a dataset in each execution.",
    ] = 1_024
    limits: FeedLimits = field(default_factory=FeedLimits)
    narrowing: NarrowingLimits = field(default_factory=NarrowingLimits)
    rate_window_s: float = 60.0
    """Time constant of the data rates λ."""
    garbage_after_s: float = 600.0
    """How long dropped files stay. A file that a running execution or pull may read stays longer."""
    orphans_after_s: float = 3_600.0
    """How long a file without a catalog row and without a write intent is seen before it is deleted as a leftover."""

    def storage(self) -> Storage:
        from tocsin.cluster.store.storage import Storage

        return Storage(self.root, S3(self.s3_endpoint, self.s3_region))

    def shares_logs(self) -> bool:
        """True if the log of a new dataset is shared. A dataset keeps the log with which it was created."""
        return self.log == "shared" or (self.log == "auto" and is_object_storage(self.root))

    def state_folder(self) -> Path:
        if self.state is not None:
            return Path(self.state).absolute()
        parts = urlsplit(self.root)
        if len(parts.scheme) > 1 and parts.scheme != "file":
            raise ValueError(f"the data root {self.root} is not on this machine: set `state` to a local folder as well")
        return Path(parts.path if parts.scheme == "file" else self.root).absolute() / "state"

    def private_folders(self) -> tuple[Path, ...]:
        """Folders with the catalog, tokens and stored data, if they are on this machine."""
        parts = urlsplit(self.root)
        is_remote = len(parts.scheme) > 1 and parts.scheme != "file"
        data = () if is_remote else (Path(parts.path if parts.scheme == "file" else self.root).absolute(),)
        return (*data, self.state_folder())

    def catalog_url(self) -> str:
        return self.catalog or f"sqlite:///{self.state_folder() / 'catalog.sqlite'}"
