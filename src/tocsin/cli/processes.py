"""Commands that run in the foreground until a signal: servers with a flag for every setting, and longer work."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin

import typer

from tocsin.cli.console import AsJson, fail, failing_on_errors, note, show

if TYPE_CHECKING:
    from tocsin.runtime.http.settings import ListenerSettings, Setting
    from tocsin.runtime.stack.stack import Stack

S = TypeVar("S", bound="ListenerSettings")
T = TypeVar("T")

_HELP = """

Every flag is also an environment variable ({prefix}PORT for --port) and a line in the [{section}] table of the
TOML file.
"""


def run_with_flags(context: typer.Context, kind: type[S], run: Callable[[S, bool], None]) -> None:
    """Parse the command's arguments, load the settings and call `run(settings, as_json)`.

    There is one flag for each setting of `kind`, besides `--settings` and `--json`.
    """
    from tocsin.runtime.http.settings import load_settings, settings_of

    def command(**arguments: Any) -> None:
        from tocsin.runtime.http.listening import restrict_new_files
        from tocsin.runtime.http.logs import configure_logs

        file, as_json = arguments.pop("settings"), arguments.pop("as_json")
        with failing_on_errors(as_json):
            settings = load_settings(kind, arguments, os.environ, file)
            configure_logs(settings.log_level, settings.log_form)
            restrict_new_files()
            try:
                run(settings, as_json)
            except OSError as error:
                fail(as_json, f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}")

    file_option = typer.Option(help=f"TOML file with a [{kind.section}] table.")
    parameters = [_parameter(setting.name, None, _flag(setting)) for setting in settings_of(kind)]
    parameters.append(_parameter("settings", None, Annotated[str | None, file_option]))
    parameters.append(_parameter("as_json", False, AsJson))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    summary = inspect.cleandoc(context.command.help or "")
    app.command(help=summary + _HELP.format(prefix=kind.prefix, section=kind.section))(command)
    app(context.args, prog_name=context.command_path)


def _parameter(name: str, default: object, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flag(setting: Setting) -> Any:
    """The flag of a setting as a parameter type of typer. Its value is None if the flag is not given."""
    name = "--" + setting.name.replace("_", "-")
    names, kind = name, setting.kind if setting.kind in (bool, int, float) else str
    if setting.default is True:
        names = f"{name}/--no-{name.removeprefix('--')}"
    if get_origin(setting.kind) is Mapping:
        kind = list[str]
    default = "" if setting.default in (None, {}) or setting.default is False else f" [default: {setting.default}]"
    return Annotated[kind | None, typer.Option(names, help=setting.help + default, show_default=False)]


def run_on_event_loop(run: Callable[[], Awaitable[None]]) -> None:
    """Run a server on an event loop of its own until it stops. `run` is called on that loop."""
    from tocsin.runtime.http.listening import loop_factory

    async def call() -> None:
        await run()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(call())


def announce_server(name: str, as_json: bool, address: str, first_token: str | None) -> None:
    """Print the address of a server that is up, and its first token if it made one at this start."""

    def show_text() -> None:
        print(f"Tocsin {name}: {address}", flush=True)
        if first_token is not None:
            print(f"Administrator's token, shown this once: {first_token}", flush=True)
        note("Press Ctrl-C to stop.")

    show(as_json, {"address": address, "token": first_token}, show_text)


def stop_event() -> asyncio.Event:
    """An event that SIGINT, SIGTERM and SIGHUP set from now on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError, RuntimeError):  # not the main thread
            loop.add_signal_handler(number, stop.set)
    return stop


async def unless_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T | None:
    """The result of `work`. If `stop` is set first, cancel `work` and return None."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def dashboard(stack: Stack) -> str:
    """The dashboard's address. On a terminal it carries the token, behind the #, so that a browser does not send it.

    Into a file or a pipe the token is never written.
    """
    from tocsin.wire.errors import TocsinError

    address = stack.described()["dashboard"]
    try:
        token = stack.first_token or stack.admin_token()
    except TocsinError:
        return f"{address} (asks for a token)"
    return f"{address}#token={token}" if sys.stdout.isatty() else f"{address} (the token is in {stack.token_file})"
