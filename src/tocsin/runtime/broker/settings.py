"""What can be set about a broker's process; `tocsin.runtime.http.settings` says how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tocsin.broker.state import Limits
from tocsin.runtime.http.callers import is_broker_id
from tocsin.runtime.http.settings import ListenerSettings, check_listener, is_loopback, refused

DATA_CLUSTER = "http://127.0.0.1:8571"


@dataclass(frozen=True, slots=True)
class BrokerSettings(ListenerSettings):
    section = "broker"
    prefix = "TOCSIN_BROKER_"

    id: str = "broker-1"
    """Its name, everywhere: 1 to 128 letters, digits, dots, dashes and underscores."""
    port: int = 8600
    """The port to listen on; 0 takes a free one."""
    address: str | None = None
    """Where subscribers reach it, as the coordinator tells them. Default: what it listens on."""
    state: str = "tocsin-broker"
    """A folder on this machine; holds the keys last seen, so that a start does not need the coordinator."""
    cluster: str = DATA_CLUSTER
    """Address of the data cluster."""
    token_file: str | None = None
    """File with the token (scope `broker:<id>`) for the data cluster and the coordinator."""
    cluster_token_file: str | None = None
    """Another one for the data cluster."""
    coordinator: str | None = None
    """Address of the coordinator; without one this broker stands alone."""
    keys: str | None = None
    """JWK-set file or address whose tokens are good here. Default: the coordinator's `/v1/keys`."""
    ca: str | None = None
    """PEM file to check certificates of the data cluster and the coordinator with, beside the system's authorities."""
    capacity: float = 1.0
    """How much it can take, relative to other brokers."""
    lat: float | None = None
    """Where it stands, for placement by distance."""
    lon: float | None = None
    """Where it stands, for placement by distance."""
    cache_bytes: int = 64 << 20
    """Results kept for whoever comes late or comes back, over all subscriptions."""
    queue_bytes: int = 256 << 10
    """What may wait for one session in its connection before it counts as slow."""
    slow: str = "drop"
    """What happens to a slow session: `drop` (it lags and catches up later) or `disconnect`."""
    catch_ups: int = 8
    """Fetches of old results from the data cluster at the same time."""
    progress_s: float = 15.0
    """No healthy session is silent for longer than this."""
    rate_window_s: float = Limits().rate_window_s
    """Time constant of the loads it reports: what happened this long ago counts for 1/e."""
    login_s: float = 10.0
    """How long a connection may take to log in."""
    half_open: int = 2_000
    """Connections that have not logged in; beyond it the oldest of them is closed."""
    frame_bytes: int = 64 << 10
    """Largest message from a subscriber."""
    subscriptions: int = 10_000
    """Most subscriptions of one subscriber."""
    webhooks: bool = True
    """Whether subscribers may be called back."""
    webhooks_private: bool = False
    """Call webhooks on private and loopback addresses too; for tests and for networks of one's own."""
    stop_s: float = 5.0
    """How long a stop waits for connections to end."""

    def limits(self) -> Limits:
        return Limits(
            cache_bytes=self.cache_bytes, queue_bytes=self.queue_bytes, slow=self.slow, catch_ups=self.catch_ups,
            progress_s=self.progress_s, subscriptions=self.subscriptions, rate_window_s=self.rate_window_s,
        )  # fmt: skip

    def check(self) -> None:
        check_listener(self)
        if not is_broker_id(self.id):
            raise refused("id: a broker's name has 1 to 128 letters, digits, dots, dashes and underscores")
        if self.slow not in ("drop", "disconnect"):
            raise refused(f"slow {self.slow}: expected drop or disconnect")
        if self.coordinator is None and self.keys is None:
            raise refused("nobody's token would be good here: give coordinator, or keys with a JWK-set file")
        for name in ("cache_bytes", "queue_bytes", "catch_ups", "half_open", "frame_bytes", "subscriptions"):
            if getattr(self, name) < 1:
                raise refused(f"{name}: expected at least 1")
        for name in ("progress_s", "rate_window_s", "login_s", "capacity"):
            if getattr(self, name) <= 0:
                raise refused(f"{name}: expected more than 0")
        for name in ("token_file", "cluster_token_file", "ca"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise refused(f"{name}: there is no file {path}")
        for name in ("cluster", "coordinator"):
            self._check_peer(name, getattr(self, name))

    def _check_peer(self, name: str, address: str | None) -> None:
        """Tokens are not sent in the clear over a network."""
        if address is None:
            return
        scheme, _, rest = address.partition("://")
        if scheme not in ("http", "https") or not rest:
            raise refused(f"{name}: expected an address such as https://cluster.example:8571, got {address!r}")
        host = rest.partition("/")[0].rpartition("@")[2]
        host = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if scheme == "http" and not self.insecure and not is_loopback(host.strip("[]")):
            raise refused(f"{name}: {address} would see this broker's token unencrypted; use https, or say insecure")

    def secret(self, name: str) -> str:
        """The token for the `cluster` or the `coordinator`, from its file; empty without one."""
        path = self.cluster_token_file if name == "cluster" and self.cluster_token_file else self.token_file
        return "" if path is None else Path(path).read_text(encoding="utf-8").strip()
