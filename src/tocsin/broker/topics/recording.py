"""The home records the messages of a topic into a dataset [decision 17].

A persistent topic is read from its log, behind the cursor that the data cluster keeps with the records. The data
cluster stores a batch only if it begins at that cursor, and moves the cursor in the same write. So each committed
message is recorded once, also if two homes send it, or one home sends it again because an answer was lost. While the
data cluster is away nothing is kept here: the log has it.

A volatile topic waits in memory, up to `topic_unrecorded_bytes`. A batch is repeated with the same key until it is
answered. If the home fails, its last messages are not recorded. After a planned move the former home sends what it has.
"""

from __future__ import annotations

from itertools import count

from tocsin.broker.topics import events
from tocsin.broker.topics.effects import AskRecorded, ReadLog, StoreRecords
from tocsin.broker.topics.hosted import HostedTopic, Phase, TopicsState
from tocsin.broker.topics.recorder import Batch, Recorder, RecordingFigures, Waiting
from tocsin.model.backoff import retry_delay_s
from tocsin.model.flow import is_mark
from tocsin.model.topic import Position
from tocsin.wire.topic_envelope import unwrapped
from tocsin.wire.topic_link import OwnedTopic, RecordPlan

_DRAIN_S = 60.0
"""How long a former home tries to record what it accepted."""
_LONGEST_RETRY_S = 5.0


class Recording:
    def __init__(self, state: TopicsState) -> None:
        self._state = state
        self._recorders: dict[int, Recorder] = {}
        self._numbers = count(1)
        self.figures = RecordingFigures()

    @property
    def waiting_bytes(self) -> int:
        return sum(recorder.queue_bytes for recorder in self._recorders.values())

    # -- which topics --------------------------------------------------------------------------------------------------

    def follow(self, topic: HostedTopic, plan: RecordPlan | None) -> None:
        """This broker is the home: record by this plan from now on; None records nothing."""
        if (topic.recorder is not None and topic.recorder.plan == plan) or topic.name not in self._state.topics:
            return
        self.close(topic)
        if plan is None:
            return
        created = None if topic.log is None else topic.log.plan.created
        most_bytes = self._state.limits.topic_unrecorded_bytes
        recorder = Recorder(next(self._numbers), topic.name, plan, created, most_bytes, self.figures)
        self._recorders[recorder.number] = topic.recorder = recorder

    def note_break(self, owned: OwnedTopic) -> None:
        """A volatile topic opens here. Without the state of its former home, it may miss that home's last messages."""
        if owned.record is not None and owned.state is None and owned.epoch != owned.record.created:
            self.figures.breaks += 1

    def close(self, topic: HostedTopic) -> None:
        """This broker records the topic no more. What a volatile topic has accepted here is still sent."""
        recorder, topic.recorder = topic.recorder, None
        if recorder is None:
            return
        if recorder.is_persistent or not (recorder.queue or recorder.batch):
            self._recorders.pop(recorder.number, None)
        else:
            recorder.until_s = self._state.now_s + _DRAIN_S

    def stop(self) -> None:
        """The process stops: send everything that volatile topics have, without waiting for earlier answers."""
        for recorder in list(self._recorders.values()):
            if not recorder.is_persistent and recorder.queue and not recorder.busy:
                recorder.batch = recorder.batch or recorder.next_batch(None)
                self._send(recorder, recorder.batch)

    # -- time ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send what is due."""
        if not self._recorders:
            return
        now_s, limits = self._state.now_s, self._state.limits
        for recorder in list(self._recorders.values()):
            if recorder.busy:
                continue
            if recorder.is_persistent:
                if now_s >= recorder.due_s:
                    self._advance(recorder)
            elif recorder.batch is not None:
                if now_s >= recorder.due_s:
                    self._send(recorder, recorder.batch)
            elif recorder.queue and (now_s >= recorder.due_s or recorder.queue_bytes >= limits.topic_record_bytes):
                recorder.batch = recorder.next_batch(limits.topic_record_bytes)
                self._send(recorder, recorder.batch)
            elif recorder.until_s is not None and not recorder.queue:
                del self._recorders[recorder.number]
            if recorder.until_s is not None and now_s > recorder.until_s:
                recorder.give_up()
                self._recorders.pop(recorder.number, None)

    def _advance(self, recorder: Recorder) -> None:
        """Read the next messages of a persistent topic from its log, if there are any; first learn the cursor."""
        topic = self._state.topics.get(recorder.topic)
        if topic is None or topic.recorder is not recorder or topic.phase is Phase.PREPARED:
            return
        if recorder.batch is not None:
            self._send(recorder, recorder.batch)
        elif recorder.cursor is None:
            recorder.busy = True
            self._state.effects.append(AskRecorded(recorder.number, recorder.topic, recorder.plan))
        elif recorder.cursor < topic.sent and recorder.created is not None:
            recorder.busy = True
            where = (events.RECORDER, recorder.cursor, topic.sent, self._state.limits.topic_record_bytes)
            self._state.effects.append(ReadLog(topic.name, recorder.created, *where))

    def on_read(self, event: events.LogRead) -> None:
        topic = self._state.topics.get(event.topic)
        recorder = None if topic is None else topic.recorder
        if topic is None or recorder is None or recorder.created != event.created or recorder.cursor is None:
            return
        recorder.busy = False
        after = recorder.cursor
        behind = max(after, event.start - 1)
        self.figures.missed += behind - after  # the retention has removed them
        messages: list[Waiting] = [
            (piece.epoch, sequence, entry[2])
            for piece in event.pieces
            for sequence, entry in enumerate(piece.entries, piece.first)
            if behind < sequence <= topic.sent and not is_mark(entry[0])
        ]
        upto = min(topic.sent, max((piece.last for piece in event.pieces if piece.entries), default=behind))
        if upto > after:
            recorder.batch = Batch(tuple(messages), after, upto)
            self._send(recorder, recorder.batch)
        else:
            recorder.due_s = self._state.now_s + self._state.limits.topic_record_s

    def _send(self, recorder: Recorder, batch: Batch) -> None:
        recorder.busy = True
        # An MQTT client's message has properties in front of its data: the record is the data alone.
        messages = [(str(Position(epoch, sequence)), unwrapped(data)[0]) for epoch, sequence, data in batch.messages]
        key = None
        if not recorder.is_persistent:
            key = f"{recorder.plan.recording}:{messages[0][0]}:{messages[-1][0]}"
        what = (recorder.number, recorder.topic, recorder.plan, messages, batch.after, batch.upto, key)
        self._state.effects.append(StoreRecords(*what))

    # -- answers -------------------------------------------------------------------------------------------------------

    def on_stored(self, event: events.RecordsStored) -> None:
        recorder = self._answered(event)
        if recorder is None or recorder.batch is None:
            return
        batch, recorder.batch, recorder.failures = recorder.batch, None, 0
        self.figures.refused += event.refused
        self.figures.recorded += max(0, len(batch.messages) - event.refused)
        self._continue_behind(recorder, batch.upto)

    def on_upto(self, event: events.RecordedUpto) -> None:
        """The cursor is not the one of the batch: an earlier attempt, or an earlier home, has recorded messages."""
        recorder = self._answered(event)
        if recorder is not None:
            recorder.batch, recorder.failures = None, 0
            self._continue_behind(recorder, event.upto)

    def _continue_behind(self, recorder: Recorder, cursor: int | None) -> None:
        limits, topic = self._state.limits, self._state.topics.get(recorder.topic)
        recorder.cursor = cursor
        recorder.due_s = self._state.now_s + limits.topic_record_s
        is_behind = recorder.queue_bytes >= limits.topic_record_bytes or recorder.until_s is not None
        if topic is not None and cursor is not None and topic.recorder is recorder:
            is_behind = topic.sent > cursor
        if is_behind:
            recorder.due_s = self._state.now_s
            self.run()

    def on_refused(self, event: events.RecordsRefused) -> None:
        """Find the message that is at fault by halves, and leave it out."""
        recorder = self._answered(event)
        batch = None if recorder is None else recorder.batch
        if recorder is None or batch is None:
            return
        if len(batch.messages) > 1:
            recorder.batch = batch.first_half()
            if not recorder.is_persistent:
                recorder.return_to_queue(batch.messages[len(recorder.batch.messages) :])
        else:
            self.figures.refused += len(batch.messages)
            recorder.batch = batch.without_messages() if recorder.is_persistent else None
        recorder.due_s = self._state.now_s
        self.run()

    def on_failed(self, event: events.RecordsFailed) -> None:
        """Repeat the batch later. A persistent topic asks for the cursor first: the batch may have been stored."""
        recorder = self._answered(event)
        if recorder is None:
            return
        self.figures.failures += 1
        recorder.failures += 1
        wait_s = event.retry_after_s or retry_delay_s(recorder.failures, longest_s=_LONGEST_RETRY_S)
        recorder.due_s = self._state.now_s + min(wait_s, _LONGEST_RETRY_S)
        if recorder.is_persistent:
            recorder.batch = recorder.cursor = None

    def _answered(self, event: events.RecordingEvent) -> Recorder | None:
        recorder = self._recorders.get(event.recorder)
        if recorder is not None:
            recorder.busy = False
        return recorder
