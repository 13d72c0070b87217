"""The budget of bytes: never overdrawn, first come first served, and complete again after cancellations."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.storage_server._budget import ByteBudget

TOTAL = 100


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 130), st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=20))
def test_it_is_never_overdrawn_and_whole_in_the_end(tasks: list[tuple[int, float, float]]) -> None:
    """Tasks come in turn, hold their bytes for a time, and give up (waiting or holding) at another."""
    held = 0
    begun: list[tuple[float, int]] = []

    async def task(budget: ByteBudget, number: int, size: int, hold_s: float, give_up_s: float) -> None:
        nonlocal held
        size = min(size, TOTAL)
        with trio.move_on_after(give_up_s):
            async with budget.reserve(size):
                begun.append((trio.current_time(), number))
                held += size
                assert held <= TOTAL
                assert 0 <= budget.free_bytes <= TOTAL - held
                try:
                    await trio.sleep(hold_s)
                finally:
                    held -= size

    async def main() -> None:
        budget = ByteBudget(TOTAL)
        async with trio.open_nursery() as nursery:
            for number, (size, hold_s, give_up_s) in enumerate(tasks):
                nursery.start_soon(task, budget, number, size, hold_s, give_up_s)
                await trio.testing.wait_all_tasks_blocked()
        assert (budget.free_bytes, budget.waiting, held) == (TOTAL, 0, 0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    # First come, first served; those whose turn came at the same moment run in any order.
    numbers = [number for _, number in sorted(begun)]
    assert numbers == sorted(numbers)


async def test_a_large_one_is_not_overtaken_by_small_ones() -> None:
    budget = ByteBudget(TOTAL)
    order: list[str] = []

    async def hold(name: str, size: int) -> None:
        async with budget.reserve(size):
            order.append(name)

    async with trio.open_nursery() as nursery, budget.reserve(50):
        nursery.start_soon(hold, "large", 80)
        await trio.testing.wait_all_tasks_blocked()
        # It would fit beside the 50, and not beside the 80: so it tells who came first.
        nursery.start_soon(hold, "small", 30)
        await trio.testing.wait_all_tasks_blocked()
        assert (order, budget.waiting) == ([], 2)
    assert order == ["large", "small"]


async def test_a_cancelled_waiter_lets_the_next_one_through() -> None:
    budget = ByteBudget(TOTAL)
    order: list[str] = []

    async def hold(name: str, size: int) -> None:
        async with budget.reserve(size):
            order.append(name)

    async with trio.open_nursery() as nursery, budget.reserve(50):
        async with trio.open_nursery() as impatient:
            impatient.start_soon(hold, "large", 80)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(hold, "small", 10)
            await trio.testing.wait_all_tasks_blocked()
            assert order == []
            impatient.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["small"]
    assert budget.free_bytes == TOTAL
