"""Print what network coordinates cost a broker: CPU and memory of idle brokers, with the agents on and off.

    python scripts/coordinates_cost.py [brokers] [seconds]

The paper's bounds are 1 % of a CPU and 15 MB [ePulsar §5.3]. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from statistics import mean

from tocsin.benchmarks.shared.usage import server_processes, usage_of
from tocsin.runtime.stack.stack import Stack, StackSettings

WARM_UP_S = 20.0
"""The first, faster probes are over by then."""


async def cost(brokers: int, seconds: float, flags: dict[str, str]) -> tuple[float, float]:
    """(share of one CPU in %, resident MiB) of a broker, as means over all brokers."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        stack = Stack(StackSettings(root, brokers, free_ports=True, data_cluster=False, logs=root, broker=flags))
        try:
            await stack.start()
            await asyncio.sleep(WARM_UP_S)
            processes = server_processes(stack)
            first = usage_of(processes)
            await asyncio.sleep(seconds)
            last = usage_of(processes)
        finally:
            await stack.stop()
    took_s = last.at_s - first.at_s
    cpu = mean((last.cpu_s[name] - first.cpu_s[name]) / took_s for name in stack.brokers)
    return 100 * cpu, mean(last.rss_mib[name] for name in stack.brokers)


def main() -> None:
    brokers = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    on_cpu, on_mib = asyncio.run(cost(brokers, seconds, {}))
    off_cpu, off_mib = asyncio.run(cost(brokers, seconds, {"no-coordinates": ""}))
    for name, cpu, mib in (
        ("on", on_cpu, on_mib),
        ("off", off_cpu, off_mib),
        ("cost", on_cpu - off_cpu, on_mib - off_mib),
    ):
        sys.stdout.write(f"{name:5} {cpu:6.2f} % of a CPU  {mib:7.1f} MiB\n")


if __name__ == "__main__":
    main()
