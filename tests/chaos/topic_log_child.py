"""Appends to the log of a topic and cuts, promises and trims it; prints what it has done and what it is about to cut.

python topic_log_child.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tocsin.runtime.broker.topic_log import TopicLog
from tocsin.wire.topic_log import Piece, Snapshot

ROUNDS = 60
SEGMENT_BYTES = 1_500


def data_of(epoch: int, sequence: int) -> bytes:
    return f"{epoch}-{sequence}-".encode() + b"x" * (sequence % 90)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(folder: Path) -> None:
    log = TopicLog(folder / "log", SEGMENT_BYTES)
    say("open")
    epoch = 1
    for number in range(ROUNDS):
        first = log.end + 1
        pieces = [
            Piece(epoch, first + 3 * part, [(part, number + 1, data_of(epoch, first + 3 * part + i)) for i in range(3)])
            for part in range(1 + number % 3)
        ]
        log.append(pieces)
        say("stored", epoch, log.end)
        if number % 7 == 3:
            epoch += 2
            log.adopt(epoch, None)
            say("promised", epoch)
        if number % 11 == 5:
            end = max(log.start, log.end - 4)
            last_epoch = max(began for began, at in log.epochs if at <= end)
            say("cutting", end)
            epoch += 1
            log.adopt(epoch, (last_epoch, end))
            say("promised", epoch)
        if number % 13 == 9:
            say("trimming", log.end - 20)
            log.trim(log.end - 20)
        if number == 40:
            first = log.end - 10
            say("cutting", 0)
            log.reset(epoch, Snapshot(first, [(epoch, 1)], [(9, 9)]))
            say("reset", first)
    log.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
