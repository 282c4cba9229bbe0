"""Settings of the data cluster's process; `runtime.http.settings` reads them from flags, environment and file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.cluster.cap.alert import is_identity
from tocsin.cluster.feed.outcomes import FeedLimits
from tocsin.cluster.settings import ClusterSettings
from tocsin.runtime.http.settings import ListenerSettings, check_listener, refused


@dataclass(frozen=True, slots=True)
class ClusterProcessSettings(ListenerSettings):
    section = "cluster"
    prefix = "TOCSIN_"

    root: str = "tocsin-data"
    """Where data lies: a folder, or any URI that Spark and Arrow both read."""
    state: str | None = None
    """A folder on this machine for catalog, feed logs and the admin token. Default: `state` inside the root."""
    catalog: str | None = None
    """SQLAlchemy URL of the catalog. Default: SQLite inside the state folder."""
    master: str = "local[*]"
    """Where Spark runs."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings handed to Spark, which win over ours."""
    port: int = 8571
    """The port to listen on; 0 takes a free one."""
    executions: int = 4
    """Channels that run at the same time; more would only share the same cores."""
    maintain_s: float = 5.0
    """Pause between rounds of upkeep: merging files, forgetting what is too old."""
    stop_s: float = 30.0
    """How long a stop waits for running executions before it cancels them; they are done again at the next start."""
    heartbeat_s: float = 15.0
    """Pause after which a silent stream says that it is alive."""
    body_bytes: int = 8 << 20
    """Largest body of records."""
    record_bytes: int = 64 << 10
    """Largest record."""
    backlog_bytes: int = 256 << 20
    """Accepted and not yet in a dataset; beyond it publishers are asked to wait."""
    token_file: bool = True
    """Keep the first admin token in `<state>/admin-token`, readable by this user only, for commands on this machine."""
    keys: str | None = None
    """Whose signed tokens are good here: a JWK-set file, or the address of the coordinator's `/v1/keys`."""
    keys_ca: str | None = None
    """PEM file to check the certificate of that address with, when the system's authorities do not know it."""
    cap_sender: str = "tocsin@example.org"
    """Who sends the alerts that results become in CAP; an address that is yours, without blanks and commas."""

    def cluster(self) -> ClusterSettings:
        limits = FeedLimits(
            body_bytes=self.body_bytes, record_bytes=self.record_bytes, backlog_bytes=self.backlog_bytes
        )
        return ClusterSettings(root=self.root, state=self.state, catalog=self.catalog, limits=limits)

    def check(self) -> None:
        """Raise with the reason if these settings cannot be run with."""
        check_listener(self)
        if self.executions < 1:
            raise refused("executions: expected at least 1")
        if not is_identity(self.cap_sender):
            raise refused(f"cap_sender {self.cap_sender!r}: expected no blanks, commas, < or &")
