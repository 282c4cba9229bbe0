"""Garbage collections of a server's process."""

from __future__ import annotations

import gc

from tocsin.runtime.http.listening import collect_garbage_rarely


def test_process_that_started_without_collections_collects_when_it_is_ready() -> None:
    threshold = gc.get_threshold()
    gc.disable()
    try:
        collect_garbage_rarely()
        assert gc.isenabled() and gc.get_threshold()[0] > threshold[0]
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
        gc.enable()
