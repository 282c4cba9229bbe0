"""Settings of the coordinator's process.

The settings of the coordinator's logic are declared in `tocsin.coordinator.rules`, and those of balancing in
`tocsin.policies.balance.multistage`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tocsin.coordinator.rules import CoordinatorRules
from tocsin.policies.balance.settings import BalanceSettings
from tocsin.runtime.http.callers import is_broker_id
from tocsin.runtime.http.oidc_settings import OidcSettings
from tocsin.runtime.http.settings import ListenerSettings, Port, check_file, check_listener, check_peer, invalid

# Unlike a simulation, a real coordinator balances by default, and leaves an almost idle network alone.
_RULES = CoordinatorRules(
    balancing=True,
    balance=BalanceSettings(beta_bytes_per_s=1_000.0, theta_bytes_per_s=1_000.0),
    topic_balancing=True,
)
_POSITIVE = ("user_days", "session_hours", "tick_s")
_POSITIVE_RULES = (
    "heartbeat_s",
    "report_s",
    "suspect_s",
    "dead_s",
    "migrations",
    "migrations_per_broker",
    "failover_per_s",
    "drain_per_s",
    "balance_s",
    "prepare_s",
    "hand_over_s",
    "topics",
    "neighbour_topics",
    "topic_lease_s",
    "topic_moves",
    "topic_move_s",
    "topic_balance_s",
    "topic_output_per_s",
    "site_profile_s",
    "site_offload_s",
    "site_visit_s",
)


@dataclass(frozen=True, slots=True)
class CoordinatorSettings(ListenerSettings):
    section = "coordinator"
    prefix = "TOCSIN_COORDINATOR_"

    port: Port = 8570
    state: Annotated[str, "Local folder for the signing key, the admin token and, by default, the store."] = (
        "tocsin-data/coordinator"
    )
    store: Annotated[str | None, "SQLAlchemy URL of the store. Default: SQLite in the state folder."] = None
    standby: Annotated[
        bool,
        "Wait while another coordinator leads, and take over when its lease ends. Needs a PostgreSQL store and a state "
        "folder of its own.",
    ] = False
    lease_s: Annotated[
        float,
        "Seconds that a coordinator leads after a renewal of its lease. A standby takes over a little later. At least "
        "1; with an SQLite store the lock of the state folder is the lease.",
    ] = 4.0
    token_file: Annotated[
        bool,
        "Keep the first admin token in `<state>/admin-token`, readable by the server's user only (mode 0600), "
        "for commands on this machine.",
    ] = True
    open_registration: Annotated[
        bool, "Allow new users to register without a token. The names they choose begin with `guest-`."
    ] = False
    user_days: Annotated[float, "Days until a user's token expires."] = 365.0
    session_hours: Annotated[float, "Hours until the token that accompanies a broker's address expires."] = 24.0
    user_subscriptions: Annotated[
        int | None, "Most subscriptions of a user, written into the tokens of users. Default: the limit of the broker."
    ] = None
    oidc: OidcSettings = field(default_factory=OidcSettings)
    cluster: Annotated[
        str | None,
        "Address of the data cluster, or those of leader and standby with a comma between them. The coordinator "
        "releases there the subscriptions of forgotten brokers, and shows the data cluster on the dashboard. Without "
        "an address it does neither.",
    ] = None
    cluster_token_file: Annotated[
        str | None, "File with a token for the data cluster. Default: a token that the coordinator signs."
    ] = None
    cluster_ca: Annotated[
        str | None, "PEM file with the authority that signed the data cluster's certificate, if the system lacks it."
    ] = None
    neighbours: Annotated[
        str | None, "TOML file with a table `[[neighbour]]` for each neighbouring site. Needs `site`."
    ] = None
    streets: Annotated[
        str | None, "GeoJSON file (LineString, MultiLineString) with the streets that the dashboard draws."
    ] = None
    trace: Annotated[str | None, "Parquet file in which to record everything that the dashboard shows."] = None
    stop_s: Annotated[float, "Seconds that a stop waits for writes in progress."] = 5.0
    tick_s: Annotated[float, "Seconds between two checks of time-outs."] = 0.25
    rules: CoordinatorRules = _RULES

    def state_folder(self) -> Path:
        return Path(self.state).absolute()

    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.state_folder() / 'coordinator.sqlite'}"

    def check(self) -> None:
        check_listener(self)
        self.oidc.check_oidc()
        if not self.lease_s >= 1:
            raise invalid("lease_s: expected at least 1")
        if self.standby and not (self.store or "").startswith("postgresql"):
            raise invalid("standby needs a store that two machines reach: set store to a postgresql:// URL")
        if self.user_subscriptions is not None and self.user_subscriptions < 1:
            raise invalid("user_subscriptions: expected at least 1")
        check_peer(self, "cluster")
        check_file(self, "neighbours")
        if self.rules.site is not None and not is_broker_id(self.rules.site):
            raise invalid("site: a name has 1 to 128 letters, digits, dots, dashes and underscores")
        if self.neighbours is not None and self.rules.site is None:
            raise invalid("neighbours: set the name of this site as well (site)")
        values = {name: getattr(self, name) for name in _POSITIVE}
        values |= {name: getattr(self.rules, name) for name in _POSITIVE_RULES}
        for name, value in values.items():
            if not 0 < value < 1e9:
                raise invalid(f"{name}: expected more than 0")
        if not 0 < self.rules.site_low <= self.rules.site_high < 1:
            raise invalid("expected 0 < site_low <= site_high < 1: an overload is above site_high")
        if not self.rules.heartbeat_s < self.rules.suspect_s <= self.rules.dead_s:
            raise invalid("expected heartbeat_s < suspect_s <= dead_s, or every broker would be suspect all the time")
