"""The sample channels of `tocsin prepare` run on a real Spark session."""

from __future__ import annotations

import pytest

from tocsin.cluster.spark.session import Session
from tocsin.cluster.temporary import run_sample_channels

pytestmark = pytest.mark.spark


def test_sample_channels_have_results(spark: Session) -> None:
    run_sample_channels(spark)  # raises if a channel has none
