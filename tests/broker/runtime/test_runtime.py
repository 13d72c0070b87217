"""Tasks that complete although their callers are cancelled, and what callers learn if they do not."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from broker.broker_harness import small_config

from danube.broker.runtime.runtime import Runtime
from danube.broker.runtime.seams import Seams
from danube.model.errors import UnavailableError

pytestmark = pytest.mark.virtual


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(small_config(tmp_path), Seams(random=Random(1), wall_clock_us=lambda: 0))


async def test_work_that_ends_with_the_broker_is_not_reported_as_done(runtime: Runtime) -> None:
    """Its caller is a task of the server, which outlives the tasks of the broker by a moment."""
    reported = list[str]()

    async def call() -> None:
        try:
            await runtime.finish(trio.sleep_forever)
        except UnavailableError as error:
            reported.append(str(error))
        else:
            reported.append("done")

    async with trio.open_nursery() as server, trio.open_nursery() as tasks:
        runtime.begin(tasks)
        server.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert len(reported) == 1
    assert "whether it was carried out is unknown" in reported[0]


async def test_work_completes_although_its_caller_is_cancelled(runtime: Runtime) -> None:
    done = list[int]()

    async def work() -> None:
        await trio.sleep(1.0)
        done.append(1)

    async with trio.open_nursery() as tasks:
        runtime.begin(tasks)
        with trio.move_on_after(0.5) as patience:
            await runtime.finish(work)
        await trio.sleep(1.0)
        tasks.cancel_scope.cancel()
    assert patience.cancelled_caught
    assert done == [1]


async def test_a_broker_that_ends_takes_no_more_tasks(runtime: Runtime) -> None:
    """Changes of the metadata are told until the very end, and may ask for tasks.

    Seed 20261128761000236 of the worlds of clusters: the broker ended with "Nursery is closed to new arrivals".
    """

    async def never() -> None:
        raise AssertionError("this was started")

    async with trio.open_nursery() as tasks:
        runtime.begin(tasks)
        await trio.testing.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    runtime.start(never)
    with pytest.raises(UnavailableError, match="the broker ends"):
        await runtime.finish(never)
