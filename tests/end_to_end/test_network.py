"""Results from publisher to subscriber through real processes, during migrations, drains, crashes and restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.end_to_end.conftest import Network, take, until
from tocsin.benchmarks.shared.whole_way import whole_way
from tocsin.client import BadResult, ClientError, Denied, RequestRefused, Subscriber
from tocsin.client import sync as blocking
from tocsin.wire.errors import Code

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Near(msgspec.Struct):
    id: str
    name: str
    away_m: float


def test_subscriber_gets_enriched_results_of_its_own_type(network: Network) -> None:
    async def scenario() -> None:
        await network.publisher.publish("People", [{"name": "ann", "lat": 60.170, "lon": 24.940}])
        async with network.subscriber("ann", encoding="msgpack") as ann:
            near = await ann.subscribe("NearMe", {"me": "ann", "radius_m": 500}, type=Near)
            await until(lambda: _has_people(network))
            await network.publish(next(network.kinds), "r1")
            [result] = await take(near, 1)
            assert isinstance(result.value, Near) and result.value.name == "ann"
            assert 100 < result.value.away_m < 150

    network.run(scenario())


def _has_people(network: Network) -> bool:
    """Whether the dataset People has a record: an execution joins reports with the people that it has then."""
    return bool(network.cluster.get("/v1/datasets/People").json()["rows"])


def test_invalid_subscription_is_refused_with_a_code(network: Network) -> None:
    async def scenario() -> None:
        async with network.subscriber() as subscriber:
            with pytest.raises(RequestRefused) as unknown:
                await subscriber.subscribe("Nothing", {})
            assert unknown.value.code is Code.UNKNOWN_CHANNEL
            with pytest.raises(RequestRefused) as wrong:
                await subscriber.subscribe("OfKind", {"colour": "red"})
            assert wrong.value.code is Code.BAD_PARAMETER

    network.run(scenario())


def test_subscriber_updates_its_own_record_across_a_move(network: Network) -> None:
    async def scenario() -> None:
        async with network.subscriber() as walker:
            places = await walker.subscribe("MyPlace", {"me": walker.user})
            await walker.update("People", {"lat": 1.0, "lon": 24.940})
            [first] = await take(places, 1)
            assert first.value == {"name": walker.user, "lat": 1.0}
            source = await walker.connected()
            target = network.others(source)[0]
            moving = asyncio.create_task(asyncio.to_thread(network.migrate, walker.user, target))
            for number in range(2, 22):
                await walker.update("People", {"lat": float(number), "lon": 24.940})
            await moving
            await until(lambda: walker.broker == target)
            walker.break_connections()
            await walker.update("People", {"name": walker.user, "lat": 60.0, "lon": 24.940})
            while (await take(places, 1))[0].value["lat"] != 60.0:
                pass
            with pytest.raises(Denied) as forbidden:
                await walker.update("People", {"name": "ann", "lat": 1.0, "lon": 1.0})
            assert forbidden.value.code is Code.FORBIDDEN
            with pytest.raises(RequestRefused) as bad:
                await walker.update("People", {"latitude": 1.0})
            assert bad.value.code is Code.BAD_RECORDS
            with pytest.raises(TypeError):
                await walker.update("People", {"lat": object()})
            await walker.update("People", {"lat": 2.0})

    network.run(scenario())


def test_blocking_subscriber_updates_its_own_record(network: Network) -> None:
    options = {"user": next(network.users), "token": network.token}
    with blocking.Subscriber(network.stack.coordinator_url, **options) as subscriber:
        subscriber.update("People", {"lat": 60.170, "lon": 24.940})
        with pytest.raises(RequestRefused) as unknown:
            subscriber.update("Nothing", {"lat": 1})
        assert unknown.value.code is Code.UNKNOWN_DATASET


def test_update_command_stores_the_record_beside_an_open_session(network: Network) -> None:
    async def scenario() -> None:
        async with network.subscriber() as subscriber:
            places = await subscriber.subscribe("MyPlace", {"me": subscriber.user})
            command = [sys.executable, "-c", "from tocsin.cli.main import main; main()", "update", "People", "lat=7"]
            command += ["--user", str(subscriber.user), "--url", network.stack.coordinator_url, "--json"]
            environment = os.environ | {"TOCSIN_TOKEN": network.token}
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=60, env=environment
            )
            assert done.returncode == 0, done.stderr
            assert msgspec.json.decode(done.stdout)["broker"] in network.stack.brokers
            [result] = await take(places, 1)
            assert result.value["lat"] == 7.0 and len(subscriber.brokers_seen) == 1, "the session stayed open"

    network.run(scenario())


def test_migration_while_results_flow_loses_and_repeats_nothing(network: Network) -> None:
    async def scenario() -> None:
        kind = next(network.kinds)
        async with network.subscriber() as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            source = await subscriber.connected()
            target = network.others(source)[0]
            await network.publish(kind, "0")
            await take(held, 1)
            publishing = asyncio.create_task(_stream(network, kind, 1, 30))
            await asyncio.to_thread(network.migrate, subscriber.user, target)
            results = await take(held, 29)
            await publishing
            await until(lambda: subscriber.brokers_seen == [source, target])
            assert sorted(int(result.value["id"].rpartition("-")[2]) for result in results) == list(range(1, 30))
            assert await subscriber.connected() == target

    network.run(scenario())


async def _stream(network: Network, kind: str, first: int, end: int) -> None:
    for number in range(first, end):
        await network.publish(kind, str(number))


def test_drained_broker_loses_all_subscribers_and_gets_no_new_ones(network: Network) -> None:
    async def scenario() -> None:
        kind = next(network.kinds)
        async with network.subscriber() as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            drained = await subscriber.connected()
            answer = network.coordinator.post(f"/v1/brokers/{drained}/drain", json={"on": True})
            assert answer.status_code == 200, answer.text
            try:
                await until(lambda: len(subscriber.brokers_seen) == 2)
                assert await subscriber.connected() != drained
                async with network.subscriber() as other:
                    await other.subscribe("OfKind", {"kind": kind})
                    assert await other.connected() != drained
                await network.publish(kind, "after")
                await take(held, 1)
            finally:
                network.coordinator.post(f"/v1/brokers/{drained}/drain", json={"on": False}).raise_for_status()

    network.run(scenario())


def test_restarted_program_resumes_from_its_state_file(network: Network, tmp_path: Path) -> None:
    async def scenario() -> None:
        kind, user, state = next(network.kinds), next(network.users), tmp_path / "state"
        async with network.subscriber(user, state=state) as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            await network.publish(kind, "1", "2")
            first = await take(held, 2)
        assert state.stat().st_mode & 0o777 == 0o600
        await network.publish(kind, "3")
        async with network.subscriber(user, state=state) as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            await network.publish(kind, "4")
            again = await take(held, 2)
        received = [result.value["id"] for result in [*first, *again]]
        assert sorted(received) == [f"{kind}-{number}" for number in (1, 2, 3, 4)]

    network.run(scenario())


def test_unacknowledged_result_is_delivered_again_without_a_state_file(network: Network) -> None:
    async def scenario() -> None:
        kind, user = next(network.kinds), next(network.users)
        async with network.subscriber(user, acknowledge="manual") as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            await network.publish(kind, "1")
            await network.publish(kind, "2")
            results = await take(held, 2)
            subscriber.ack(results[0])
        async with network.subscriber(user) as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            [again] = await take(held, 1)
            assert again.value == results[1].value

    network.run(scenario())


def test_result_of_a_wrong_type_is_reported_and_skipped(network: Network) -> None:
    class Wrong(msgspec.Struct):
        id: int

    async def scenario() -> None:
        kind = next(network.kinds)
        async with network.subscriber() as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind}, type=Wrong)
            await network.publish(kind, "1")
            with pytest.raises(BadResult, match="id") as refused:
                await take(held, 1)
            assert msgspec.json.decode(refused.value.raw) == {"id": f"{kind}-1", "kind": kind}
            with pytest.raises(TimeoutError):
                await take(held, 1, 0.2)

    network.run(scenario())


def test_blocking_subscriber_and_command_receive_the_same_result(network: Network) -> None:
    kind = next(network.kinds)
    command = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from tocsin.cli.main import main; main()",
            "subscribe",
            "OfKind",
            f"kind={kind}",
            "--url",
            network.stack.coordinator_url,
            "--user",
            next(network.users),
            "--count",
            "1",
            "--leave",
            "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TOCSIN_TOKEN": network.token},
    )
    assert command.stderr is not None and "holds OfKind" in command.stderr.readline()
    with blocking.Subscriber(network.stack.coordinator_url, user=next(network.users), token=network.token) as plain:
        held = plain.subscribe("OfKind", {"kind": kind})
        network.run(network.publish(kind, "1"))
        result = held.get(60)
        held.unsubscribe()
    printed, errors = command.communicate(timeout=60)
    assert command.returncode == 0, errors
    assert msgspec.json.decode(printed) == {"cursor": result.cursor, "result": {"id": f"{kind}-1", "kind": kind}}


def test_user_cannot_use_the_name_or_subscriptions_of_another(network: Network) -> None:
    async def scenario() -> None:
        kind, victim, thief = next(network.kinds), next(network.users), next(network.users)
        own = network.coordinator.post("/v1/users", json={"user": thief}).json()["token"]
        async with network.subscriber(victim) as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            await network.publish(kind, "1")
            await take(held, 1)
            with pytest.raises(Denied):
                async with Subscriber(network.stack.coordinator_url, user=victim, token=own) as stolen:
                    await stolen.subscribe("OfKind", {"kind": kind})
            async with Subscriber(network.stack.coordinator_url, user=thief, token=own) as curious:
                await curious.connected()
                assert curious.subscriptions() == {}, "subscriptions of other users are not shown"
                await curious.unsubscribe(held.id)  # not the thief's subscription: no effect
            await network.publish(kind, "2")
            assert (await take(held, 1))[0].value["id"] == f"{kind}-2"

    network.run(scenario())


def test_subscriber_token_cannot_administer_or_publish(network: Network) -> None:
    own = network.coordinator.post("/v1/users", json={"user": next(network.users)}).json()["token"]
    headers = {"Authorization": f"Bearer {own}"}
    assert network.coordinator.get("/v1/status", headers=headers).status_code == 403
    assert network.coordinator.post("/v1/brokers/broker-1/drain", json={"on": True}, headers=headers).status_code == 403
    assert network.cluster.post("/v1/datasets/Reports/records", json=[{}], headers=headers).status_code == 403
    assert network.cluster.post("/v1/applications", json={"text": ""}, headers=headers).status_code == 403


def test_no_secret_is_in_a_process_list_or_a_log(network: Network) -> None:
    secrets = {network.token} | {
        (network.stack.token_file.parents[1] / "brokers" / name / "token").read_text().strip()
        for name in network.stack.brokers
    }
    assert len(secrets) == 4
    for child in network.stack.children:
        listed = Path(f"/proc/{child.pid}/cmdline").read_bytes().decode() if child.pid else ""
        assert child.name.split("-")[0] in listed
        logged = (network.stack.token_file.parents[2] / f"{child.name}.log").read_text()
        assert not [secret for secret in secrets if secret in listed or secret in logged]
        files = [path for path in network.stack.token_file.parents[1].rglob("*token*") if path.is_file()]
        assert files and all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_subscribers_of_a_killed_broker_miss_no_result(network: Network) -> None:
    async def scenario() -> None:
        kind = next(network.kinds)
        async with network.subscriber() as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            killed = await subscriber.connected()
            await network.publish(kind, "0")
            await take(held, 1)
            publishing = asyncio.create_task(_stream(network, kind, 1, 10))
            network.stack.brokers[killed].signal(signal.SIGKILL)
            results = await take(held, 9)
            await publishing
            assert sorted(result.value["id"] for result in results) == [f"{kind}-{number}" for number in range(1, 10)]
            assert len(subscriber.brokers_seen) >= 2

    network.run(scenario())


def test_delivery_and_reconnection_work_while_the_coordinator_is_down(network: Network) -> None:
    async def scenario() -> None:
        kind = next(network.kinds)
        async with network.subscriber() as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            await subscriber.connected()
            starts = network.stack.coordinator.starts
            network.stack.coordinator.signal(signal.SIGKILL)
            subscriber.break_connections()
            await network.publish(kind, "1")
            assert (await take(held, 1))[0].value["id"] == f"{kind}-1"
            assert len(set(subscriber.brokers_seen)) == 1, "the last known broker accepts the session again"
            await until(lambda: network.stack.coordinator.starts > starts and network.stack.coordinator.pid)
            await until(lambda: _answers(network))

    network.run(scenario())


def _answers(network: Network) -> bool:
    try:
        return network.coordinator.get("/v1/status").status_code == 200
    except Exception:
        return False


def test_no_result_is_lost_when_the_data_cluster_is_killed(network: Network) -> None:
    async def scenario() -> None:
        kind = next(network.kinds)
        async with network.subscriber() as subscriber:
            held = await subscriber.subscribe("OfKind", {"kind": kind})
            await network.publish(kind, "0")
            network.stack.cluster.signal(signal.SIGKILL)
            publishing = asyncio.create_task(_stream(network, kind, 1, 6))
            results = await take(held, 6, 200)
            await publishing
            assert sorted(result.value["id"] for result in results) == [f"{kind}-{number}" for number in range(6)]

    network.run(scenario(), 240)


def test_subscriber_with_an_invalid_token_gets_an_error(network: Network) -> None:
    async def scenario() -> None:
        with pytest.raises(ClientError) as refused:
            async with Subscriber(network.stack.coordinator_url, user="x", token="nonsense") as subscriber:
                await subscriber.subscribe("OfKind", {"kind": "a"})
        assert refused.value.code is Code.UNAUTHENTICATED

    network.run(scenario())


def test_whole_way_of_the_latency_benchmark_times_every_record(network: Network) -> None:
    way = network.run(whole_way(network.stack, rate_per_s=20.0, seconds=1.0, warm_up_s=1.0))
    assert (way.records, way.lost) == (40, 0)
    assert 0.0 < way.p50_s <= way.p95_s
