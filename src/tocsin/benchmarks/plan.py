"""`tocsin bench plan`: how long balancing policies take to plan for a million subscribers, and how much memory.

Each policy plans in a process of its own, so that its peak memory is its own. Compilation happens before, on a small
world, and is reported apart. Every plan is checked against loads computed by sparse matrices. `plan_s` is by the
clock on the wall, `cpu_s` what the process itself used: on a machine with other work the two differ.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, finish

if TYPE_CHECKING:
    from tocsin.model.plan import Plan
    from tocsin.model.snapshot import Snapshot

POLICIES: dict[str, dict[str, Any]] = {
    "gsh": {"scheme": "none", "shuffle": "gsh", "gamma": 0.0, "shuffle_gain": 0.0},
    "ldm": {"scheme": "ldm", "shuffle": "none"},
    "sdm": {"scheme": "sdm", "shuffle": "none"},
    "affinity": {"scheme": "affinity", "shuffle": "none"},
    "affinity_shuffle": {"scheme": "none", "shuffle": "affinity", "gamma": 0.0, "shuffle_gain": 0.0},
}


def register(app: typer.Typer) -> None:
    app.command()(plan)


def plan(
    subscribers: Annotated[int, typer.Option(min=10, help="Subscribers, 4 to 12 subscriptions each.")] = 1_000_000,
    brokers: Annotated[int, typer.Option(min=2)] = 1_000,
    subscriptions: Annotated[int, typer.Option(min=0, help="BE subscriptions; 0: a tenth of the subscribers.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Plans timed for each policy; the median counts.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Plan from nearest placement with geographic skew, neighbourhoods of 200; growth is from a tenth of it all."""
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as folder:
        large, small = Path(folder, "large.npz"), Path(folder, "small.npz")
        announce(f"drawing worlds of {subscribers:,} and {subscribers // 10:,} subscribers")
        _draw(large, subscribers, brokers, subscriptions or subscribers // 10)
        _draw(small, subscribers // 10, max(2, brokers // 10), (subscriptions or subscribers // 10) // 10)
        measured: dict[str, Any] = {}
        for name in POLICIES:
            announce(f"{name} …")
            measured[name] = _child(f"measure({name!r}, {str(large)!r}, {repeats})")
            announce(f"{name}: {measured[name]}")
        slowest = max(measured, key=lambda name: measured[name]["plan_s"])
        announce(f"growth of {slowest} …")
        growth = _child(f"measure_growth({slowest!r}, {str(large)!r}, {str(small)!r}, {2 * repeats - 1})")
    finish(
        {
            "policies": measured, **growth, "slowest": slowest, "subscribers": subscribers, "brokers": brokers,
            "correct": all(one["correct"] for one in (*measured.values(), growth)),
        },
        as_json,
    )  # fmt: skip


def _draw(path: Path, subscribers: int, brokers: int, subscriptions: int) -> None:
    """A world as the simulator draws it, everybody with the nearest broker and all subscriptions made."""
    import numpy as np

    from tocsin.policies.balance.placement import BrokerChoice
    from tocsin.policies.balance.settings import PlacementPolicy
    from tocsin.sim.balance.policy_coordinator import ArrivingSubscribers, place_together
    from tocsin.sim.balance.scenario import Brokers, Scenario, ScenarioChannels, Subscribers
    from tocsin.sim.balance.world import draw
    from tocsin.sim.kernel import Kernel

    crowd = (30, 20, 16, 13, 11, 9, 8, 7, 6, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 2)
    scenario = Scenario(
        "bench", 1.0, Brokers(brokers, crowd),
        Subscribers(subscribers, (0, 0), (4, 12), neighbourhoods=max(1, subscribers // 200), own_share=0.85),
        ScenarioChannels((10.0,), max(1, subscriptions), 1_000.0, 250.0),
    )  # fmt: skip
    kernel = Kernel(1)
    world = draw(scenario, kernel.stream)
    choices = tuple(BrokerChoice(name, place=at) for name, at in zip(world.brokers, world.broker_places, strict=True))
    chunks = [
        place_together(PlacementPolicy.NEAREST, ArrivingSubscribers(part, np.zeros(len(part))), choices, 0)
        for part in np.array_split(world.places_deg, max(1, subscribers // 20_000))
    ]
    np.savez(path, broker_of=np.concatenate(chunks), start=world.start.astype(np.int32), wants=world.wants,
             rate=world.rate, brokers=brokers)  # fmt: skip


def _child(call: str) -> dict[str, Any]:
    """What a function of this module prints in a process of its own."""
    code = f"from tocsin.benchmarks import plan; plan.{call}"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(policy: str, path: str, repeats: int) -> None:
    """In the child: compile, plan `repeats` times, read the peak, then check. Prints one JSON object."""
    import resource
    import statistics

    from tocsin.policies.balance import multistage
    from tocsin.policies.balance.settings import BalanceSettings

    settings = BalanceSettings(**POLICIES[policy], hits=1, max_moves=0)
    started_s = time.perf_counter()
    multistage.plan(_tiny(), settings)
    compiled_s = time.perf_counter() - started_s
    snapshot = _snapshot(path)
    taken_s, cpu_s = [], []
    for _ in range(repeats):
        started_s, used_s = time.perf_counter(), time.process_time()
        found = multistage.plan(snapshot, settings)
        taken_s.append(time.perf_counter() - started_s)
        cpu_s.append(time.process_time() - used_s)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    before, after = found.before, found.after
    print(json.dumps({
        "plan_s": round(statistics.median(taken_s), 3), "cpu_s": round(statistics.median(cpu_s), 3),
        "peak_mib": round(peak_mib), "moves": len(found.moves),
        "cov_before": round(before.cov, 4) if before else None, "cov_after": round(after.cov, 4) if after else None,
        "max_load_ratio": round(after.maximum / before.maximum, 4) if before and after else None,
        "compile_s": round(compiled_s, 2), "correct": _correct(snapshot, found),
    }))  # fmt: skip


def measure_growth(policy: str, large: str, small: str, repeats: int) -> None:
    """In the child: the median of pairs measured within seconds of each other. A shared machine changes its speed.

    Of a pair the small world is the median of a few, before and after the large one: it is over in a moment. Each
    world is planned once before, so that neither pays for the memory a process takes the first time.
    """
    import statistics

    from tocsin.policies.balance import multistage
    from tocsin.policies.balance.settings import BalanceSettings

    settings = BalanceSettings(**POLICIES[policy], hits=1, max_moves=0)
    worlds = [_snapshot(small), _snapshot(large)]
    multistage.plan(_tiny(), settings)
    correct = all(_correct(world, multistage.plan(world, settings)) for world in worlds)

    def seconds(world: Snapshot) -> float:
        started_s = time.perf_counter()
        multistage.plan(world, settings)
        return time.perf_counter() - started_s

    small_s, large_s = [seconds(worlds[0])], []
    for _ in range(repeats):
        large_s.append(seconds(worlds[1]))
        small_s += [seconds(worlds[0]) for _ in range(3)]
    around = [statistics.median(small_s[max(0, 3 * i - 2) : 3 * i + 4]) for i in range(repeats)]
    ratios = [whole / tenth for whole, tenth in zip(large_s, around, strict=True)]
    print(json.dumps({
        "growth": round(statistics.median(ratios), 2), "growths": [round(ratio, 2) for ratio in ratios],
        "slowest_at_a_tenth_s": round(statistics.median(small_s), 3), "correct": correct,
    }))  # fmt: skip


def _snapshot(path: str) -> Snapshot:
    import numpy as np

    from tocsin.model.ids import BrokerId, SubscriberId
    from tocsin.model.snapshot import Snapshot

    with np.load(path) as file:
        broker_of, start, wants, rate = file["broker_of"], file["start"], file["wants"], file["rate"]
        brokers = int(file["brokers"])
    n = len(broker_of)
    return Snapshot(
        1, 0.0, tuple(BrokerId(f"broker-{j:04}") for j in range(brokers)), np.ones(brokers),
        np.ones(brokers, dtype=np.bool_), tuple(SubscriberId(f"subscriber-{i:07}") for i in range(n)),
        broker_of, start, wants, rate, np.ones(n, dtype=np.bool_), np.full(n, -np.inf),
    )  # fmt: skip


def _tiny() -> Snapshot:
    """Uneven enough that every kernel is needed, and so compiled."""
    import numpy as np

    from tocsin.model.ids import BrokerId, SubscriberId
    from tocsin.model.snapshot import Snapshot

    rng = np.random.default_rng(1)
    broker_of = np.minimum(rng.geometric(0.6, 200) - 1, 3).astype(np.int32)
    return Snapshot(
        1, 0.0, tuple(BrokerId(str(j)) for j in range(4)), np.ones(4), np.ones(4, dtype=np.bool_),
        tuple(SubscriberId(str(i)) for i in range(200)), broker_of, np.arange(0, 601, 3, dtype=np.int32),
        rng.integers(0, 30, 600).astype(np.int32), rng.uniform(1.0, 2.0, 30), np.ones(200, dtype=np.bool_),
        np.full(200, -np.inf),
    )  # fmt: skip


def _correct(snapshot: Snapshot, found: Plan) -> bool:
    """The balances it promises are those of [BAD eq. 5] by sparse matrices, before and after its moves."""
    import numpy as np
    from scipy import sparse

    broker = {name: j for j, name in enumerate(snapshot.brokers)}
    number = {name: i for i, name in enumerate(snapshot.subscribers)}
    after = snapshot.broker_of.copy()
    for move in found.moves:
        after[number[move.subscriber]] = broker[move.target]
    n, m, q = len(number), len(broker), len(snapshot.rate)
    y = sparse.csr_matrix((np.ones(len(snapshot.wants)), snapshot.wants, snapshot.wants_start), shape=(n, q))
    right = len({move.subscriber for move in found.moves}) == len(found.moves)
    for assigned, promised in ((snapshot.broker_of, found.before), (after, found.after)):
        x = sparse.csr_matrix((np.ones(n), (assigned, np.arange(n))), shape=(m, n))
        counts = x @ y
        loads = counts @ snapshot.rate + (counts > 0) @ snapshot.rate
        right = right and promised is not None and bool(np.allclose(promised.loads, loads, rtol=1e-9))
    return right
