"""Readers of the journal that are overtaken: their messages are sealed in the meantime, and the file recycled."""

from __future__ import annotations

import pytest
import trio
from history_lives import Life, World, run_lives

from danube.log import StoredBatch


async def fill(life: Life) -> None:
    """Less than a segment of topic 1 in a file that nothing else keeps; what follows is in later ones."""
    await life.append(1, 9, (300,))
    file = life.journal._stock.active.file_id
    while life.journal._stock.active.file_id == file:
        await life.append(2, 1, (900,))
    await life.append(1, 3, (300,))
    life.topics[1].log._cached.clear()


@pytest.mark.parametrize("when", ["before the disk is asked", "after it has answered", "zeros", "half"])
@pytest.mark.parametrize("calls", range(4))
@pytest.mark.parametrize("max_bytes", [1, 100_000])
def test_nothing_is_passed_over_by_a_reader_that_sealing_overtakes(
    max_bytes: int, calls: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must go on in what was sealed: at the journal's start there would be a gap, which a subscription settles.

    A disk that answers late may give what is in the file by then: zeros, or half of it other bytes.
    """
    overtaken: list[int] = []

    async def work(life: Life) -> None:
        await fill(life)
        log, window, left = life.topics[1].log, life.journal.window, calls

        async def slow_window(file: int, position: int, size: int) -> tuple[bytes, int]:
            nonlocal left
            found = None if when.startswith("before") else await window(file, position, size)
            left -= 1
            if left == -1:
                await life.seal(1)
                await life.append(2, 30, (900,))  # other messages take the place
                with trio.fail_after(100):
                    while life.journal.is_live(file) and file != life.journal._stock.active.file_id:  # noqa: ASYNC110
                        await trio.sleep(0.1)
                overtaken.append(file)
                if found is not None and not life.journal.is_live(file):
                    data, at = found
                    if when == "zeros":
                        return bytes(len(data)), at
                    if when == "half":
                        return data[: at + 200] + bytes(len(data) - at - 200), at
            return found if found is not None else await window(file, position, size)

        monkeypatch.setattr(life.journal, "window", slow_window)
        offset, found = 0, list[StoredBatch]()
        while offset < log.end_offset:
            batches = await log.read(offset, max_bytes)
            assert batches[0].base_offset == offset, "there is a gap"
            for batch in batches:
                assert batch.base_offset == offset
                offset = batch.end_offset
            found += batches
        assert [batch.part for batch in found] == [batch.part for batch in life.topics[1].truth.batches]

    async def scenario(world: World) -> None:
        assert await world.live(work)

    run_lives(scenario, 3)
    assert overtaken or calls > 1, "the reader has met nothing"
