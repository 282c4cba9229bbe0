"""When the oldest record that is not in its dataset yet was accepted: the feed log has the time of every request."""

from __future__ import annotations

from pathlib import Path

from tocsin.cluster.feed.feedlog_reader import FeedLogCorrupt, FeedLogReader


def oldest_accepted_s(log: Path, ingested: int) -> float | None:
    """The time of the first durable record at or after the position `ingested`; None if there is none.

    Any thread may call it, because it opens the log with a reader of its own. Blocks.
    """
    reader = FeedLogReader(log)
    try:
        position = max(ingested, reader.start)
        while position < reader.end:
            frames, position = reader.read(position, 1)
            for frame in frames:
                if frame.count:  # a frame without records holds only the answer to a request
                    return float(frame.meta["accepted_at_us"]) / 1e6
            if not frames:
                break
    except (OSError, FeedLogCorrupt):  # a segment was trimmed meanwhile, so its records are in the dataset
        pass
    finally:
        reader.close()
    return None
