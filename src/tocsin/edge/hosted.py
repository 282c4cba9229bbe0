"""An operator at a node, with the watermark of each of its inputs."""

from __future__ import annotations

from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, Operator, pack, unpack

IDLE_US = 2**62 + 1
"""The watermark of an input that is idle: it holds no other input back until its next watermark."""


class HostedOperator:
    def __init__(self, operator: Operator, inputs: int) -> None:
        self.operator = operator
        self.watermarks_us = [BEGINNING_OF_TIME_US] * inputs
        self.watermark_us = BEGINNING_OF_TIME_US
        """The lowest watermark of all inputs that are not idle. It never falls, also when an idle input returns."""

    @property
    def is_idle(self) -> bool:
        return min(self.watermarks_us) == IDLE_US

    def receive_watermark(self, port: int, watermark_us: int) -> None:
        before_us = self.watermarks_us[port]
        is_change = IDLE_US in (before_us, watermark_us)
        self.watermarks_us[port] = watermark_us if is_change else max(before_us, watermark_us)
        if not self.is_idle:
            self.watermark_us = max(self.watermark_us, min(self.watermarks_us))

    def snapshot(self) -> bytes:
        """The watermarks, followed by the operator's state."""
        header = pack({"watermarks_us": self.watermarks_us, "watermark_us": self.watermark_us})
        return len(header).to_bytes(8, "little") + header + self.operator.snapshot()

    def restore(self, state: bytes) -> None:
        length = int.from_bytes(state[:8], "little")
        facts = unpack(state[8 : 8 + length])[0]
        watermarks_us = [int(value) for value in facts["watermarks_us"]]
        if len(watermarks_us) != len(self.watermarks_us):
            raise ValueError(f"{len(watermarks_us)} watermarks for {len(self.watermarks_us)} inputs")
        self.watermarks_us, self.watermark_us = watermarks_us, int(facts["watermark_us"])
        if len(state) > 8 + length:
            self.operator.restore(state[8 + length :])
