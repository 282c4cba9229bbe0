"""What messages, publishers and topics are worth to subscribers [ePEER §5.2.1–5.2.2, §5.3.3, equations 1–8].

Arithmetic on feedback. A subscriber judges each message (by keywords or by a function of the application's own),
averages per publisher over a second and sends the averages; the head combines them. Who sends what when is the
driver's business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from tocsin.model.ids import SubscriberId
from tocsin.policies.sites.offload_types import PublisherId

Utility = Callable[[Any], float]
"""An application's own judgement of a message, in [0, 1]."""
Feedback = Mapping[SubscriberId, Mapping[PublisherId, float]]
"""Ū_m(s, p) as the subscribers last sent it."""


def by_keywords(interests: Collection[str], keywords: Collection[str]) -> float:
    """U_m(s, i, p), equation 8: the share of the interests that the message meets, times the share of the message that
    is of interest. A message without keywords, or a subscriber without interests, is worth nothing."""
    wanted, said = set(interests), set(keywords)
    if not wanted or not said:
        return 0.0
    matched = len(wanted & said)
    return matched / len(wanted) * (matched / len(said))


def judged(utility: Utility, message: Any) -> float:
    """An application's judgement, held to [0, 1]; what is not a number is worth nothing."""
    value = float(utility(message))
    return min(max(value, 0.0), 1.0) if value == value else 0.0


def average(utilities: Iterable[float]) -> float | None:
    """Ū_m(s, p), equation 1, over the messages of one second; None when there were none."""
    values = list(utilities)
    return sum(values) / len(values) if values else None


def publisher_utility(
    feedback: Feedback, weights: Mapping[SubscriberId, float] | None = None
) -> dict[PublisherId, float]:
    """U_p(p), equation 2, for all publishers that anybody judged. Weights W(s) are 1 where nothing is said; the result
    is held to [0, 1], which the rate classes divide."""
    sums: dict[PublisherId, float] = {}
    counts: dict[PublisherId, int] = {}
    for subscriber, averages in feedback.items():
        weight = 1.0 if weights is None else weights.get(subscriber, 1.0)
        for publisher, value in averages.items():
            sums[publisher] = sums.get(publisher, 0.0) + weight * value
            counts[publisher] = counts.get(publisher, 0) + 1
    return {publisher: min(max(sums[publisher] / counts[publisher], 0.0), 1.0) for publisher in sums}


def topic_utility(utilities: Iterable[float]) -> float:
    """U_t(t), equation 3, from its publishers' utilities; 0 for a topic without publishers."""
    return average(utilities) or 0.0


def importance(utility: float, subscribers: int, required: float) -> float:
    """I_t(t), equation 4. A topic that needs nothing costs nothing: it is infinitely important if it is of any use."""
    if required <= 0.0:
        return float("inf") if utility * subscribers > 0.0 else 0.0
    return utility * subscribers / required


def experience(averages: Mapping[PublisherId, float]) -> float | None:
    """E_s(s), equation 6: over the publishers the subscriber hears. None while it hears nobody, where the equation has
    no value; whether that counts as nothing or not at all is the caller's to say."""
    return average(averages.values())


def mean_experience(
    feedback: Feedback,
    weights: Mapping[SubscriberId, float] | None = None,
    silent: int = 0,
) -> float | None:
    """Ē_s, equations 5 and 7. `silent` subscribers hear nobody and count as 0; leave it out to leave them out."""
    total, count = 0.0, silent
    for subscriber, averages in feedback.items():
        value = experience(averages)
        if value is not None:
            total += value * (1.0 if weights is None else weights.get(subscriber, 1.0))
            count += 1
    return total / count if count else None
