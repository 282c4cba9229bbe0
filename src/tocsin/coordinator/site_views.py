"""This site and its neighbours, as administrators see them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tocsin.coordinator.federation import Federation
from tocsin.coordinator.neighbour_links import Neighbour
from tocsin.model.ids import BrokerId


def sites_view(federation: Federation, now_s: float) -> dict[str, Any]:
    links = federation.links
    return {
        "site": links.site,
        "run": links.run,
        "neighbours": [_neighbour_view(federation, neighbour, now_s) for neighbour in links.neighbours.values()],
        "rejections": dict(links.rejections),
    }


def sites_summary(federation: Federation) -> dict[str, Any]:
    """The same in short, for the dashboard: for each neighbour the numbers of subscribed flows and of messages."""
    links, shown = federation.links, []
    subscribed = Counter(federation.links.head.subscribed.values())
    totals: Counter[tuple[str, str]] = Counter()
    for (name, _, _), (received, repeated) in federation.crossed.totals().items():
        totals[name, "messages"] += received
        totals[name, "repeated"] += repeated
    for name, neighbour in links.neighbours.items():
        state = "up" if neighbour.connection is not None else "down"
        counts = {key: totals[name, key] for key in ("messages", "repeated")}
        more = {"since_s": neighbour.since_s, "restarts": neighbour.restarts, "flows": subscribed[BrokerId(name)]}
        shown.append({"site": name, "state": state, **more, **counts})
    return {"site": links.site, "neighbours": shown}


def _neighbour_view(federation: Federation, neighbour: Neighbour, now_s: float) -> dict[str, Any]:
    site = neighbour.access.site
    flows = [
        {"topic": topic, "source": source, "messages": received, "repeated": repeated}
        for (name, source, topic), (received, repeated) in sorted(federation.crossed.totals().items())
        if name == site
    ]
    subscribed = federation.links.head.subscribed
    return {
        "site": site,
        "coordinator": neighbour.access.coordinator,
        "state": "up" if neighbour.connection is not None else "down",
        "state_s": None if neighbour.since_s is None else round(now_s - neighbour.since_s, 3),
        "link": neighbour.link,
        "restarts": neighbour.restarts,
        "subscribed": [
            {"topic": flow.topic, "source": flow.source} for flow, head in subscribed.items() if head == site
        ],
        "flows": flows,
        "messages": sum(flow["messages"] for flow in flows),
        "repeated": sum(flow["repeated"] for flow in flows),
    }
