"""Virtual time and machines that stand still."""

from __future__ import annotations

import pytest
import trio

from danube.testing.clock import SimulatedClock, simulated_clock, sleep
from danube.testing.simulation._scheduler import MACHINE, Pauses, run_seeded


def clock() -> SimulatedClock:
    found = simulated_clock()
    assert found is not None
    return found


def test_time_jumps_to_what_is_next() -> None:
    async def main() -> list[tuple[str, float]]:
        said: list[tuple[str, float]] = []

        async def wait(name: str, seconds: float, *, cheaply: bool) -> None:
            if cheaply:
                await sleep(seconds)
            else:
                await trio.sleep(seconds)
            said.append((name, trio.current_time()))

        clock().call_at(2.0, lambda: said.append(("first timer", trio.current_time())))
        clock().call_at(2.0, lambda: said.append(("second timer", trio.current_time())))
        clock().call_at(2.5, lambda: said.append(("never", 0.0))).cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: wait("a", 3.0, cheaply=True))
            nursery.start_soon(lambda: wait("b", 1_000_000.0, cheaply=False))
            nursery.start_soon(lambda: wait("c", 1.0, cheaply=False))
        return said

    assert run_seeded(main, 1) == [
        ("c", 1.0),
        ("first timer", 2.0),
        ("second timer", 2.0),
        ("a", 3.0),
        ("b", 1_000_000.0),
    ]


def test_sleep_can_be_cancelled() -> None:
    async def main() -> float:
        with trio.move_on_after(5) as scope:
            await sleep(10)
        assert scope.cancelled_caught
        await sleep(1)
        return trio.current_time()

    assert run_seeded(main, 1) == 6.0


async def test_sleep_without_a_simulated_clock(autojump_clock: object) -> None:
    began = trio.current_time()
    await sleep(3)
    assert trio.current_time() == began + 3
    assert simulated_clock() is None


def test_a_paused_machine_stands_still_and_goes_on() -> None:
    async def main() -> list[tuple[str, int]]:
        pauses, said = Pauses(), list[tuple[str, int]]()

        async def count(machine: str) -> None:
            MACHINE.set(machine)
            async with trio.open_nursery() as nursery:  # what a task starts is on its machine
                for number in range(4):
                    await trio.sleep(1)
                    nursery.start_soon(note, machine, number)

        async def note(machine: str, number: int) -> None:
            said.append((machine, number))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count, "a")
            nursery.start_soon(count, "b")
            await trio.sleep(1.5)
            pauses.pause("a")
            pauses.pause("a")
            await trio.sleep(10)
            assert said[2:] == [("b", 1), ("b", 2), ("b", 3)]
            pauses.resume("a")
            pauses.resume("nobody")
        assert trio.current_time() == pytest.approx(13.5)
        return said[5:]

    assert run_seeded(main, 1) == [("a", 1), ("a", 2), ("a", 3)]


def test_a_timeout_runs_out_while_its_machine_stands_still() -> None:
    async def main() -> float:
        pauses = Pauses()
        ended = trio.Event()

        async def wait() -> None:
            MACHINE.set("a")
            with trio.move_on_after(2):
                await trio.sleep_forever()
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            pauses.pause("a")
            await trio.sleep(5)
            assert not ended.is_set()
            pauses.resume("a")
            await ended.wait()
        return trio.current_time()

    assert run_seeded(main, 1) == 6.0
