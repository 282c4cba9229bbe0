"""What can be set about a coordinator's process; see `runtime.settings` for how."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from tocsin.coordinator.rules import Rules
from tocsin.policies.balance.multistage import BalanceSettings
from tocsin.policies.balance.placement import PlacementPolicy
from tocsin.runtime.http.settings import ListenerSettings, check_listener, refused

_RULES = Rules()
_BALANCE = BalanceSettings()
_POSITIVE = (
    "heartbeat_s", "report_s", "suspect_s", "dead_s", "tick_s", "migrations", "migrations_per_broker", "failover_per_s",
    "drain_per_s", "balance_s", "user_days", "session_hours", "prepare_s", "hand_over_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CoordinatorSettings(ListenerSettings):
    section = "coordinator"
    prefix = "TOCSIN_COORDINATOR_"

    port: int = 8570
    """The port to listen on; 0 takes a free one."""
    state: str = "tocsin-data/coordinator"
    """A folder on this machine for the signing key, the admin token and, by default, the store."""
    store: str | None = None
    """SQLAlchemy URL of the store. Default: SQLite inside the state folder."""
    token_file: bool = True
    """Keep the first admin token in `<state>/admin-token`, readable by this user only, for commands on this machine."""
    open_registration: bool = False
    """Let anybody register as a new user, without a token."""
    user_days: float = 365.0
    """Life of a user's token."""
    session_hours: float = 24.0
    """Life of the token that comes with a broker's address."""
    cluster: str | None = None
    """Address of the data cluster: to let go of what forgotten brokers hold there, and to show it. None: neither."""
    cluster_token_file: str | None = None
    """File with a token for that; default: one that this coordinator signs itself."""
    cluster_ca: str | None = None
    """PEM file to check the data cluster's certificate with, when the system's authorities do not know it."""
    streets: str | None = None
    """GeoJSON file with the streets that the dashboard draws (LineString, MultiLineString). None: none."""
    trace: str | None = None
    """Parquet file to record everything into that the dashboard shows. None: nothing is recorded."""
    stop_s: float = 5.0
    """How long a stop waits for what is being written."""
    tick_s: float = 0.25
    """How often time-outs are looked at."""

    placement: str = "nearest"
    """Of newcomers: nearest, round-robin, random or least-loaded."""
    replacement: str = "least-loaded"
    """Of those whose broker died or drains."""
    heartbeat_s: float = _RULES.heartbeat_s
    """How often brokers say that they live."""
    report_s: float = _RULES.report_s
    """How often brokers report their load."""
    suspect_s: float = _RULES.suspect_s
    """Silence after which a broker gets no newcomers."""
    dead_s: float = _RULES.dead_s
    """Silence, or a broken link, after which a broker's subscribers are re-placed."""
    grace_s: float = _RULES.grace_s
    """After a start, how long brokers have to come back before their silence counts."""
    probation_s: float = _RULES.probation_s
    """How long a broker that failed is not trusted with newcomers; doubles each time."""
    probation_most_s: float = _RULES.probation_most_s
    """The longest probation."""
    forgive_s: float = _RULES.forgive_s
    """Quiet life after which a broker's failures are forgotten."""
    failover_per_s: float = _RULES.failover_per_s
    """Subscribers of dead brokers re-placed per second."""
    drain_per_s: float = _RULES.drain_per_s
    """Migrations that draining starts per second."""
    migrations: int = _RULES.migrations
    """Migrations under way at a time."""
    migrations_per_broker: int = _RULES.migrations_per_broker
    """Migrations under way at a time from one broker, and to one."""
    prepare_s: float = _RULES.prepare_s
    """How long the target of a migration has to prepare."""
    hand_over_s: float = _RULES.hand_over_s
    """How long the subscriber has to appear there."""
    confirm_s: float = _RULES.confirm_s
    """How long it has once its session at the source has ended."""
    release_s: float = _RULES.release_s
    """How long the source has to let go before it is told again."""
    retry_s: float = _RULES.retry_s
    """Rest of a subscriber whose migration failed."""
    forget_broker_s: float = _RULES.forget_broker_s
    """How long a dead broker without subscribers may still come back before it is forgotten."""

    balancing: bool = True
    """Whether the multistage policy runs by itself."""
    balance_s: float = _RULES.balance_s
    """Between its rounds."""
    scheme: str = _BALANCE.scheme
    """Dynamic migration: ldm, sdm, affinity or none."""
    shuffle: str = _BALANCE.shuffle
    """Shuffle: gsh, affinity or none."""
    alpha: float = _BALANCE.alpha
    """Migration above this coefficient of variation (cov) of the loads."""
    beta_bytes_per_s: float = 1_000.0
    """Migration only above this mean load: an idle network may be as uneven as it likes."""
    gamma: float = _BALANCE.gamma
    """Shuffle above this cov."""
    theta_bytes_per_s: float = 1_000.0
    """Shuffle only above this mean load."""
    settle: float = _BALANCE.settle
    """Share of alpha that migration aims for."""
    hits: int = _BALANCE.hits
    """Rounds in a row that must see the imbalance before anybody moves."""
    rest_s: float = _BALANCE.rest_s
    """Who has moved stays at least this long."""
    max_moves: int = _BALANCE.max_moves
    """Migrations in one plan; 0 for no limit."""
    max_shuffle_moves: int = _BALANCE.max_shuffle_moves
    """A shuffle that needs more is not made; 0 for no limit."""
    shuffle_rest_s: float = _BALANCE.shuffle_rest_s
    """Between two shuffles."""
    shuffle_gain: float = _BALANCE.shuffle_gain
    """Share of the cov that a shuffle must take away to be worth it."""

    def rules(self) -> Rules:
        shared = {entry.name for entry in fields(Rules)} & {entry.name for entry in fields(self)}
        given = {name: getattr(self, name) for name in shared}
        given["placement"] = PlacementPolicy(self.placement)
        given["replacement"] = PlacementPolicy(self.replacement)
        return Rules(**given, balance=self.balance())

    def balance(self) -> BalanceSettings:
        """Raises ValueError, naming the setting, on what no policy could follow."""
        return BalanceSettings(**{entry.name: getattr(self, entry.name) for entry in fields(BalanceSettings)})

    def state_folder(self) -> Path:
        return Path(self.state).absolute()

    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.state_folder() / 'coordinator.sqlite'}"

    def check(self) -> None:
        check_listener(self)
        for name in ("placement", "replacement"):
            if getattr(self, name) not in set(PlacementPolicy):
                raise refused(f"{name} {getattr(self, name)}: expected one of {', '.join(PlacementPolicy)}")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < 1e9:
                raise refused(f"{name}: expected more than 0")
        try:
            self.balance()
        except ValueError as error:
            raise refused(str(error)) from None
        if not self.heartbeat_s < self.suspect_s <= self.dead_s:
            raise refused("expected heartbeat_s < suspect_s <= dead_s, or every broker would be suspect all the time")
