"""The remote journal: one put while idle, order independent of the order of arrival, fences, snapshots, stalls."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
import trio
from remote_lives import CLUSTER, LIMITS, Life, World, claim, hold_store, living, wall_clock_us, world

from danube.history.remote import RemoteJournal, highest_epoch
from danube.model.errors import (
    ConfigurationError,
    DataLossError,
    OwnerFencedError,
    StorageUnavailableError,
    UnavailableError,
)
from danube.model.limits import KIB, Limits
from danube.storage import MemoryBackend, Storage


async def test_the_bucket_alone_is_enough(autojump_clock) -> None:
    async with world() as everything:
        async with living(Life(everything)) as life:
            topic = await life.create_topic()
            for number in range(5):
                await life.wait(life.publish(topic, [b"%d" % number, b"x"]))
            await life.wait(life.ack(1))
        await everything.lose_metadata()  # another machine
        async with living(Life(everything)) as life:
            assert life.topics == {topic: 10}
            assert life.names == {f"/default/t{topic}": topic}
            await life.check_promises()
            assert (await life.read_all(topic))[8] == [b"4", b"x"]


async def test_producers_come_back_from_batches_behind_the_snapshot(autojump_clock) -> None:
    async with world() as everything:
        life = Life(everything)
        async with living(life, close=False):
            topic = await life.create_topic()
            for number in range(3):
                await life.wait(life.publish(topic, [b"%d" % number]))
        async with living(Life(everything)) as life:
            window = life.recovered.topics[topic].producers[7]
            assert [(batch.base_sequence, batch.base_offset) for batch in window] == [(0, 0), (1, 1), (2, 2)]


async def test_an_idle_topic_waits_for_one_put(autojump_clock) -> None:
    async with world() as everything, living(Life(everything, latency_s=0.0)) as life:
        topic = await life.create_topic()
        await trio.sleep(1)
        life.faults.latency_s = 0.1
        before = life.faults.calls["put"]
        started = trio.current_time()
        entries = [life.publish(topic, [b"a"]), life.publish(topic, [b"b"])]
        for entry in entries:
            await life.wait(entry)
        assert trio.current_time() - started <= 0.2
        assert life.faults.calls["put"] == before + 1
        assert entries[0].sequence == entries[1].sequence


async def test_load_makes_larger_commits_not_more_of_them(autojump_clock) -> None:
    limits = Limits(remote_commit_bytes=1024 * KIB, remote_in_flight=4)
    async with world() as everything, living(Life(everything, limits, latency_s=0.0)) as life:
        topic = await life.create_topic()
        await trio.sleep(1)
        life.faults.latency_s = 0.1
        before = life.faults.calls["put"]
        entries = []
        for _ in range(400):  # 2 MB in 2 s, 1 MB/s
            entries.append(life.publish(topic, [bytes(5 * KIB)]))
            await trio.sleep(0.005)
        for entry in entries:
            await life.wait(entry)
        puts = life.faults.calls["put"] - before
        assert 400 * 5 / 256 <= puts <= 60  # about one every 0.1 s, and never 400


async def test_commits_that_land_early_settle_in_their_order(autojump_clock) -> None:
    limits = Limits(remote_in_flight=4)
    async with world() as everything, living(Life(everything, limits, latency_s=1.0)) as life:
        topic = await life.create_topic()
        entries = []
        for _ in range(40):
            entries.append(life.publish(topic, [bytes(300 * KIB)]))
            await trio.sleep(0.1)
        for entry in entries:
            await life.wait(entry)
        sequences = [entry.sequence for entry in life.settled]
        assert sequences == sorted(sequences)
        assert [entry for entry in life.settled if entry in set(entries)] == entries
        await life.check_promises()


async def test_an_owner_that_has_lost_its_topics_writes_no_state_without_them(autojump_clock) -> None:
    async with world() as everything:
        old = Life(everything)
        with pytest.RaisesGroup(OwnerFencedError):
            async with living(old):
                topic = await old.create_topic()
                await old.wait(old.publish(topic, [b"mine"]))
                entry = old.publish(topic, [b"not acknowledged"])
                old.journal.abandon(OwnerFencedError("given to another broker"))
                old.topics.clear()
                old.names.clear()
                old.journal._settled.is_snapshot_due = True
                with pytest.raises(OwnerFencedError, match="given to another broker"):
                    await old.wait(entry)
                with pytest.raises(OwnerFencedError):
                    old.journal.submit(entry)
                await trio.sleep(60)
        async with living(Life(everything)) as new:
            assert new.names == {f"/default/t{topic}": topic}
            assert (await new.read_all(topic))[0] == [b"mine"]


async def test_a_former_owner_that_is_alive_is_fenced(autojump_clock) -> None:
    async with world() as everything:
        old = Life(everything)
        with pytest.RaisesGroup(OwnerFencedError):
            async with living(old):
                topic = await old.create_topic()
                await old.wait(old.publish(topic, [b"mine"]))
                async with living(Life(everything)) as new:
                    assert new.topics == {topic: 1}
                    entry = old.publish(topic, [b"too late"])
                    with pytest.raises(OwnerFencedError, match="has taken over") as fenced:
                        await old.wait(entry)
                    assert fenced.value.retryable, "others in flight may be stored: no producer may give them up"
                    await new.wait(new.publish(topic, [b"in time"]))
                    await new.check_promises()
        with pytest.raises(OwnerFencedError):
            old.journal.submit(entry)
        assert old.journal.failure is not None


async def test_a_claim_with_an_epoch_that_is_taken_fails(autojump_clock) -> None:
    async with world() as everything, living(Life(everything)) as life:
        assert await highest_epoch(life.storage, CLUSTER) == life.catalogue.epoch
        rival = Life(everything)
        rival.catalogue = life.catalogue
        journal = RemoteJournal(
            rival.storage,
            life.catalogue,
            rival,
            LIMITS,
            place=CLUSTER,
            owner="rival",
            wall_clock_us=wall_clock_us,
            manifests_current=lambda: True,
        )
        with pytest.raises(OwnerFencedError, match="another broker"):
            await journal.recover()
        await life.create_topic()  # nothing has happened to the owner


async def claim_elsewhere(life: Life, topic: int, survivors: list[int]) -> None:
    """Claim on a machine of its own: others may choose the same epoch."""
    await trio.sleep(life.random.random() * 0.2)
    at_least = await highest_epoch(life.storage, CLUSTER) + 1
    store = await life.world.nursery.start(hold_store)
    catalogue = await claim(store, "x", at_least)
    journal = RemoteJournal(
        life.storage,
        catalogue,
        life,
        LIMITS,
        place=CLUSTER,
        owner=life.name,
        wall_clock_us=wall_clock_us,
        manifests_current=lambda: True,
    )
    try:
        recovered = await journal.recover()
    except OwnerFencedError:
        return
    assert recovered.topics[topic].next_offset == 1
    survivors.append(catalogue.epoch)


@pytest.mark.parametrize("seed", range(20))
async def test_one_of_several_concurrent_claims_goes_on(seed: int, autojump_clock) -> None:
    async with world(seed) as everything:
        async with living(Life(everything), close=False) as first:
            topic = await first.create_topic()
            await first.wait(first.publish(topic, [b"a"]))
        survivors: list[int] = []
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(claim_elsewhere, Life(everything, latency_s=0.05), topic, survivors)
        # The highest epoch has survived; others that did had recovered before it came.
        claims = [int(key.split("/")[2], 16) for key in everything.commits() if key.endswith("/" + "0" * 16)]
        assert max(survivors) == max(claims)
        assert len(set(survivors)) == len(survivors)


async def test_snapshots_keep_the_bucket_and_recovery_small(autojump_clock) -> None:
    async with world() as everything:
        async with living(Life(everything), close=False) as life:
            topic = await life.create_topic()
            for number in range(100):
                await life.wait(life.publish(topic, [b"%d" % number]))
                if number % 20 == 19:
                    assert await life.seal(topic)
            assert len(everything.commits()) < 2 * 20 + 2 * LIMITS.remote_snapshot_commits
        async with living(Life(everything)) as life:
            assert life.recovered.commits <= 2 * LIMITS.remote_snapshot_commits
            assert life.topics == {topic: 100}
            await life.check_promises()
            for _ in range(2 * LIMITS.remote_snapshot_commits):
                await life.wait(life.ack(1))
            await life.seal(topic)
            for _ in range(2 * LIMITS.remote_snapshot_commits):
                await life.wait(life.ack(1))
            await trio.sleep(1)
            # Of the former life nothing is left but the fence that keeps it out.
            former = [key for key in everything.commits() if f"/{life.catalogue.epoch:016x}/" not in key]
            assert len(former) == 1
        async with living(Life(everything)) as life:
            await life.check_promises()


async def test_commits_that_a_snapshot_mentions_stay(autojump_clock) -> None:
    async with world() as everything:
        async with living(Life(everything), close=False) as life:
            topic = await life.create_topic()
            await life.wait(life.publish(topic, [b"still here"]))
            for _ in range(5 * LIMITS.remote_snapshot_commits):
                await life.wait(life.ack(1))
            assert len(everything.commits()) <= 3 * LIMITS.remote_snapshot_commits
        await everything.lose_metadata()
        async with living(Life(everything)) as life:
            assert await life.read_all(topic) == {0: [b"still here"]}


@pytest.mark.parametrize("told", [False, True])
async def test_commits_stay_until_manifests_tell_of_what_has_taken_their_place(told: bool, autojump_clock) -> None:
    """A snapshot that left them out before was all that a new owner without the metadata had."""
    async with world() as everything:
        async with living(Life(everything), close=False) as life:
            topic = await life.create_topic()
            for number in range(3):
                await life.wait(life.publish(topic, [b"%d" % number]))
            commits = {record.object for record in life.journal.unsealed(topic)}
            life.manifests_current = False
            assert await life.seal(topic) == 3
            await life.wait(life.publish(topic, [b"3"]))
            commits |= {record.object for record in life.journal.unsealed(topic)}
            assert await life.seal(topic) == 1  # before any snapshot has mentioned it
            life.manifests_current = told
            for _ in range(5 * LIMITS.remote_snapshot_commits):
                await life.wait(life.ack(1))
            assert len(commits & set(everything.commits())) == (0 if told else 4)
        if not told:
            await everything.lose_metadata()
            async with living(Life(everything)) as life:
                await life.check_promises()


async def test_an_owner_is_told_that_the_bucket_was_claimed(autojump_clock) -> None:
    async with world() as everything:
        old = Life(everything)
        async with living(old, close=False):
            await old.create_topic()
            await old.journal.check_owner()
            async with living(Life(everything)) as new:
                with pytest.raises(OwnerFencedError, match="has taken over"):
                    await old.journal.check_owner()
                await new.journal.check_owner()


async def test_a_clean_end_leaves_a_short_way(autojump_clock) -> None:
    async with world() as everything:
        async with living(Life(everything)) as life:
            topic = await life.create_topic()
            for _ in range(5):
                await life.wait(life.publish(topic, [b"x"]))
        async with living(Life(everything)) as life:
            assert life.recovered.commits == 1  # the snapshot itself
            assert life.topics == {topic: 5}
            await life.journal.aclose()
            with pytest.raises(UnavailableError, match="closing"):
                life.publish(topic, [b"y"])


async def test_deleted_topics_stay_deleted(autojump_clock) -> None:
    async with world() as everything:
        async with living(Life(everything), close=False) as life:
            one, two = await life.create_topic(), await life.create_topic()
            await life.wait(life.publish(one, [b"1"]))
            late = life.publish(one, [b"on its way"])
            await life.delete_topic(one)
            await life.wait(late)
            await life.wait(life.publish(two, [b"2"]))
        await everything.lose_metadata()
        async with living(Life(everything)) as life:
            assert life.topics == {two: 1}
            assert life.journal.unsealed(one) == []
            await life.check_promises()


async def test_who_waits_too_long_is_told_and_it_happens_later(autojump_clock) -> None:
    async with world() as everything, living(Life(everything)) as life:
        topic = await life.create_topic()
        await trio.sleep(1)
        life.faults.denied = True
        started = trio.current_time()
        first = life.publish(topic, [b"a"])
        await trio.sleep(20)
        second = life.publish(topic, [b"b"])
        await trio.sleep(70)
        assert [count for _, count, _ in life.stalled] == [1, 1, 1, 1]  # each twice: after 30 s, and after 60 s
        at, _, error = life.stalled[0]
        assert 30 <= at - started <= 40
        assert isinstance(error, StorageUnavailableError)
        assert "memory://" in str(error)
        assert "denied" in str(error)
        life.faults.denied = False
        await life.wait(first)
        await life.wait(second)
        await trio.sleep(100)
        assert len(life.stalled) == 4
        await life.check_promises()


async def test_publishes_wait_while_too_much_is_pending(autojump_clock) -> None:
    limits = Limits(journal_pending_bytes=100 * KIB, journal_full_wait_s=5.0)
    async with world() as everything, living(Life(everything, limits)) as life:
        topic = await life.create_topic()
        await trio.sleep(1)
        life.faults.down = True
        entry = life.publish(topic, [bytes(90 * KIB)])
        assert not life.journal.try_admit(20 * KIB)
        assert life.journal.pending_bytes > 90 * KIB
        with pytest.raises(StorageUnavailableError, match="injected fault: down"):
            await life.journal.admit(20 * KIB)
        life.faults.down = False
        await life.journal.admit(20 * KIB)
        assert life.journal.pending_bytes == 0
        await life.wait(entry)


async def test_a_lost_commit_is_named_and_nothing_behind_it_is_deleted(autojump_clock) -> None:
    async with world() as everything:
        async with living(Life(everything), close=False) as life:
            topic = await life.create_topic()
            for number in range(4):
                await life.wait(life.publish(topic, [b"%d" % number]))
        keys = everything.commits()
        missing = sorted(keys)[-3]
        data, _ = everything.space.objects[missing]
        everything.space.remove(missing)
        with pytest.raises(DataLossError, match=f"{missing}: this commit is missing"):
            await Life(everything).claim()
        assert set(keys) - {missing} <= set(everything.commits())
        everything.space.store(missing, data, 0)
        async with living(Life(everything)) as life:
            await life.check_promises()


async def test_a_damaged_commit_is_named(autojump_clock) -> None:
    async with world() as everything:
        async with living(Life(everything), close=False) as life:
            topic = await life.create_topic()
            await life.wait(life.publish(topic, [b"x" * 100]))
        damaged = sorted(everything.commits())[-1]
        data = bytearray(everything.space.objects[damaged][0])
        data[80] ^= 1
        everything.space.store(damaged, bytes(data), 0)
        with pytest.raises(DataLossError, match=f"{damaged}: the commit is damaged"):
            await Life(everything).claim()


async def test_a_damaged_answer_is_not_a_damaged_commit(autojump_clock) -> None:
    async with world() as everything:
        async with living(Life(everything), close=False) as life:
            topic = await life.create_topic()
            await life.wait(life.publish(topic, [b"x" * 100]))
        life = Life(everything)
        seen: set[str] = set()
        get = life.network.get

        async def get_damaged_once(key: str, start: int = 0, end: int | None = None) -> bytes:
            data = bytearray(await get(key, start, end))
            if key not in seen:
                seen.add(key)
                data[len(data) // 2] ^= 4
            return bytes(data)

        life.network.get = get_damaged_once  # type: ignore[method-assign]
        async with living(life):
            assert len(seen) > 2
            await life.check_promises()


async def test_a_backend_that_cannot_carry_it_is_refused(autojump_clock) -> None:
    async with world() as everything:
        life = Life(everything)
        storage = Storage(MemoryBackend(durable=False), random=Random(0), limits=LIMITS)
        catalogue = await claim(everything.store, "x")
        with pytest.raises(ConfigurationError, match="is not durable"):
            RemoteJournal(
                storage,
                catalogue,
                life,
                LIMITS,
                place=CLUSTER,
                owner="a",
                wall_clock_us=wall_clock_us,
                manifests_current=lambda: True,
            )


async def test_pending_entries_of_a_cancelled_journal_get_a_retryable_error(autojump_clock) -> None:
    async with world() as everything:
        life = Life(everything)
        async with living(life, close=False):
            topic = await life.create_topic()
            life.faults.down = True
            entry = life.publish(topic, [b"x"])
            await trio.sleep(1)
        error = life.errors[entry]
        assert isinstance(error, UnavailableError)
        assert error.retryable
        with pytest.raises(UnavailableError):
            await life.journal.admit(10)


async def test_a_former_owner_may_go_on_while_its_commits_are_read(autojump_clock) -> None:
    limits = msgspec.structs.replace(LIMITS, remote_snapshot_commits=1)
    async with world() as everything:
        old = Life(everything, limits)
        with pytest.RaisesGroup(OwnerFencedError):
            async with living(old, close=False):
                topic = await old.create_topic()
                await old.wait(old.ack(1))
                await trio.sleep(1)
                new = Life(everything)
                get = new.network.get
                gaps: list[str] = []

                async def get_and_let_it_go_on(key: str, start: int = 0, end: int | None = None) -> bytes:
                    if not gaps and key not in everything.commits():  # all that was listed is read
                        gaps.append(key)
                        former = everything.commits()
                        await old.wait(old.publish(topic, [b"the last one"]))
                        await trio.sleep(1)
                        await old.wait(old.ack(1))
                        await trio.sleep(1)
                        assert not {name for name in former if name < key} & set(everything.commits())
                        assert key in everything.commits()
                    return await get(key, start, end)

                new.network.get = get_and_let_it_go_on  # type: ignore[method-assign]
                await everything.lose_metadata()
                async with living(new, close=False):
                    await new.check_promises()
                    await trio.sleep(1)  # it has put its first snapshot, and nothing behind it
                await everything.lose_metadata()
                async with living(Life(everything)) as third:
                    await third.check_promises()
                    assert third.topics == {topic: 1}
                    late = old.ack(1)
                    with pytest.raises(OwnerFencedError):
                        await old.wait(late)


async def test_a_snapshot_that_is_larger_than_an_object_may_be(autojump_clock) -> None:
    async with world() as everything:
        everything.max_object_bytes = 2000
        topics = []
        for turn in range(3):
            async with living(Life(everything), close=turn == 1) as life:
                assert sorted(life.topics) == topics
                for _ in range(20):
                    topics.append(await life.create_topic())
                    await life.wait(life.publish(topics[-1], [b"%d" % len(topics)]))
                assert max(map(len, (data for data, _ in everything.space.objects.values()))) <= 2000
                for _ in range(3 * LIMITS.remote_snapshot_commits):
                    await life.wait(life.ack(1))
                await trio.sleep(1)
                assert pieces_of(everything)
                assert len({key.partition("-0000")[0] for key in pieces_of(everything)}) <= 2  # the others are gone
            await everything.lose_metadata()
        async with living(Life(everything)) as life:
            assert sorted(life.topics) == topics
            await life.check_promises()


def pieces_of(everything: World) -> list[str]:
    return sorted(key.rpartition("/")[2] for key in everything.space.objects if key.startswith("wal-pieces/"))


@pytest.mark.parametrize("trouble", ["missing", "damaged"])
async def test_a_piece_of_a_snapshot_that_is_not_what_it_was_is_named(trouble: str, autojump_clock) -> None:
    async with world() as everything:
        everything.max_object_bytes = 2000
        async with living(Life(everything)) as life:
            for _ in range(40):
                await life.create_topic()
        key = max(key for key in everything.space.objects if key.startswith("wal-pieces/"))
        data = everything.space.objects[key][0]
        everything.space.remove(key)
        if trouble == "damaged":
            everything.space.store(key, bytes([data[0] ^ 1]) + data[1:], 0)
        with pytest.raises(DataLossError, match="restore"):
            await Life(everything).claim()
        everything.space.store(key, data, 0)
        async with living(Life(everything)) as life:
            assert len(life.topics) == 40


async def test_commits_fit_the_objects_of_their_backend(autojump_clock) -> None:
    """A commit that is too large would be refused for good, and end the broker."""
    async with world() as everything:
        everything.max_object_bytes = 40 * KIB
        async with living(Life(everything)) as life:
            topic = await life.create_topic()
            entries = [life.publish(topic, [b"x" * 100]) for _ in range(500)]
            for entry in entries:
                await life.wait(entry)
            await life.check_promises()
