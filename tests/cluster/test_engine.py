"""The data root of a data cluster."""

from __future__ import annotations

import pytest

from tocsin.cluster.engine import DataCluster
from tocsin.wire.errors import TocsinError

pytestmark = pytest.mark.spark


def test_root_is_open_in_one_process_at_a_time(cluster: DataCluster) -> None:
    with pytest.raises(TocsinError, match="another process"):
        DataCluster(cluster.spark, cluster.settings, cluster.now_s)
