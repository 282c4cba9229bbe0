"""The other brokers with MQTT clients: their addresses, and the state of retained messages at a start.

A broker that starts, or that has missed records, asks for the retained messages. The others wait for a time that their
names decide; the first answers, and its answer stops the rest.
"""

from __future__ import annotations

from hashlib import blake2b

from tocsin.broker.mqtt import control
from tocsin.broker.mqtt.control import CONTROL_TOPIC
from tocsin.broker.mqtt.effects import Effect, PublishToTopic, WatchPattern
from tocsin.broker.mqtt.retained import Retained
from tocsin.broker.mqtt.session import MqttState
from tocsin.model.topic import Position

ALONE_S = 1.0
"""How long a broker waits for the state of others before it takes itself for the only one."""
_LONGEST_DELAY_S = 0.4


class Peers:
    def __init__(self, state: MqttState, retained: Retained) -> None:
        self._state = state
        self._retained = retained
        self._asked_s: float | None = None
        self._answer_s: dict[str, float] = {}
        """Broker that asked → when to answer it."""
        self.addresses: dict[str, str] = {}
        self.address = ""
        """Where clients reach this broker."""
        self._is_open = True
        self.is_ready = False
        """True once the retained messages are known here."""

    def start(self) -> None:
        self._state.effects.append(WatchPattern(CONTROL_TOPIC))

    def on_watched(self) -> None:
        """This broker receives the control topic from now on."""
        self._ask()
        self.announce(is_open=self._is_open)

    def announce(self, *, is_open: bool) -> None:
        """Tell the other brokers where clients reach this one; they name no address of a broker that is not open."""
        self._is_open = is_open
        self._write(control.BrokerAnnounced(self._state.broker, self.address if is_open else ""))

    def _ask(self) -> None:
        self._asked_s = self._state.now_s
        self._write(control.StateRequested(self._state.broker))

    def on_gap(self) -> None:
        self._retained.forget_pending()
        self._ask()

    def reference(self) -> str | None:
        """The addresses of the other brokers that take clients, for a Server Reference; None if there is none."""
        others = [address for broker, address in sorted(self.addresses.items()) if address]
        return " ".join(others) or None

    def on_record(self, data: bytes, position: Position) -> None:
        record = control.record_of(data)
        own = record is not None and record.broker == self._state.broker
        match record:
            case control.RetainedSet():
                self._retained.apply(record, position)
            case control.StateRequested(broker) if not own:
                if self.is_ready:
                    self._answer_s[broker] = self._state.now_s + _delay_s(self._state.broker, broker)
                self.announce(is_open=self._is_open)
            case control.StateAnswered(_, asker, entries, is_last):
                self._answer_s.pop(asker, None)
                if asker == self._state.broker:
                    self._retained.merge(entries)
                    self.is_ready = self.is_ready or is_last
            case control.BrokerAnnounced(broker, address) if not own:
                self.addresses[broker] = address

    def tick(self) -> None:
        now_s = self._state.now_s
        if self._asked_s is not None and now_s >= self._asked_s + ALONE_S:
            self._asked_s, self.is_ready = None, True
        for asker in [asker for asker, at_s in self._answer_s.items() if now_s >= at_s]:
            del self._answer_s[asker]
            parts = list(self._retained.parts())
            for index, entries in enumerate(parts):
                last = index == len(parts) - 1
                self._write(control.StateAnswered(self._state.broker, asker, entries, last))

    def _write(self, record: control.AnyRecord) -> None:
        effect: Effect = PublishToTopic(0, CONTROL_TOPIC, control.record_bytes(record))
        self._state.effects.append(effect)


def _delay_s(broker: str, asker: str) -> float:
    digest = blake2b(f"{broker}\x1f{asker}".encode(), digest_size=2).digest()
    return _LONGEST_DELAY_S * int.from_bytes(digest, "big") / 65_536
