"""The messages about topics on the link between a broker and the coordinator (`wire.link`).

Decision 13 describes leases, epochs and moves. After `Registered` the coordinator sends `OwnTopics`, the complete list;
later messages change that list one topic at a time. A message that names another epoch than the receiver knows is old.
"""

from __future__ import annotations

import msgspec

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, DatasetName, TopicName
from tocsin.wire.topic_log import LogPlan, Replica
from tocsin.wire.topic_state import TopicState as TopicState


class RecordPlan(msgspec.Struct, frozen=True):
    """The home records every message of the topic into a dataset."""

    dataset: DatasetName
    recording: str
    """Names the recording at the data cluster: no other topic and no other network has this name."""
    created: int = 0
    """The topic's first epoch."""


class OwnedTopic(msgspec.Struct, frozen=True):
    topic: TopicName
    epoch: int
    state: TopicState | None = None
    """None starts a new sequence, unless the broker has this topic in this epoch already."""
    log: LogPlan | None = None
    """Of a persistent topic: its state is in its log."""
    record: RecordPlan | None = None


# -- from the broker ---------------------------------------------------------------------------------------------------


class FromBrokerMessage(msgspec.Struct, tag_field="type"):
    pass


class RenewLease(FromBrokerMessage, tag="renew_lease"):
    number: int
    """Grows by one with each request of this process. The lease counts from the moment of the request."""


class ReturnLease(FromBrokerMessage, tag="return_lease"):
    """The broker stops and accepts nothing more: its topics may get other homes at once."""


class TopicPrepared(FromBrokerMessage, tag="topic_prepared"):
    topic: TopicName
    epoch: int


class TopicStopped(FromBrokerMessage, tag="topic_stopped"):
    """From the source: it accepts no further message of this epoch."""

    topic: TopicName
    epoch: int
    state: TopicState
    handed_over: bool = False
    """The source has sent this state to the target, so the target may have opened the topic already. The source never
    opens it again in this epoch."""


class TopicKept(FromBrokerMessage, tag="topic_kept"):
    """The answer to `KeepTopic`: the source has not handed the topic over, and the order to do so is void."""

    topic: TopicName
    epoch: int
    target_epoch: int


class TopicOpened(FromBrokerMessage, tag="topic_opened"):
    topic: TopicName
    epoch: int


class TopicRefused(FromBrokerMessage, tag="topic_refused"):
    """The broker does not host this topic: it has too many, or its disk refuses the log."""

    topic: TopicName
    epoch: int
    message: str


class TopicFenced(FromBrokerMessage, tag="topic_fenced"):
    """The answer to `FenceTopic`: the end of the broker's log. It follows no home of an earlier epoch any more."""

    topic: TopicName
    epoch: int
    log_epoch: int
    """The last epoch that began in the log; 0 for an empty log."""
    end: int


class TopicCopied(FromBrokerMessage, tag="topic_copied"):
    """From the source of a move: the target's log has caught up."""

    topic: TopicName
    epoch: int
    target: BrokerId


class LogReport(FromBrokerMessage, tag="log_report"):
    """From the home, when it changes: the brokers whose logs are complete."""

    topic: TopicName
    epoch: int
    in_sync: list[BrokerId]
    problem: str | None = None
    """Why a replica is missing, as far as the home knows."""


class TopicLatency(FromBrokerMessage, tag="topic_latency"):
    """From the home, when it changes: where the topic's clients are. Its size does not depend on the number of clients
    [ePulsar §3.2, aggregation of per-topic latency data]."""

    topic: TopicName
    epoch: int
    worst_s: float | None
    """E(t): from the slowest sender over the home to the slowest receiver, one way; None without such a pair."""
    senders: int = 0
    """Senders with a measured round trip."""
    receivers: int = 0
    sender_centroid: Coordinate | None = None
    """NC_P(t); None if no sender has a coordinate."""
    receiver_centroid: Coordinate | None = None
    """NC_C(t)."""
    deviation_s: float = 0.0
    """W(t): one-way distance of the outermost sender from its centroid, plus that of the outermost receiver."""
    in_per_s: float = 0.0
    """Accepted messages per second since the last look at the topic."""
    out_per_s: float = 0.0
    """The same, times the receivers."""
    publishers: list[str] = []
    """Users of some senders, for maps."""
    subscribers: list[str] = []


OfTopic = (
    TopicPrepared
    | TopicStopped
    | TopicKept
    | TopicOpened
    | TopicRefused
    | TopicFenced
    | TopicCopied
    | LogReport
    | TopicLatency
)
FromBroker = RenewLease | ReturnLease | OfTopic


# -- from the coordinator ----------------------------------------------------------------------------------------------


class FromCoordinatorMessage(msgspec.Struct, tag_field="type"):
    pass


class LeaseRenewed(FromCoordinatorMessage, tag="lease_renewed"):
    number: int
    lease_s: float
    """Seconds from the moment at which the broker sent the request."""


class OwnTopics(FromCoordinatorMessage, tag="own_topics"):
    """The broker is home of exactly these topics."""

    topics: list[OwnedTopic]
    logs: list[tuple[TopicName, int]] = []
    """(topic, created) of every log that the broker keeps, as home or follower. It deletes all others."""
    arriving: list[tuple[TopicName, int]] = []
    """(topic, epoch) of moves to this broker whose source may hand over at any time: the broker keeps what it has."""


class OpenTopic(FromCoordinatorMessage, tag="open_topic"):
    """The broker is the home of this topic from now on; or, after `StopTopic` in the same epoch, again."""

    topic: OwnedTopic


class PrepareTopic(FromCoordinatorMessage, tag="prepare_topic"):
    """To the target of a move: let clients attach, and accept no message yet."""

    topic: TopicName
    epoch: int
    """The epoch in which the target will open the topic."""
    created: int | None = None
    """Of a persistent topic: the broker may follow the present home, as after `FollowTopic`."""
    record: RecordPlan | None = None
    """Of a volatile topic that is recorded: the source may hand over before `OpenTopic` arrives."""


class StopTopic(FromCoordinatorMessage, tag="stop_topic"):
    """To the source of a move: stop, send `moved` to all clients, answer `TopicStopped`."""

    topic: TopicName
    epoch: int
    broker: BrokerId
    address: str
    """Without an address the clients get `ended` instead of `moved`, and look the home up."""
    replicas: list[BrokerId] = []
    """Persistent topics: a quorum of these brokers, the target included, must have the whole log first."""
    target_epoch: int | None = None
    """Hand over directly: let the clients attach to the target first, then send it the state for this epoch."""
    wait_s: float = 0.0
    """With `target_epoch`: the longest time to wait for the clients and for the connection to the target."""


class KeepTopic(FromCoordinatorMessage, tag="keep_topic"):
    """To the source of a move that is given up: answer `TopicKept`, or `TopicStopped` if it has handed over."""

    topic: TopicName
    epoch: int
    target_epoch: int


class FollowTopic(FromCoordinatorMessage, tag="follow_topic"):
    """The broker keeps a replica of this topic: it may follow the topic's home."""

    topic: TopicName
    created: int


class FenceTopic(FromCoordinatorMessage, tag="fence_topic"):
    """Follow no home of an earlier epoch any more, store that, and report the end of the log."""

    topic: TopicName
    created: int
    epoch: int


class CopyTopic(FromCoordinatorMessage, tag="copy_topic"):
    """To the source of a move: copy the log to the target, and answer `TopicCopied` when it has caught up."""

    topic: TopicName
    epoch: int
    target: Replica


class ReleaseTopic(FromCoordinatorMessage, tag="release_topic"):
    """Forget the topic: another broker is its home, the move failed, or the topic was deleted."""

    topic: TopicName
    epoch: int
    deleted: bool = False
    drop_log: int | None = None
    """The broker is no replica any more: delete the log of the topic that was created in this epoch."""


class ReportTopics(FromCoordinatorMessage, tag="report_topics"):
    """The coordinator plans in a moment: look at every topic now, and report those that have changed."""


FromCoordinator = (
    LeaseRenewed
    | OwnTopics
    | OpenTopic
    | PrepareTopic
    | StopTopic
    | KeepTopic
    | FollowTopic
    | FenceTopic
    | CopyTopic
    | ReleaseTopic
    | ReportTopics
)
