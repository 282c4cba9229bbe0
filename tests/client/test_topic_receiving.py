"""What a client receives of one topic: each message once, in order, and every gap."""

from __future__ import annotations

from tocsin.client.topic_events import Item, TopicGap, TopicMessage
from tocsin.client.topic_receiving import MOST_PUBLISHERS, ReceiverState
from tocsin.model.ids import TopicName
from tocsin.model.topic import Position
from tocsin.wire import topic as wire

T = TopicName("a/b")


def attached(epoch: int = 5, sequence: int = 0) -> ReceiverState:
    state = ReceiverState(T)
    assert state.attached(wire.ReceiverAttached(1, 9, epoch, sequence)) == []
    return state


def messages(state: ReceiverState, sequence: int, *entries: tuple[int, int], epoch: int = 5) -> list[Item]:
    listed = [(publisher, number, b"%d" % number) for publisher, number in entries]
    return state.messages(wire.Messages(9, epoch, sequence, listed))


def test_messages_advance_the_position() -> None:
    state = attached()
    items = messages(state, 1, (7, 1), (8, 1), (7, 2))
    assert items[1] == TopicMessage(T, b"1", Position(5, 2), 8, 1)
    assert state.after == Position(5, 3)
    assert state.request(2) == wire.AttachReceiver(2, T, (5, 3))


def test_repeats_by_sequence_and_by_number_are_removed() -> None:
    state = attached()
    messages(state, 1, (7, 1), (7, 2))
    assert [item.number for item in messages(state, 2, (7, 2), (7, 3)) if isinstance(item, TopicMessage)] == [3]
    assert state.attached(wire.ReceiverAttached(2, 9, 6, 0, (5, 4))) == [TopicGap(T, 5, 4, None)]
    again = messages(state, 1, (7, 3), (7, 4), epoch=6)
    assert [item.position for item in again if isinstance(item, TopicMessage)] == [Position(6, 2)]


def test_gap_of_a_home_is_reported_once() -> None:
    state = attached()
    messages(state, 1, (7, 1))
    assert state.gap(wire.Gap(9, 5, 1, 4)) == [TopicGap(T, 5, 2, 4)]
    assert state.gap(wire.Gap(9, 5, 2, 4)) == []
    assert len(messages(state, 5, (7, 5))) == 1


def test_hole_without_a_gap_is_reported_all_the_same() -> None:
    assert messages(attached(), 3, (7, 3))[0] == TopicGap(T, 5, 1, 2)


def test_number_of_remembered_publishers_is_bounded() -> None:
    state = attached()
    for number in range(MOST_PUBLISHERS + 5):
        messages(state, number + 1, (number, 1))
    assert len(state.seen) == MOST_PUBLISHERS


def test_gap_after_a_move_begins_in_the_epoch_of_the_last_message() -> None:
    """The home moved, and the next one failed: messages of the former epoch may be missing too."""
    state = attached()
    messages(state, 1, (7, 1))
    state.request(2)
    assert state.attached(wire.ReceiverAttached(2, 9, 6, 1, None, 5)) == []
    assert state.request(3).after == (5, 1)
    assert state.attached(wire.ReceiverAttached(3, 9, 8, 0, (5, 2), 8)) == [TopicGap(T, 5, 2, None)]
    assert state.after == Position(8, 0)
