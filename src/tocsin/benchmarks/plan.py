"""`tocsin bench plan`: plan balancing for a million subscribers on a thousand brokers.

Timed: one plan of each policy, from nearest placement with geographic skew. Each policy plans in a process of its own,
so that the peak memory is its own. Compilation happens before, on a small snapshot, and is reported apart. The slowest
policy also plans for a tenth of the world, which gives the growth.
Checked by: sparse matrices, which compute the loads before and after the moves of every policy's plan.
Prints: `plan_s` (wall clock), `cpu_s` (CPU time of the process; the two differ on a busy machine), peak memory, moves
and balance of each policy, and the growth.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder, timed

if TYPE_CHECKING:
    from tocsin.model.plan import Plan
    from tocsin.model.snapshot import Floats, Ints, Snapshot

CROWD = (30, 20, 16, 13, 11, 9, 8, 7, 6, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 2)
"""Shares of the subscribers near each broker, repeated for more brokers."""
POLICIES: dict[str, dict[str, Any]] = {
    "gsh": {"scheme": "none", "shuffle": "gsh", "gamma": 0.0, "shuffle_gain": 0.0},
    "ldm": {"scheme": "ldm", "shuffle": "none"},
    "sdm": {"scheme": "sdm", "shuffle": "none"},
    "affinity": {"scheme": "affinity", "shuffle": "none"},
    "affinity_shuffle": {"scheme": "none", "shuffle": "affinity", "gamma": 0.0, "shuffle_gain": 0.0},
}


def plan(
    subscribers: Annotated[int, typer.Option(min=10, help="Subscribers, 4 to 12 subscriptions each.")] = 1_000_000,
    brokers: Annotated[int, typer.Option(min=2)] = 1_000,
    subscriptions: Annotated[int, typer.Option(min=0, help="BE subscriptions; 0: a tenth of the subscribers.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Plans timed for each policy; the median counts.")] = 3,
) -> dict[str, Any]:
    """Plan from nearest placement with geographic skew, neighbourhoods of 200; growth is over a tenth of the world."""
    with temporary_folder() as folder:
        large, small = f"{folder}/large.npz", f"{folder}/small.npz"
        announce(f"drawing worlds of {subscribers:,} and {subscribers // 10:,} subscribers")
        _draw(large, subscribers, brokers, subscriptions or subscribers // 10)
        _draw(small, subscribers // 10, max(2, brokers // 10), (subscriptions or subscribers // 10) // 10)
        measured: dict[str, Any] = {}
        for name in POLICIES:
            announce(f"{name} …")
            measured[name] = _in_child("measure", name, large, repeats)
            announce(f"{name}: {measured[name]}")
        slowest = max(measured, key=lambda name: measured[name]["plan_s"])
        announce(f"growth of {slowest} …")
        growth = _in_child("measure_growth", slowest, large, small, 2 * repeats - 1)
    correct = all(figures["correct"] for figures in (*measured.values(), growth))
    sizes = {"subscribers": subscribers, "brokers": brokers}
    return {"policies": measured, **growth, "slowest": slowest, **sizes, "correct": correct}


register = command(plan)


def _draw(path: str, subscribers: int, brokers: int, subscriptions: int) -> None:
    """Write a world that the simulator drew, with every subscriber at its nearest broker and all subscriptions made."""
    import numpy as np

    from tocsin.policies.balance.placement import BrokerChoice
    from tocsin.policies.balance.settings import PlacementPolicy
    from tocsin.sim.balance.policy_coordinator import ArrivingSubscribers, place_together
    from tocsin.sim.balance.scenario import Brokers, Scenario, ScenarioChannels, Subscribers
    from tocsin.sim.balance.world import draw
    from tocsin.sim.kernel import Kernel

    scenario = Scenario(
        "bench",
        1.0,
        Brokers(brokers, CROWD),
        Subscribers(subscribers, (0, 0), (4, 12), neighbourhoods=max(1, subscribers // 200), own_share=0.85),
        ScenarioChannels((10.0,), max(1, subscriptions), 1_000.0, 250.0),
    )
    world = draw(scenario, Kernel(1).stream)
    choices = tuple(BrokerChoice(name, place=at) for name, at in zip(world.brokers, world.broker_places, strict=True))
    chunks = [
        place_together(PlacementPolicy.NEAREST, ArrivingSubscribers(part, np.zeros(len(part))), choices, 0)
        for part in np.array_split(world.places_deg, max(1, subscribers // 20_000))
    ]
    broker_of, start = np.concatenate(chunks), world.start.astype(np.int32)
    np.savez(path, brokers=brokers, broker_of=broker_of, start=start, wants=world.wants, rate=world.rate)


def _in_child(function: str, *arguments: str | int) -> dict[str, Any]:
    """Call a function of this module in a process of its own and return its figures."""
    code = f"import json; from tocsin.benchmarks import plan; print(json.dumps(plan.{function}(*{arguments!r})))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(policy: str, path: str, repeats: int) -> dict[str, Any]:
    """In the child: compile, plan `repeats` times, read the peak memory, then check."""
    import resource

    from tocsin.policies.balance import multistage
    from tocsin.policies.balance.settings import BalanceSettings

    settings = BalanceSettings(**POLICIES[policy], hits=1, max_moves=0)
    _, compile_s = timed(lambda: multistage.plan(warm_up_snapshot(), settings))
    snapshot = _load(path)
    times_s, cpu_times_s = [], []
    for _ in range(repeats):
        cpu_before_s = time.process_time()
        made, took_s = timed(lambda: multistage.plan(snapshot, settings))
        times_s.append(took_s)
        cpu_times_s.append(time.process_time() - cpu_before_s)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    before, after = made.before, made.after
    return {
        "plan_s": round(statistics.median(times_s), 3),
        "cpu_s": round(statistics.median(cpu_times_s), 3),
        "peak_mib": round(peak_mib),
        "moves": len(made.moves),
        "cov_before": round(before.cov, 4) if before else None,
        "cov_after": round(after.cov, 4) if after else None,
        "max_load_ratio": round(after.maximum / before.maximum, 4) if before and after else None,
        "compile_s": round(compile_s, 2),
        "correct": is_correct(snapshot, made),
    }


def measure_growth(policy: str, large_path: str, small_path: str, repeats: int) -> dict[str, Any]:
    """In the child: time a plan for the large world over a plan for the small one; the median of `repeats` pairs.

    The two of a pair are timed within seconds of each other, because the speed of a shared machine changes. The small
    world takes only a moment: its time is the median of a few plans before and after the large one. Each world is
    planned once before, so that neither pays for the memory that a process takes the first time.
    """
    from tocsin.policies.balance import multistage
    from tocsin.policies.balance.settings import BalanceSettings

    settings = BalanceSettings(**POLICIES[policy], hits=1, max_moves=0)
    small, large = _load(small_path), _load(large_path)
    multistage.plan(warm_up_snapshot(), settings)
    correct = all(is_correct(world, multistage.plan(world, settings)) for world in (small, large))

    def plan_s(world: Snapshot) -> float:
        return timed(lambda: multistage.plan(world, settings))[1]

    small_s, large_s = [plan_s(small)], []
    for _ in range(repeats):
        large_s.append(plan_s(large))
        small_s += [plan_s(small) for _ in range(3)]
    around_s = [statistics.median(small_s[max(0, 3 * i - 2) : 3 * i + 4]) for i in range(repeats)]
    ratios = [whole / tenth for whole, tenth in zip(large_s, around_s, strict=True)]
    return {
        "growth": round(statistics.median(ratios), 2),
        "growths": [round(ratio, 2) for ratio in ratios],
        "slowest_at_a_tenth_s": round(statistics.median(small_s), 3),
        "correct": correct,
    }


def _load(path: str) -> Snapshot:
    import numpy as np

    with np.load(path) as file:
        return _make_snapshot(int(file["brokers"]), file["broker_of"], file["start"], file["wants"], file["rate"])


def warm_up_snapshot() -> Snapshot:
    """A small snapshot, uneven enough that every kernel is needed and therefore compiled."""
    import numpy as np

    rng = np.random.default_rng(1)
    broker_of = np.minimum(rng.geometric(0.6, 200) - 1, 3).astype(np.int32)
    wants = rng.integers(0, 30, 600).astype(np.int32)
    return _make_snapshot(4, broker_of, np.arange(0, 601, 3, dtype=np.int32), wants, rng.uniform(1.0, 2.0, 30))


def _make_snapshot(brokers: int, broker_of: Ints, wants_start: Ints, wants: Ints, rate: Floats) -> Snapshot:
    """Equal brokers that all accept, and movable subscribers that never moved."""
    import numpy as np

    from tocsin.model.ids import BrokerId, SubscriberId
    from tocsin.model.snapshot import Snapshot

    subscribers = len(broker_of)
    return Snapshot(
        generation=1,
        at_s=0.0,
        brokers=tuple(BrokerId(f"broker-{j:04}") for j in range(brokers)),
        capacity=np.ones(brokers),
        accepting=np.ones(brokers, dtype=np.bool_),
        subscribers=tuple(SubscriberId(f"subscriber-{i:07}") for i in range(subscribers)),
        broker_of=broker_of,
        wants_start=wants_start,
        wants=wants,
        rate=rate,
        movable=np.ones(subscribers, dtype=np.bool_),
        moved_at_s=np.full(subscribers, -np.inf),
    )


def is_correct(snapshot: Snapshot, made: Plan) -> bool:
    """Whether the plan moves a subscriber at most once, and its loads before and after are those of [BAD eq. 5]."""
    import numpy as np
    from scipy import sparse

    broker = {name: j for j, name in enumerate(snapshot.brokers)}
    number = {name: i for i, name in enumerate(snapshot.subscribers)}
    after = snapshot.broker_of.copy()
    for move in made.moves:
        after[number[move.subscriber]] = broker[move.target]
    n, m, q = len(number), len(broker), len(snapshot.rate)
    y = sparse.csr_matrix((np.ones(len(snapshot.wants)), snapshot.wants, snapshot.wants_start), shape=(n, q))
    correct = len({move.subscriber for move in made.moves}) == len(made.moves)
    for assigned, promised in ((snapshot.broker_of, made.before), (after, made.after)):
        x = sparse.csr_matrix((np.ones(n), (assigned, np.arange(n))), shape=(m, n))
        counts = x @ y
        loads = counts @ snapshot.rate + (counts > 0) @ snapshot.rate
        correct = correct and promised is not None and bool(np.allclose(promised.loads, loads, rtol=1e-9))
    return correct
