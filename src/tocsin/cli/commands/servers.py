"""Commands that run one server process, with a flag for every setting: cluster, gateway, coordinator, broker."""

from __future__ import annotations

from functools import partial

import typer

from tocsin.cli.console import note, show
from tocsin.cli.processes import announce_server, run_on_event_loop, run_with_flags


def register(app: typer.Typer) -> None:
    # The flags come from settings classes whose import is slow. `run_with_flags` adds them only when a command runs, so
    # that `tocsin --help` stays fast.
    arguments = {"ignore_unknown_options": True, "allow_extra_args": True}
    for command in (broker, cluster, coordinator, gateway, results):
        app.command(command.__name__, add_help_option=False, context_settings=arguments)(command)


def cluster(context: typer.Context) -> None:
    """Run the data cluster until it is stopped.

    Ends with exit code 75 if Spark's JVM dies or no longer answers, or if a standby has taken over: start it again
    then, as `tocsin up` does.
    """
    import os

    from tocsin.cluster.server.memory import choose_allocator
    from tocsin.cluster.server.settings import ClusterProcessSettings

    choose_allocator(os.environ)

    def run(settings: ClusterProcessSettings, as_json: bool) -> None:
        from tocsin.cluster.server.server import ClusterServer
        from tocsin.cluster.server.spark_watch import EXIT_SPARK_LOST, SparkLost
        from tocsin.wire.errors import NotLeading

        async def serve() -> None:
            try:
                await ClusterServer(settings, partial(announce_server, "data cluster", as_json)).run()
            except (SparkLost, NotLeading) as error:
                note(f"tocsin: {error}; exit code {EXIT_SPARK_LOST}: start the data cluster again")
                # Threads may still wait for an answer of Spark, and an ordinary exit would wait for these threads.
                os._exit(EXIT_SPARK_LOST)

        run_on_event_loop(serve)

    run_with_flags(context, ClusterProcessSettings, run)


def gateway(context: typer.Context) -> None:
    """Run a gateway until it is stopped: it accepts records into shared logs, without Spark and without state.

    It takes the settings of the data cluster, and needs its `root` and `catalog`. Any number of gateways may run.
    """
    import os

    from tocsin.cluster.server.memory import choose_allocator
    from tocsin.cluster.server.settings import ClusterProcessSettings

    choose_allocator(os.environ)

    def run(settings: ClusterProcessSettings, as_json: bool) -> None:
        from tocsin.cluster.server.gateway.server import GatewayServer

        def ready(address: str) -> None:
            announce_server("gateway", as_json, address, None)

        run_on_event_loop(lambda: GatewayServer(settings, ready).run())

    run_with_flags(context, ClusterProcessSettings, run)


def results(context: typer.Context) -> None:
    """Serve results to brokers, beside the data cluster and without Spark."""
    from tocsin.cluster.result_server.settings import ResultServerSettings

    def run(settings: ResultServerSettings, as_json: bool) -> None:
        from tocsin.cluster.result_server.server import ResultServer

        ready = partial(announce_server, "result server", as_json)
        run_on_event_loop(lambda: ResultServer(settings, ready).run())

    run_with_flags(context, ResultServerSettings, run)


def coordinator(context: typer.Context) -> None:
    """Run the coordinator until it is stopped."""
    from tocsin.runtime.coordinator.settings import CoordinatorSettings

    def run(settings: CoordinatorSettings, as_json: bool) -> None:
        from tocsin.runtime.coordinator.server import CoordinatorServer
        from tocsin.web import PAGES

        ready = partial(announce_server, "coordinator", as_json)
        run_on_event_loop(lambda: CoordinatorServer(settings, ready, pages=PAGES).run())

    run_with_flags(context, CoordinatorSettings, run)


def broker(context: typer.Context) -> None:
    """Run a broker until it is stopped."""
    from tocsin.runtime.broker.settings import BrokerSettings

    def run(settings: BrokerSettings, as_json: bool) -> None:
        from tocsin.runtime.broker.server import BrokerServer
        from tocsin.runtime.http.listening import collect_garbage_rarely

        def ready(address: str, mqtt: str | None) -> None:
            collect_garbage_rarely()
            content = {"broker": settings.id, "address": address} | ({} if mqtt is None else {"mqtt": mqtt})
            show(as_json, content, lambda: print_address(address, mqtt))

        def print_address(address: str, mqtt: str | None) -> None:
            print(f"Tocsin broker {settings.id}: {address}", flush=True)
            if mqtt is not None:
                print(f"MQTT: {mqtt}", flush=True)
            note("Press Ctrl-C to stop.")

        async def serve() -> None:
            server = BrokerServer(settings, lambda address: ready(address, server.mqtt_address))
            await server.run()

        run_on_event_loop(serve)

    run_with_flags(context, BrokerSettings, run)
