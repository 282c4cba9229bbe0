"""Load analysis: what each topic and each client costs a broker [ePEER §4.4.3.1, tables 4-2 and 4-3].

From what a broker measures of a topic to the bundle that offloading weighs. An edge is charged a topic's input and
matching once, whoever subscribes, and its output once per subscriber; a head is charged input per publisher and output
once per edge or neighbouring head that the topic goes to.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.model.ids import SubscriberId
from tocsin.policies.sites.offload_priority import reach
from tocsin.policies.sites.offload_types import Bundle, Load, PublisherId, Utilisation, utilisation
from tocsin.policies.topics.types import TopicName


def subscriber_bundle(
    topic: TopicName,
    delay_s: float,
    rate_per_s: float,
    size_bytes: float,
    subscribers: Sequence[SubscriberId],
    *,
    local: bool = True,
    remote: bool = False,
) -> Bundle:
    """A topic's subscribers at one edge; `local` and `remote` say where its publishers are."""
    each = rate_per_s * size_bytes
    load = Load(each, each * len(subscribers), rate_per_s)
    return Bundle(topic, delay_s, reach(local, remote), load, tuple(subscribers), (each,) * len(subscribers))


def publisher_bundle(
    topic: TopicName,
    delay_s: float,
    size_bytes: float,
    publishers: Sequence[tuple[PublisherId, float]],
    copies: int,
    *,
    local: bool,
    remote: bool,
) -> Bundle:
    """A topic's publishers, each with its rate per second, at one head, which sends `copies` of each message on."""
    bytes_per_s = tuple(rate * size_bytes for _, rate in publishers)
    load = Load(sum(bytes_per_s), copies * sum(bytes_per_s), 0.0)
    who = tuple(publisher for publisher, _ in publishers)
    return Bundle(topic, delay_s, reach(local, remote), load, who, bytes_per_s)


def topic_utilisation(bundle: Bundle, capacity: Load) -> Utilisation:
    """U_i^t, U_o^t and U_m^t."""
    return utilisation(bundle.load, capacity)


def client_utilisation(bundle: Bundle, number: int, capacity: Load, is_head: bool) -> Utilisation:
    """What one client of a bundle takes, and gives back if it leaves alone: a publisher its input, a subscriber its
    output. The rest is the topic's and goes only with the last of its clients."""
    bytes_per_s = bundle.client_bytes_per_s[number]
    return utilisation(Load(bytes_per_s, 0.0, 0.0) if is_head else Load(0.0, bytes_per_s, 0.0), capacity)
