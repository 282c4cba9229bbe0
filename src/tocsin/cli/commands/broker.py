"""`tocsin broker`: one broker, with every setting."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.output import fail, note, tell


def register(app: typer.Typer) -> None:
    app.command("broker")(broker)


def _flag(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, show_default=False)


def broker(
    id: Annotated[str | None, _flag("Its name.")] = None,
    host: Annotated[str | None, _flag("Address to listen on.")] = None,
    port: Annotated[int | None, _flag("Port to listen on; 0 takes a free one.")] = None,
    address: Annotated[str | None, _flag("Where subscribers reach it.")] = None,
    state: Annotated[str | None, _flag("A local folder for what it keeps.")] = None,
    cluster: Annotated[str | None, _flag("Address of the data cluster.")] = None,
    token_file: Annotated[str | None, _flag("File with its token.")] = None,
    cluster_token_file: Annotated[str | None, _flag("File with another token, for the data cluster.")] = None,
    coordinator: Annotated[str | None, _flag("Address of the coordinator.")] = None,
    keys: Annotated[str | None, _flag("JWK-set file or address whose tokens are good here.")] = None,
    ca: Annotated[str | None, _flag("PEM file to check certificates with.")] = None,
    capacity: Annotated[float | None, _flag("How much it can take, relative to others.")] = None,
    lat: Annotated[float | None, _flag("Latitude, for placement.")] = None,
    lon: Annotated[float | None, _flag("Longitude, for placement.")] = None,
    cache_bytes: Annotated[int | None, _flag("Results kept for whoever comes late.")] = None,
    queue_bytes: Annotated[int | None, _flag("What may wait for one session.")] = None,
    slow: Annotated[str | None, _flag("drop or disconnect: what happens to a slow session.")] = None,
    catch_ups: Annotated[int | None, _flag("Fetches of old results at the same time.")] = None,
    progress_s: Annotated[float | None, _flag("No healthy session is silent for longer.")] = None,
    rate_window_s: Annotated[float | None, _flag("Time constant of the loads it reports.")] = None,
    login_s: Annotated[float | None, _flag("How long a connection may take to log in.")] = None,
    half_open: Annotated[int | None, _flag("Connections that have not logged in.")] = None,
    frame_bytes: Annotated[int | None, _flag("Largest message from a subscriber.")] = None,
    subscriptions: Annotated[int | None, _flag("Most subscriptions of one subscriber.")] = None,
    webhooks: Annotated[bool | None, _flag("Subscribers may be called back.", "--webhooks/--no-webhooks")] = None,
    webhooks_private: Annotated[
        bool | None, _flag("Call private and loopback addresses too.", "--webhooks-private")
    ] = None,
    stop_s: Annotated[float | None, _flag("How long a stop waits for connections.")] = None,
    tls_cert: Annotated[str | None, _flag("PEM file with the certificate chain.")] = None,
    tls_key: Annotated[str | None, _flag("PEM file with its private key.")] = None,
    insecure: Annotated[bool | None, _flag("Listen and connect beyond loopback without TLS.", "--insecure")] = None,
    log_level: Annotated[str | None, _flag("debug, info, warning or error.")] = None,
    log_form: Annotated[str | None, _flag("auto, json or console.")] = None,
    settings: Annotated[str | None, typer.Option(help="TOML file with a [broker] table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a broker until it is stopped.

    Every flag is also an environment variable (TOCSIN_BROKER_PORT for --port) and a line of the TOML file;
    docs/settings.md has the defaults.
    """
    flags = dict(locals())
    _serve({name: flags[name] for name in flags.keys() - {"settings", "as_json"}}, settings, as_json)


def _serve(flags: dict[str, Any], settings_file: str | None, as_json: bool) -> None:
    import os

    from tocsin.runtime.broker.server import run_broker
    from tocsin.runtime.broker.settings import BrokerSettings
    from tocsin.runtime.http.logs import configure_logs
    from tocsin.runtime.http.settings import load
    from tocsin.wire.errors import TocsinError

    def ready(address: str) -> None:
        tell(as_json, {"broker": settings.id, "address": address}, lambda: _welcome(settings.id, address))

    try:
        settings = load(BrokerSettings, flags, os.environ, settings_file)
        configure_logs(settings.log_level, settings.log_form)
        run_broker(settings, ready)
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    except OSError as error:
        fail(as_json, f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}")


def _welcome(name: str, address: str) -> None:
    print(f"Tocsin broker {name}: {address}", flush=True)
    note("Press Ctrl-C to stop.")
