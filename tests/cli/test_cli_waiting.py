"""A command that waits says for what, after a second, and again only when that has changed."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from danube.cli._waiting import WaitWatch
from danube.client._waits import Waits


class FakeClient:
    waiting: str | None = None


async def test_each_reason_is_said_once_until_the_wait_has_ended(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeClient()
    watch = WaitWatch("no connection to danube://a yet")
    watch.client = client  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        for reason in ("b2 is away", "b2 is away", "b3\nis away", "b2 is away", None, "b2 is away"):
            client.waiting = reason
            await trio.sleep(2)
        nursery.cancel_scope.cancel()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "waiting: b2 is away; Ctrl-C ends it",
        "waiting: b3 is away; Ctrl-C ends it",
        "waiting: b2 is away; Ctrl-C ends it",
    ]


async def test_a_connection_that_takes_long_is_said_after_a_second(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = WaitWatch("no connection to danube://a yet")
    with trio.move_on_after(0.9):
        await watch.run()
    assert capsys.readouterr().err == ""
    with trio.move_on_after(20):
        await watch.run()
    assert capsys.readouterr().err == "waiting: no connection to danube://a yet; Ctrl-C ends it\n"


def test_the_longest_wait_that_has_a_reason_counts() -> None:
    waits = Waits()
    first, second, third = waits.begin(0.0), waits.begin(1.0), waits.begin(2.0)
    assert waits.longest(0.9, 1.0) is None
    assert waits.longest(1.0, 1.0) == "no connection to a broker yet"
    third.reason = "b3 is away"
    assert waits.longest(2.9, 1.0) == "no connection to a broker yet"
    assert waits.longest(3.0, 1.0) == "b3 is away"
    second.reason = "b2 is away"
    assert waits.longest(3.0, 1.0) == "b2 is away"
    waits.end(second)
    waits.end(third)
    waits.end(third)
    assert waits.longest(3.0, 1.0) == "no connection to a broker yet"
    del first, third
    assert waits.longest(9.0, 1.0) is None
