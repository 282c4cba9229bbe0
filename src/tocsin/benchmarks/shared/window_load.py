"""The load of persistent topics in `bench topics`: one publisher with a fixed number of messages in flight.

`python -m tocsin.benchmarks.shared.window_load FILE` works like `topic_load`, but in a closed loop: an acknowledgement,
which the server sends after its fsync, makes room for the next message. An open loop would measure the disk's queue.
All messages for which there is room leave in one write, so that every server may put them into one fsync.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tocsin.benchmarks.shared.topic_load import TopicLoad, quantiles


class WindowLoad(TopicLoad):
    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task | {"acknowledged": True})
        self._acknowledged_s: list[float] = []
        """Time from publishing to the acknowledgement of each message."""

    def run(self) -> dict[str, Any]:
        figures = super().run()
        count = figures["messages"]
        figures |= {f"acknowledged_{name}": value for name, value in quantiles(self._acknowledged_s[-count:]).items()}
        return figures | {"messages_per_s": count / figures["took_s"]}

    def _run(self, seconds: float) -> None:
        clock, publisher, window = time.perf_counter, self._publisher, self._task["in_flight"]
        end_s = clock() + seconds
        while (now_s := clock()) < end_s:
            room = window - (self._sent - publisher.acknowledgements)
            if room:
                publisher.connection.socket.sendall(self._next_burst(room, now_s))
                self._late_s.append(0.0)
            self._read(self._poll.poll(0))
        self._await_last()

    def _on_answer(self, data: bytes, now_s: float) -> None:
        before = self._publisher.acknowledgements
        super()._on_answer(data, now_s)
        for number in range(before + 1, self._publisher.acknowledgements + 1):
            self._acknowledged_s.append(now_s - self._due_s[number])


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_bytes())
    print(json.dumps(WindowLoad(task).run()), flush=True)


if __name__ == "__main__":
    main()
