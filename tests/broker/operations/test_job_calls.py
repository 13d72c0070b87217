"""Jobs that report to a broker, and people who list them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker.broker_harness import running_broker

from danube.model.errors import InvalidArgumentError, LimitExceededError

pytestmark = pytest.mark.virtual


async def test_jobs_report_and_are_listed(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"max_jobs": 2}) as running, running.client() as client:
        await client.jobs.report("etl", "/default/t", kind="spark-read", rows=10, lag=5, every_s=10)
        await client.jobs.report("sink", "/default/t", kind="spark-write")
        await trio.sleep(5)
        await client.jobs.report("etl", "/default/t", kind="spark-read", rows=50, lag=0, every_s=1, error="late")
        with pytest.raises(LimitExceededError, match="max_jobs"):
            await client.jobs.report("third", "/default/t", kind="spark-write")
        await trio.sleep(4)
        etl, sink = await client.jobs.describe()
        assert (etl.name, etl.rows, etl.lag, etl.missing, etl.error) == ("etl", 60, 0, True, "late")
        assert etl.silent_s == pytest.approx(4, abs=0.5)
        assert (sink.name, sink.missing, sink.lag) == ("sink", False, None)
        with pytest.raises(InvalidArgumentError):
            await client.jobs.report("etl", "/default/t", kind="spark-read", rows=-1)
        await client.jobs.report("etl", "/default/t", kind="spark-read", over=True)
        assert [job.name for job in await client.jobs.describe()] == ["sink"]
