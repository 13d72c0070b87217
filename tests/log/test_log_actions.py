"""Actions of the journal's recovery are carried out in their order, and their results and errors reach it."""

from __future__ import annotations

import errno
from random import Random

import pytest
import trio
from log_lives import FILE_SIZE
from trio.testing import MockClock

from danube.log._actions import Create, ListFiles, Read, Remove, Rename, Steps, SyncDirectory, Write
from danube.log._carrying import carry_out
from danube.log._files import FileTable, journal_name
from danube.log.recovery import Recovery
from danube.testing.disk import SimulatedDisk


async def test_results_and_errors_reach_the_steps(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))

    def steps() -> Steps[list[object]]:
        found: list[object] = [(yield Create("a", 100)), (yield Write("a", 2, [b"xy", b"z"], sync=True))]
        found.append((yield Read("a", 1, 5)))
        disk.fail("create", errno.EIO)
        try:
            yield Create("b", 10)
        except OSError as error:
            found.append(error.errno)
        yield Create("b", 10)
        yield Remove("b")
        yield Rename("a", "c")
        yield SyncDirectory()
        found.append((yield ListFiles()))
        return found

    assert await carry_out(disk, steps()) == [None, None, b"\0xyz\0", errno.EIO, {"c": 100}]
    assert disk.crash(power_loss=True).names() == ["c"]


async def test_an_error_that_the_steps_do_not_expect_ends_them(autojump_clock: MockClock) -> None:
    ended: list[bool] = []

    def steps() -> Steps[None]:
        try:
            yield Read("missing", 0, 1)
        finally:
            ended.append(True)

    with pytest.raises(OSError, match="No such file"):
        await carry_out(SimulatedDisk(Random(1)), steps())
    assert ended == [True]


async def test_cancelled_steps_are_closed(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1), sync_delay_s=100.0)
    ended: list[bool] = []

    def steps() -> Steps[None]:
        try:
            yield Create("a", 100)
            yield SyncDirectory()
            await_more = yield Read("a", 0, 1)
            raise AssertionError(await_more)
        finally:
            ended.append(True)

    with trio.move_on_after(0.001):
        await carry_out(disk, steps())
    assert ended == [True]


def test_a_recovery_reads_first_and_writes_later_without_any_disk() -> None:
    """Answered by hand: an empty directory becomes a journal of one file, whose name is durable before it counts."""
    recovery = Recovery(FileTable(), FILE_SIZE)
    survey = recovery.survey()
    assert next(survey) == ListFiles()
    with pytest.raises(StopIteration) as stop:
        survey.send({})
    assert not stop.value.value.begun
    steps = recovery.run(None, 0)
    actions = list(steps)
    kinds = [type(action) for action in actions]
    # The id is in a durable name, then in the content, which is synced, and only then the file counts.
    assert kinds == [Create, SyncDirectory, Write, Write, SyncDirectory, Rename, SyncDirectory, SyncDirectory]
    assert [action.sync for action in actions if isinstance(action, Write)] == [False, True]
    assert actions[5] == Rename("spare-0000000000000001.log", journal_name(1))
    assert recovery.active.file_id == 1
