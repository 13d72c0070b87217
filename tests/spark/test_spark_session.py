"""The session with the settings that matter, and the Java that it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_session_runs(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
