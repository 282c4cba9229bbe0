"""Settings of a broker's process."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tocsin.broker.mqtt.limits import MqttLimits
from tocsin.broker.state import Limits
from tocsin.broker.topics.limits import CapacitySettings, TopicLimits
from tocsin.runtime.http.callers import is_broker_id
from tocsin.runtime.http.oidc_settings import OidcSettings
from tocsin.runtime.http.settings import ListenerSettings, Port, check_file, check_listener, check_peer, invalid
from tocsin.wire.site_link import Role

DATA_CLUSTER = "http://127.0.0.1:8571"
_ORIGIN = re.compile(r"[A-Za-z0-9.-]{1,253}")


@dataclass(frozen=True, slots=True)
class BrokerSettings(ListenerSettings):
    section = "broker"
    prefix = "TOCSIN_BROKER_"

    port: Port = 8600
    id: Annotated[
        str, "Name of this broker in the whole network: 1 to 128 letters, digits, dots, dashes and underscores."
    ] = "broker-1"
    address: Annotated[
        str | None, "Address that the coordinator gives to subscribers. Default: the address it listens on."
    ] = None
    state: Annotated[
        str,
        "Local folder. It holds the logs of persistent topics, and the public keys fetched last, so that the broker "
        "can start without the coordinator.",
    ] = "tocsin-broker"
    cluster: Annotated[
        str, "Address of the data cluster, or those of leader and standby with a comma between them."
    ] = DATA_CLUSTER
    results: Annotated[
        str | None,
        "Addresses of result servers with commas between them. The broker pulls results there, from the next one if "
        "one fails. Default: it pulls them from the data cluster.",
    ] = None
    token_file: Annotated[
        str | None, "File with the token (scope `broker:<id>`) for the data cluster and the coordinator."
    ] = None
    cluster_token_file: Annotated[
        str | None, "File with a separate token for the data cluster. Default: `token_file`."
    ] = None
    coordinator: Annotated[
        str | None,
        "Address of the coordinator, or those of leader and standby with a comma between them. A broker without a "
        "coordinator serves alone and needs `keys`.",
    ] = None
    keys: Annotated[
        str | None,
        "JWK-set file, or URL of one, with the keys of accepted tokens. Default: the coordinator's `/v1/keys`.",
    ] = None
    ca: Annotated[
        str | None,
        "PEM file with authorities for the certificates of the data cluster and the coordinator, besides the system's.",
    ] = None
    capacity: Annotated[float, "Capacity of this broker, relative to the other brokers."] = 1.0
    lat: Annotated[float | None, "Latitude of this broker in degrees, for placement by distance."] = None
    lon: Annotated[float | None, "Longitude of this broker in degrees, for placement by distance."] = None
    coordinates: Annotated[
        bool,
        "Measure this broker's network coordinate by probing a few other brokers, and report it. Needs `coordinator`.",
    ] = True
    connect_from: Annotated[
        str | None,
        "Local address from which this broker probes other brokers and receives from neighbouring sites. Default: the "
        "system chooses.",
    ] = None
    role: Annotated[
        str,
        "Role of this broker in a site: `head` (home of the site's topics), `edge` (relays topics to receivers), or "
        "`plain` for a network without sites.",
    ] = "plain"
    standby: Annotated[bool, "Let this edge become the home of topics while no head is alive."] = False
    oidc: OidcSettings = field(default_factory=OidcSettings)
    limits: Limits = field(default_factory=Limits)
    topic_limits: TopicLimits = field(default_factory=TopicLimits)
    topic_capacity: CapacitySettings = field(default_factory=CapacitySettings)
    mqtt_port: Annotated[
        int | None, "Port for MQTT clients; 0 takes a free port. Default: no MQTT. Needs `coordinator`."
    ] = None
    mqtt_address: Annotated[
        str | None, "Address as `host:port` that other brokers name to MQTT clients. Default: the one it listens on."
    ] = None
    mqtt_limits: MqttLimits = field(default_factory=MqttLimits)
    frame_bytes: Annotated[
        int, "Largest message from a subscriber; a larger one closes the connection with code 1009."
    ] = 64 << 10
    webhooks: Annotated[bool, "Allow subscribers to receive results by webhook."] = True
    webhooks_private: Annotated[
        bool, "Call webhooks on private and loopback addresses too, for tests and private networks."
    ] = False
    webhook_handshake: Annotated[
        bool, "Before calling a URL, ask its owner for consent by OPTIONS with `WebHook-Request-Origin`."
    ] = True
    webhook_origin: Annotated[str, "Name by which the owners of webhooks know this network, such as a host name."] = (
        "tocsin"
    )
    stop_s: Annotated[float, "Seconds that a stop waits for connections to end."] = 5.0

    def check(self) -> None:
        check_listener(self)
        self.oidc.check_oidc()
        if not is_broker_id(self.id):
            raise invalid("id: expected 1 to 128 letters, digits, dots, dashes and underscores")
        if self.role not in list(Role):
            raise invalid(f"role {self.role}: expected plain, head or edge")
        if self.role != Role.PLAIN and self.coordinator is None:
            raise invalid(f"role {self.role}: a site has a coordinator; set coordinator")
        if self.standby and self.role != Role.EDGE:
            raise invalid("standby: only an edge can be a standby; set role = edge")
        if self.limits.slow not in ("drop", "disconnect"):
            raise invalid(f"slow {self.limits.slow}: expected drop or disconnect")
        if self.coordinator is None and self.keys is None:
            raise invalid("this broker could not verify any token: set coordinator, or keys with a JWK-set file")
        for name in ("frame_bytes", "capacity"):
            _check_positive(name, getattr(self, name))
        for name in (
            *("cache_bytes", "queue_bytes", "catch_ups", "subscriptions", "parameter_bytes"),
            *("update_bytes", "updates"),
            *("progress_s", "rate_window_s"),
        ):
            _check_positive(name, getattr(self.limits, name))
        for name in TopicLimits.__slots__:
            _check_positive(name, getattr(self.topic_limits, name))
        for name in CapacitySettings.__slots__:
            if (limit := getattr(self.topic_capacity, name)) is not None:
                _check_positive(name, limit)
        for name in MqttLimits.__slots__:
            _check_positive(name, getattr(self.mqtt_limits, name))
        if self.mqtt_port is not None and not 0 <= self.mqtt_port <= 65535:
            raise invalid(f"mqtt_port {self.mqtt_port}: expected 0 to 65535")
        if self.mqtt_port is not None and self.coordinator is None:
            raise invalid("mqtt_port: MQTT clients use topics, and topics need a coordinator; set coordinator")
        if max(self.mqtt_limits.mqtt_receive_maximum, self.mqtt_limits.mqtt_topic_aliases) > 65535:
            raise invalid("mqtt_receive_maximum and mqtt_topic_aliases: expected at most 65535")
        if self.topic_limits.topic_message_bytes > self.topic_limits.topic_frame_bytes // 2:
            raise invalid("topic_frame_bytes: expected at least twice topic_message_bytes")
        if _ORIGIN.fullmatch(self.webhook_origin) is None:
            raise invalid("webhook_origin: expected 1 to 253 letters, digits, dots and dashes")
        for name in ("token_file", "cluster_token_file", "ca"):
            check_file(self, name)
        for name in ("cluster", "coordinator", "results"):
            check_peer(self, name)

    def secret(self, name: str) -> str:
        """The token for the `cluster` or the `coordinator`, read from its file; empty if there is no file."""
        path = self.cluster_token_file if name == "cluster" and self.cluster_token_file else self.token_file
        return "" if path is None else Path(path).read_text(encoding="utf-8").strip()


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, int) and value < 1:
        raise invalid(f"{name}: expected at least 1")
    if value <= 0:
        raise invalid(f"{name}: expected more than 0")
