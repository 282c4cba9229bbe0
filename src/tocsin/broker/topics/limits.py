"""Limits of a broker's topics. Each is a setting of the broker's process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tocsin.wire.site_link import Capacity


@dataclass(frozen=True, slots=True)
class TopicLimits:
    topics: Annotated[int, "Most topics of which this broker is home."] = 50_000
    topic_attachments: Annotated[int, "Most topics that one topic connection sends to or receives from."] = 10_000
    topic_message_bytes: Annotated[int, "Largest message of a topic, in bytes."] = 64 << 10
    topic_frame_bytes: Annotated[int, "Largest frame from a client of topics: one frame carries many messages."] = (
        1 << 20
    )
    topic_rate_per_s: Annotated[
        int, "Messages per second that one topic connection may publish; a second's worth may come at once."
    ] = 50_000
    topic_queue_bytes: Annotated[
        int, "Bytes that may wait in one topic connection; a slower consumer gets a gap instead of more."
    ] = 1 << 20
    topic_recent_bytes: Annotated[
        int, "Recent messages kept for receivers that reconnect or were slow, in bytes over all topics."
    ] = 32 << 20
    topic_uncommitted_bytes: Annotated[
        int, "Bytes of a persistent topic that may wait for its replicas; then the home refuses further messages."
    ] = 8 << 20
    topic_publishers: Annotated[
        int, "Publishers per topic whose repeats are recognised. Beyond it, the user with most of them loses one."
    ] = 10_000
    topic_record_s: Annotated[float, "Longest time for which a home collects messages to record, in seconds."] = 0.1
    topic_record_bytes: Annotated[int, "Messages of one request that records them into a dataset, in bytes."] = (
        128 << 10
    )
    topic_unrecorded_bytes: Annotated[
        int, "Bytes of a volatile topic that may wait for the data cluster; beyond it the oldest are not recorded."
    ] = 8 << 20
    topic_beat_s: Annotated[float, "Longest silence of a healthy topic connection in seconds."] = 5.0


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """What this broker can do for topics. The operator of the network may change it at run time."""

    topic_in_bytes_per_s: Annotated[
        float | None, "Bytes per second that topics may receive at this broker: measured, not enforced."
    ] = None
    topic_out_bytes_per_s: Annotated[
        float | None, "Bytes per second that this broker sends to receivers of topics; more wait."
    ] = None
    topic_matched_per_s: Annotated[
        float | None, "Messages per second that this broker fans out to receivers of topics; more wait."
    ] = None

    @property
    def capacity(self) -> Capacity:
        return Capacity(self.topic_in_bytes_per_s, self.topic_out_bytes_per_s, self.topic_matched_per_s)
