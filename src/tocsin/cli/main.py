"""The `tocsin` command: each module of `tocsin.cli.commands` and of `tocsin.benchmarks` adds commands.

Such a module defines `register(app)`. It imports the parts it needs inside the command, so that `tocsin --help`
loads neither Spark nor numpy.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import typer

from tocsin import benchmarks
from tocsin.cli import commands


def make_app() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Tocsin: Big Active Data publish/subscribe on Apache Spark.",
    )
    app.callback()(lambda: None)
    _register_all(commands, app)
    app.registered_commands.sort(key=lambda command: command.name or "")
    measurements = typer.Typer(no_args_is_help=True, help="Run a benchmark. Each checks its results for correctness.")
    measurements.callback()(lambda: None)
    _register_all(benchmarks, measurements)
    app.add_typer(measurements, name="bench")
    return app


def _register_all(package: ModuleType, app: typer.Typer) -> None:
    modules = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg]
    for name in sorted(modules):
        importlib.import_module(f"{package.__name__}.{name}").register(app)


def main() -> None:
    make_app()()
