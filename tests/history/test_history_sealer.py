"""Sealing beside topics that are deleted, and beside files that sealing cannot free."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from history_lives import LIMITS, Life, World, run_lives, wall_clock_us
from tenures import Assignments

from danube.history import sealer as sealer_module
from danube.history.packing import BuiltObject
from danube.history.sealer import Sealable, Sealer
from danube.log import Journal, StoredBatch
from danube.model.batch import STAMP_SIZE
from danube.model.errors import StorageError, StorageUnavailableError
from danube.model.policies import Retention
from danube.storage import Storage


def test_a_topic_that_is_deleted_while_a_round_begins_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round before has entered its part and failed then, so the next one begins with letting go of it."""

    async def work(life: Life) -> None:
        flush, drop_topic = life.history.manifests["default"].flush, life.catalogue.drop_topic
        steps: list[str] = []

        async def disturbed_flush() -> None:
            if life.catalogue.topic(1).parts and not steps:
                steps.append("entered")
                raise StorageUnavailableError("the manifest cannot be written")
            if steps == ["entered"]:
                steps.append("deleted")
                nursery.start_soon(life.drop, 1)
                await trio.sleep(0.1)
            await flush()

        async def slow_drop_topic(topic_id: int, now_us: int) -> None:
            await trio.sleep(1)  # the sealer has forgotten the topic, the catalogue has not
            await drop_topic(topic_id, now_us)

        monkeypatch.setattr(life.history.manifests["default"], "flush", disturbed_flush)
        monkeypatch.setattr(life.catalogue, "drop_topic", slow_drop_topic)
        await life.append(1, 3, (300,))
        async with trio.open_nursery() as nursery:
            with pytest.raises(StorageError, match="cannot be written"):
                await life.seal(1)
            await life.append(1, 1, (300,))  # there is more of it than what was entered
            await trio.sleep(5)
        assert steps == ["entered", "deleted"]
        await life.append(2, 3, (300,))
        await life.seal(2)
        assert life.history.sealer.status().unsealed_topics == 0
        await life.check_content("after the deletion")

    async def scenario(world: World) -> None:
        assert await world.live(work)

    run_lives(scenario, 3)


def test_a_file_that_sealing_cannot_free_does_not_keep_the_sealer_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file is kept though its topic is sealed: a journal that is too full sealed it again without a pause."""

    async def work(life: Life) -> None:
        await life.append(1, 3, (300,))
        await life.seal(1)
        rounds = 0
        flush = life.history.manifests["default"].flush

        async def counted_flush() -> None:
            nonlocal rounds
            rounds += 1
            assert rounds < 100, "the sealer spins"
            await flush()

        monkeypatch.setattr(life.history.manifests["default"], "flush", counted_flush)
        monkeypatch.setattr(Journal, "used_bytes", property(lambda _: 1 << 40))
        monkeypatch.setattr(life.journal, "topics_of_oldest", lambda _: [1, 2])
        await life.append(2, 1, (300,))
        await trio.sleep(60)
        assert life.history.sealer.status().unsealed_topics == 0
        assert rounds > 0

    async def scenario(world: World) -> None:
        assert await world.live(work)

    run_lives(scenario, 3)


def test_a_round_that_moves_nothing_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(life: Life) -> None:
        rounds = 0

        async def idle_round(*_: object) -> None:
            nonlocal rounds
            rounds += 1
            assert rounds < 100, "the sealer spins"

        monkeypatch.setattr(Sealer, "_seal", idle_round)
        monkeypatch.setattr(Journal, "used_bytes", property(lambda _: 1 << 40))
        monkeypatch.setattr(life.journal, "topics_of_oldest", lambda _: [1])
        await life.append(1, 1, (300,))
        await trio.sleep(5)
        assert 2 < rounds < 50, "it is tried again, in a while"

    async def scenario(world: World) -> None:
        assert await world.live(work)

    run_lives(scenario, 3)


def test_a_topic_of_which_everything_has_expired_has_nothing_to_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index still knew its last region, so the sealer found it due again and again, with nothing to seal."""

    async def work(life: Life) -> None:
        rounds = 0
        seal = Sealer._seal

        async def counted(sealer: Sealer, due: Sequence[Sealable], whole: set[int]) -> None:
            nonlocal rounds
            rounds += 1
            assert rounds < 100, "the sealer spins"
            await seal(sealer, due, whole)

        monkeypatch.setattr(Sealer, "_seal", counted)
        await life.append(1, 3, (300,))
        life.topics[1].truth.floor = life.topics[1].log.end_offset
        await life.history.keep()
        assert life.topics[1].log.start_offset == life.topics[1].log.end_offset > 0
        assert life.history.sealer.status().unsealed_bytes == 0
        (sealer,) = life.history.sealer._sealers.values()
        monkeypatch.setattr(sealer, "_clock_us", lambda: wall_clock_us() + int(2e6 * LIMITS.segment_max_age_s))
        life.history.sealer.journal_rolled()
        await trio.sleep(60)
        assert rounds == 0
        await life.append(1, 3, (300,))
        await life.seal(1)
        await life.check_content("afterwards")

    async def scenario(world: World) -> None:
        assert await world.live(work)

    run_lives(scenario, 3)


def test_retention_by_size_that_cuts_a_part_during_its_upload_keeps_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of such a part stayed in the count of unsealed ones, beside its own: what came after it was removed."""
    cuts: list[int] = []

    async def work(life: Life) -> None:
        topic = life.topics[1]
        log, truth = topic.log, topic.truth
        await life.append(1, 1, (900,))
        file = life.journal._stock.active.file_id
        while life.journal._stock.active.file_id == file:
            await life.append(2, 1, (900,))
        await life.append(1, 3, (300,))
        part_end = log.end_offset

        async def overtaken_upload(storage: Storage, built: BuiltObject) -> None:
            if not cuts:
                await life.append(1, 3, (300,))
                topic.retention = Retention(max_bytes=log.index.bytes_from(truth.batches[1].base_offset))
                await life.history.expire(topic)
                cuts.append(log.start_offset)
            await upload(storage, built)

        upload = sealer_module.upload
        monkeypatch.setattr(sealer_module, "upload", overtaken_upload)
        await life.seal(1)
        (cut,) = cuts
        assert 0 < cut < part_end == log.journal_start < log.end_offset, "the part is not cut"

        def stored_bytes(offset: int) -> int:
            return sum(STAMP_SIZE + len(each.part) for each in truth.batches if each.base_offset >= offset)

        unsealed = stored_bytes(part_end)
        assert log.unsealed_bytes - log.unsealed_surplus_bytes <= unsealed <= log.unsealed_bytes
        await life.history.expire(topic)
        assert stored_bytes(log.start_offset) >= topic.retention.max_bytes
        truth.floor = log.start_offset
        await life.check_content("after the cut")
        await life.append(1, 60, (900,))
        await life.seal(1)
        await life.history.expire(topic)
        assert log.start_offset > part_end, "more came, and retention goes on"
        assert stored_bytes(log.start_offset) >= topic.retention.max_bytes

    async def scenario(world: World) -> None:
        assert await world.live(work)

    run_lives(scenario, 3)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("step", ["read", "upload"])
def test_a_topic_that_moves_away_during_a_round_does_not_delay_the_others(
    monkeypatch: pytest.MonkeyPatch, step: str, *, knows: bool
) -> None:
    """The round failed as a whole, with an error in the log, and what is due waited for the next attempt."""
    failures: list[BaseException] = []
    former_failed, former_upload = Sealer._failed, sealer_module.upload

    def failed(sealer: Sealer, error: BaseException, pause_s: float) -> None:
        failures.append(error)
        former_failed(sealer, error, pause_s)

    monkeypatch.setattr(Sealer, "_failed", failed)

    async def scenario(world: World) -> None:
        assignments = Assignments(world.metadata)
        tenure = world.tenure = await assignments.begin("b1")
        target = await assignments.begin("b2")
        for topic_id in world.topics:
            await assignments.assign(topic_id, tenure)

        async def work(life: Life) -> None:
            moves = 0

            async def move() -> None:
                nonlocal moves
                moves += 1
                if moves == 1:
                    await assignments.assign(1, target, *([tenure] if knows else []))
                    nursery.start_soon(hear)

            async def hear() -> None:
                await trio.sleep(0.02)  # what the broker knows of assignments is a little behind the metadata
                tenure.owned.pop(1, None)
                life.history.release_topic(1)

            async def upload(storage: Storage, built: BuiltObject) -> None:
                if step == "upload":
                    await move()
                await former_upload(storage, built)

            async def read(offset: int, size_bytes: int) -> list[StoredBatch]:
                batches = await former_read(offset, size_bytes)
                await move()
                return batches

            former_read = life.topics[1].log.read
            if step == "read":
                monkeypatch.setattr(life.topics[1].log, "read", read)
            monkeypatch.setattr(sealer_module, "upload", upload)
            async with trio.open_nursery() as nursery:
                for topic_id in (1, 2):
                    await life.append(topic_id, 3, (300,))
                began = trio.current_time()
                await life.seal(1, 2)
                assert trio.current_time() - began < (0.1 if knows else 0.5)
            assert moves
            assert not failures
            assert life.catalogue.topic(2).end_offset == life.topics[2].log.end_offset
            life.world.topics.pop(1)

        assert await world.live(work)

    run_lives(scenario, 3)
