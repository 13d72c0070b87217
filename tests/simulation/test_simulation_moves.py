"""Topics move in simulated clusters: that ambushes strike between any two steps, and what was ambushed before."""

from __future__ import annotations

import trio

from danube.testing.simulation._scheduler import MACHINE, run_seeded
from danube.testing.simulation.ambushes import Ambush


class Procedure:
    """Takes ten steps, at some depth."""

    def __init__(self) -> None:
        self.done = 0

    async def run(self) -> None:
        for _ in range(5):
            await self.step()
            await self.step()

    async def step(self) -> None:
        self.done += 1
        await trio.lowlevel.checkpoint()


async def others() -> None:
    for _ in range(100):
        await trio.lowlevel.checkpoint()


def test_an_ambush_strikes_at_each_step_of_a_procedure_and_at_no_other() -> None:
    """The first step is the start of the task; there are ten more."""
    for machine, functions, expected in (
        ("", ("Procedure.",), list(range(11))),
        ("h1", ("Procedure.step", "another"), list(range(1, 11))),
        ("h2", ("Procedure.",), []),
        ("", ("Procedure.walk",), []),
    ):
        struck = []
        for steps in range(1, 14):

            async def main(
                machine: str = machine, functions: tuple[str, ...] = functions, steps: int = steps
            ) -> tuple[int, bool]:
                procedure, at = Procedure(), [-1]
                MACHINE.set("h1")
                ambush = Ambush(functions, machine, steps, lambda where: at.append(procedure.done))
                trio.lowlevel.add_instrument(ambush)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(procedure.run)
                    nursery.start_soon(others)
                ambush.end()
                ambush.end()
                return at[-1], ambush.sprung.is_set()

            done, is_sprung = run_seeded(main, 1)
            assert is_sprung == (done >= 0)
            if is_sprung:
                struck.append(done)
        assert struck == expected
