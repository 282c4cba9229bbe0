"""`tocsin cluster`: the data cluster's server, with every setting."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.serving import serve


def register(app: typer.Typer) -> None:
    app.command("cluster")(cluster)


def _flag(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, show_default=False)


def cluster(
    root: Annotated[str | None, _flag("Where data lies: a folder or a URI.")] = None,
    state: Annotated[str | None, _flag("A local folder for catalog, feed logs and the admin token.")] = None,
    catalog: Annotated[str | None, _flag("SQLAlchemy URL of the catalog.")] = None,
    master: Annotated[str | None, _flag("Where Spark runs: local[*], spark://…, yarn, k8s://…")] = None,
    spark: Annotated[list[str] | None, _flag("A Spark setting as name=value; may be repeated.", "--spark")] = None,
    host: Annotated[str | None, _flag("Address to listen on.")] = None,
    port: Annotated[int | None, _flag("Port to listen on; 0 takes a free one.")] = None,
    tls_cert: Annotated[str | None, _flag("PEM file with the certificate chain.")] = None,
    tls_key: Annotated[str | None, _flag("PEM file with its private key.")] = None,
    insecure: Annotated[bool | None, _flag("Listen beyond loopback without TLS.", "--insecure")] = None,
    executions: Annotated[int | None, _flag("Channels that run at the same time.")] = None,
    maintain_s: Annotated[float | None, _flag("Pause between rounds of upkeep.")] = None,
    stop_s: Annotated[float | None, _flag("How long a stop waits for executions.")] = None,
    heartbeat_s: Annotated[float | None, _flag("Pause after which a silent stream says it is alive.")] = None,
    body_bytes: Annotated[int | None, _flag("Largest body of records.")] = None,
    record_bytes: Annotated[int | None, _flag("Largest record.")] = None,
    backlog_bytes: Annotated[int | None, _flag("Accepted and not yet in a dataset.")] = None,
    token_file: Annotated[
        bool | None, _flag("Keep the first admin token in a file.", "--token-file/--no-token-file")
    ] = None,
    keys: Annotated[str | None, _flag("JWK-set file or URL: whose signed tokens are good here.")] = None,
    keys_ca: Annotated[str | None, _flag("PEM file to check that URL's certificate with.")] = None,
    cap_sender: Annotated[str | None, _flag("Who sends the alerts that results become in CAP.")] = None,
    log_level: Annotated[str | None, _flag("debug, info, warning or error.")] = None,
    log_form: Annotated[str | None, _flag("auto, json or console.")] = None,
    settings: Annotated[str | None, typer.Option(help="TOML file with a [cluster] table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the data cluster's server until it is stopped.

    Every flag is also an environment variable (TOCSIN_PORT for --port) and a line of the TOML file; docs/settings.md
    has the defaults.
    """
    flags = dict(locals())
    serve({name: flags[name] for name in flags.keys() - {"settings", "as_json"}}, settings, as_json)
