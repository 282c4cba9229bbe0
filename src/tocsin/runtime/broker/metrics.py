"""The Prometheus metrics of a broker. No label names a subscriber or a subscription, so their number is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tocsin.runtime.broker.mqtt import MqttProcess
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.broker.topic_logs import TopicLogs
from tocsin.runtime.broker.topics import TopicsProcess


class BrokerMetrics(Collector):
    def __init__(
        self,
        process: BrokerProcess,
        topics: TopicsProcess,
        half_open: Callable[[], int],
        receiving: Callable[[], bool],
    ) -> None:
        """`half_open` counts connections that have not logged in; `receiving` is true while announcements arrive."""
        self._topics = topics
        self.mqtt: MqttProcess | None = None
        """Set by the server if the broker has MQTT clients."""
        self._process = process
        self._half_open = half_open
        self._receiving = receiving
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.requests = Counter(
            "tocsin_http_requests", "HTTP requests answered", ["method", "status"], registry=self._registry
        )
        self.webhook_calls = Counter(
            "tocsin_broker_webhook_calls", "Webhooks called, by outcome", ["outcome"], registry=self._registry
        )

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return []

    def _collect_topics(self) -> Iterable[Metric]:
        topics, recording = self._topics.core.state, self._topics.core.recording.figures
        gauges = {
            "topics": ("Topics of which this broker is home", len(topics.topics)),
            "topics_relayed": ("Topics that this edge relays", len(self._topics.core.relaying.topics)),
            "topic_connections": ("Topic connections", len(topics.connections)),
            "topic_recent_bytes": ("Recent messages kept for receivers", topics.recent_bytes),
            "topic_lease_held": ("1 while topics may accept messages", int(topics.lease.valid(self._topics.now_s()))),
        }
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(f"tocsin_broker_{name}", help_text, value=value)
        counters = {
            "topic_messages_accepted": ("Messages that got a sequence number", topics.accepted),
            "topic_messages_relayed": ("Messages received from homes", self._topics.core.relaying.received),
            "topic_messages_delivered": ("Messages handed to receivers", topics.delivered),
            "topic_messages_missed": ("Messages that a gap reported to a slow or late receiver", topics.missed),
            "topic_messages_recorded": ("Messages recorded into datasets", recording.recorded),
            "topic_messages_unfit": ("Messages and records that do not fit their dataset", recording.refused),
            "topic_messages_unrecorded": ("Messages that could not be recorded in time", recording.missed),
            "topic_recording_breaks": ("Failed homes of volatile recorded topics", recording.breaks),
            "topic_recording_failures": (
                "Requests to record messages that failed and were repeated",
                recording.failures,
            ),
        }
        for name, (help_text, value) in counters.items():
            yield CounterMetricFamily(f"tocsin_broker_{name}", help_text, value=value)
        if self._topics.logs is not None:
            yield from self._collect_logs(self._topics.logs)

    def _collect_logs(self, logs: TopicLogs) -> Iterable[Metric]:
        figures, hosted = logs.figures, self._topics.core.state.topics.values()
        waiting_bytes = sum(topic.log.uncommitted_bytes for topic in hosted if topic.log is not None)
        gauges = {
            "topic_logs": ("Open logs of persistent topics, as home or follower", logs.open_logs),
            "topic_log_uncommitted_bytes": ("Bytes that wait for a quorum of replicas", waiting_bytes),
        }
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(f"tocsin_broker_{name}", help_text, value=value)
        counters = {
            "topic_log_bytes": ("Bytes written to logs of persistent topics", figures.written_bytes),
            "topic_log_fsyncs": ("Fsyncs of logs of persistent topics", figures.fsyncs),
            "topic_log_pieces": ("Pieces stored: messages that one turn of the event loop accepted", figures.appends),
            "topic_log_store_seconds": ("Seconds until pieces were on disk, summed over pieces", figures.append_s),
            "topic_log_failures": ("Operations on logs that the disk refused", figures.failures),
        }
        for name, (help_text, number) in counters.items():
            yield CounterMetricFamily(f"tocsin_broker_{name}", help_text, value=number)
        commits = self._topics.core.commits
        yield CounterMetricFamily("tocsin_broker_topic_commits", "Commits of persistent topics", value=commits.count)
        help_text = "Seconds from accepting a message until a quorum had it on disk, summed over commits"
        yield CounterMetricFamily("tocsin_broker_topic_commit_seconds", help_text, value=commits.seconds)

    def _collect_mqtt(self, mqtt: MqttProcess) -> Iterable[Metric]:
        state = mqtt.core.state
        gauges = {
            "mqtt_connections": ("MQTT connections", len(state.connections)),
            "mqtt_sessions": ("MQTT sessions, connected or not", len(state.sessions)),
            "mqtt_retained_messages": ("Retained messages of the network", len(mqtt.core.retained)),
            "mqtt_waiting_bytes": ("Messages of MQTT clients that wait for homes", mqtt.relay.waiting_bytes),
        }
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(f"tocsin_broker_{name}", help_text, value=value)
        counters = {
            "mqtt_messages_received": ("Messages from MQTT clients", state.received),
            "mqtt_messages_delivered": ("Messages sent to MQTT clients", state.delivered),
            "mqtt_messages_dropped": ("Messages that a session could not hold", state.dropped),
            "mqtt_messages_refused": ("Messages from MQTT clients that were refused", state.refused),
        }
        for name, (help_text, value) in counters.items():
            yield CounterMetricFamily(f"tocsin_broker_{name}", help_text, value=value)

    def collect(self) -> Iterable[Metric]:
        yield from self._collect_topics()
        if self.mqtt is not None:
            yield from self._collect_mqtt(self.mqtt)
        core, state = self._process.core, self._process.core.state
        now_s = self._process.now_s()
        frontend = sum(len(subscriber.frontends) for subscriber in state.subscribers.values())
        gauges = {
            "sessions": ("Sessions open", len(state.sessions)),
            "half_open_connections": ("Connections that have not logged in", self._half_open()),
            "subscribers": ("Subscribers served, online or not", len(state.subscribers)),
            "frontend_subscriptions": ("Frontend subscriptions", frontend),
            "backend_subscriptions": ("Backend subscriptions held", len(state.backends)),
            "sessions_behind": ("Sessions that are catching up", sum(bool(s.behind) for s in state.sessions.values())),
            "cache_bytes": ("Results kept for late or returning sessions", state.cache.used_bytes),
            "in_bytes_per_second": ("Moving average of what is fetched", state.load.in_rate.now(now_s)),
            "out_bytes_per_second": ("Moving average of what is delivered", state.load.out_rate.now(now_s)),
            "updates_pending": ("Updates of subscribers without an answer", core.updates.pending),
            "accepting": ("1 while new sessions are taken", int(core.accepting)),
            "coordinator_linked": ("1 while the coordinator has it registered", int(core.linked)),
            "announcements_heard": ("1 while announcements are heard", int(self._receiving())),
        }
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(f"tocsin_broker_{name}", help_text, value=value)
        counters = {
            "fetched_bytes": ("Results fetched from the data cluster", state.load.in_bytes),
            "delivered_bytes": ("Handed to sessions, as frames", state.load.out_bytes),
            "notifications": ("Results handed to sessions", state.load.notifications),
            "updates_stored": ("Updates of subscribers that were stored", core.updates.stored),
            "updates_refused": ("Updates of subscribers that were refused", core.updates.refused),
        }
        for name, (help_text, value) in counters.items():
            yield CounterMetricFamily(f"tocsin_broker_{name}", help_text, value=value)
