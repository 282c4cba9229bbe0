"""`tocsin coordinator`: the coordinator's server, with every setting."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.serving import run_process


def register(app: typer.Typer) -> None:
    app.command("coordinator")(coordinator)


def _flag(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, show_default=False)


def coordinator(
    state: Annotated[
        str | None, _flag("A folder on this machine for the signing key, the admin token and, by default, the store.")
    ] = None,
    store: Annotated[str | None, _flag("SQLAlchemy URL of the store. Default: SQLite inside the state folder.")] = None,
    host: Annotated[
        str | None, _flag("The address to listen on. Anything but loopback needs TLS, or insecure.")
    ] = None,
    port: Annotated[int | None, _flag("The port to listen on; 0 takes a free one.")] = None,
    tls_cert: Annotated[str | None, _flag("PEM file with the certificate chain.")] = None,
    tls_key: Annotated[str | None, _flag("PEM file with its private key.")] = None,
    insecure: Annotated[
        bool | None, _flag("Listen beyond loopback without TLS, because something in front does it.", "--insecure")
    ] = None,
    log_level: Annotated[str | None, _flag("debug, info, warning or error.")] = None,
    log_form: Annotated[str | None, _flag("json, console, or auto: console on a terminal.")] = None,
    token_file: Annotated[
        bool | None,
        _flag(
            "Keep the first admin token in a file of the state folder.",
            "--token-file/--no-token-file",
        ),
    ] = None,
    open_registration: Annotated[
        bool | None, _flag("Let anybody register as a new user, without a token.", "--open-registration")
    ] = None,
    user_days: Annotated[float | None, _flag("Life of a user's token.")] = None,
    session_hours: Annotated[float | None, _flag("Life of the token that comes with a broker's address.")] = None,
    cluster: Annotated[
        str | None,
        _flag("Address of the data cluster: to let go of what forgotten brokers hold there, and to show it."),
    ] = None,
    cluster_token_file: Annotated[
        str | None, _flag("File with a token for that; default: one that this coordinator signs itself.")
    ] = None,
    cluster_ca: Annotated[
        str | None,
        _flag("PEM file to check the data cluster's certificate with, when the system's authorities do not know it."),
    ] = None,
    streets: Annotated[str | None, _flag("GeoJSON file with the streets that the dashboard draws.")] = None,
    trace: Annotated[str | None, _flag("Parquet file to record everything into that the dashboard shows.")] = None,
    stop_s: Annotated[float | None, _flag("How long a stop waits for what is being written.")] = None,
    tick_s: Annotated[float | None, _flag("How often time-outs are looked at.")] = None,
    placement: Annotated[str | None, _flag("Of newcomers: nearest, round-robin, random or least-loaded.")] = None,
    replacement: Annotated[str | None, _flag("Of those whose broker died or drains.")] = None,
    heartbeat_s: Annotated[float | None, _flag("How often brokers say that they live.")] = None,
    report_s: Annotated[float | None, _flag("How often brokers report their load.")] = None,
    suspect_s: Annotated[float | None, _flag("Silence after which a broker gets no newcomers.")] = None,
    dead_s: Annotated[
        float | None, _flag("Silence, or a broken link, after which a broker's subscribers are re-placed.")
    ] = None,
    grace_s: Annotated[
        float | None, _flag("After a start, how long brokers have to come back before their silence counts.")
    ] = None,
    probation_s: Annotated[
        float | None, _flag("How long a broker that failed is not trusted with newcomers; doubles each time.")
    ] = None,
    probation_most_s: Annotated[float | None, _flag("The longest probation.")] = None,
    forgive_s: Annotated[float | None, _flag("Quiet life after which a broker's failures are forgotten.")] = None,
    failover_per_s: Annotated[float | None, _flag("Subscribers of dead brokers re-placed per second.")] = None,
    drain_per_s: Annotated[float | None, _flag("Migrations that draining starts per second.")] = None,
    migrations: Annotated[int | None, _flag("Migrations under way at a time.")] = None,
    migrations_per_broker: Annotated[
        int | None, _flag("Migrations under way at a time from one broker, and to one.")
    ] = None,
    prepare_s: Annotated[float | None, _flag("How long the target of a migration has to prepare.")] = None,
    hand_over_s: Annotated[float | None, _flag("How long the subscriber has to appear there.")] = None,
    confirm_s: Annotated[float | None, _flag("How long it has once its session at the source has ended.")] = None,
    release_s: Annotated[float | None, _flag("How long the source has to let go before it is told again.")] = None,
    retry_s: Annotated[float | None, _flag("Rest of a subscriber whose migration failed.")] = None,
    forget_broker_s: Annotated[
        float | None, _flag("How long a dead broker without subscribers may still come back before it is forgotten.")
    ] = None,
    balancing: Annotated[
        bool | None, _flag("Whether the multistage policy runs by itself.", "--balancing/--no-balancing")
    ] = None,
    balance_s: Annotated[float | None, _flag("Between its rounds.")] = None,
    scheme: Annotated[str | None, _flag("Dynamic migration: ldm, sdm, affinity or none.")] = None,
    shuffle: Annotated[str | None, _flag("Shuffle: gsh, affinity or none.")] = None,
    alpha: Annotated[float | None, _flag("Migration above this coefficient of variation (cov) of the loads.")] = None,
    beta_bytes_per_s: Annotated[
        float | None, _flag("Migration only above this mean load: an idle network may be as uneven as it likes.")
    ] = None,
    gamma: Annotated[float | None, _flag("Shuffle above this cov.")] = None,
    theta_bytes_per_s: Annotated[float | None, _flag("Shuffle only above this mean load.")] = None,
    settle: Annotated[float | None, _flag("Share of alpha that migration aims for.")] = None,
    hits: Annotated[int | None, _flag("Rounds in a row that must see the imbalance before anybody moves.")] = None,
    rest_s: Annotated[float | None, _flag("Who has moved stays at least this long.")] = None,
    max_moves: Annotated[int | None, _flag("Migrations in one plan; 0 for no limit.")] = None,
    max_shuffle_moves: Annotated[int | None, _flag("A shuffle that needs more is not made; 0 for no limit.")] = None,
    shuffle_rest_s: Annotated[float | None, _flag("Between two shuffles.")] = None,
    shuffle_gain: Annotated[
        float | None, _flag("Share of the cov that a shuffle must take away to be worth it.")
    ] = None,
    settings: Annotated[str | None, typer.Option(help="TOML file with a [coordinator] table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the coordinator's server until it is stopped.

    Every flag is also an environment variable (TOCSIN_COORDINATOR_PORT for --port) and a line of the TOML file;
    docs/settings.md has the defaults.
    """
    flags = dict(locals())
    from tocsin.runtime.coordinator.server import CoordinatorServer
    from tocsin.runtime.coordinator.settings import CoordinatorSettings
    from tocsin.web import PAGES

    given = {name: flags[name] for name in flags.keys() - {"settings", "as_json"}}
    run_process("coordinator", CoordinatorSettings, partial(CoordinatorServer, pages=PAGES), given, settings, as_json)
