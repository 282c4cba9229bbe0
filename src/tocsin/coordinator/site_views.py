"""This site and its neighbours, as administrators see them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tocsin.coordinator.federation import Federation
from tocsin.coordinator.neighbour_links import Neighbour
from tocsin.coordinator.site_exchange import site_of
from tocsin.model.ids import BrokerId
from tocsin.policies.sites.types import BrokerReport, Metric


def sites_view(federation: Federation, now_s: float) -> dict[str, Any]:
    links = federation.links
    return {
        "site": links.site,
        "run": links.run,
        "neighbours": [_neighbour_view(federation, neighbour, now_s) for neighbour in links.neighbours.values()],
        "rejections": dict(links.rejections),
    }


def sites_summary(federation: Federation, now_s: float) -> dict[str, Any]:
    """The same in short, for the dashboard: for each neighbour the numbers of subscribed flows and of messages, the
    round trip between the coordinators, and the load states of its brokers."""
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
        measured = {"round_trip_s": federation.exchange.round_trips_s.get(name) if state == "up" else None}
        brokers = [broker_view(report) for report in federation.exchange.of(name, now_s)] if state == "up" else []
        shown.append({"site": name, "state": state, **more, **counts, **measured, "brokers": brokers})
    return {"site": links.site, "neighbours": shown}


def broker_view(report: BrokerReport) -> dict[str, Any]:
    """A neighbour's broker, as its site has reported it."""
    where = site_of(report.broker)
    used = {str(metric): report.used.of(metric) for metric in Metric}
    name = report.broker if where is None else where[1]
    return {"broker": name, "role": "head" if report.is_head else "edge", "state": report.state.name, **used}


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
        "brokers": [broker_view(report) for report in federation.exchange.of(site, now_s)],
        "messages": sum(flow["messages"] for flow in flows),
        "repeated": sum(flow["repeated"] for flow in flows),
    }
