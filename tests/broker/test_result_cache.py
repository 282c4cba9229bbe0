"""The result cache: its limit and the interval that it keeps."""

from __future__ import annotations

from tests.broker.simulated_ends import CHANNEL
from tests.broker.test_result_batch import batch
from tocsin.broker.hosted import BackendSubscription
from tocsin.broker.result_cache import ResultCache
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId


def test_cache_evicts_the_oldest_first_and_keeps_one_interval() -> None:
    cache = ResultCache(3_000)
    start = Cursor(1, 0)
    old, new = (BackendSubscription(SubscriptionId(name), CHANNEL, start, start, start) for name in ("old", "new"))
    for number in range(10):
        cache.append(old if number < 4 else new, batch(number * 10 + 1, 5))
        assert cache.used_bytes <= 3_000
    assert not old.batches and old.kept_from == old.position
    assert new.batches and new.kept_from == Cursor(1, new.batches[0].start.offset - 5)
    cache.forget(new)
    assert cache.used_bytes == 0
