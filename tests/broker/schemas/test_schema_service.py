"""Changes of the registry by several brokers, over metadata that refuse, lose answers, and deliver changes late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest
import trio

from danube.broker.operations.schemas import SchemaOperations
from danube.broker.schemas.replica import NEGATIVE_S, PREFIX, REACH_S, Replica
from danube.broker.schemas.service import TRIES, SchemaService
from danube.metadata.memory import MemoryStore
from danube.model.errors import (
    DanubeError,
    LimitExceededError,
    SchemaNotFoundError,
    SchemaVersionDeletedError,
    SubjectNotFoundError,
    UnavailableError,
)
from danube.model.limits import Limits
from danube.model.schema_api import DeleteSchema
from danube.registry.changing import delete_version
from danube.registry.requests import Call
from danube.schema import LATEST, Book, Change, Examination, Finding, Level, Proposal, SchemaLimits, SchemaType, examine
from danube.schema.records import PREFIX as RECORDS
from danube.testing.metadata import FaultyMetadataStore

pytestmark = pytest.mark.virtual

SUBJECT = "/default/orders-value"


def fixed(size: int, subject: str = SUBJECT) -> Proposal:
    """Return an Avro schema of so many bytes."""
    text = f'{{"type": "fixed", "name": "F", "size": {size}}}'
    return Proposal(subject=subject, type=SchemaType.AVRO, text=text)


class OneBroker:
    """The registry of one broker, with its own way to the metadata."""

    def __init__(self, store: MemoryStore, random: Random) -> None:
        self.store = FaultyMetadataStore(store, random)
        self.replica = Replica(self.store)
        self.examined = 0
        self.service = SchemaService(self.store, self.replica, lambda: 1_000_000, self.examine)

    async def examine(self, examination: Examination) -> Finding:
        self.examined += 1
        await trio.sleep(0.001)
        return examine(examination)


@asynccontextmanager
async def brokers(count: int, seed: int = 1) -> AsyncIterator[list[OneBroker]]:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(MemoryStore(limits=Limits(metadata_history_revisions=20)))
        found = [OneBroker(store, Random(seed * 100 + index)) for index in range(count)]
        nursery = await stack.enter_async_context(trio.open_nursery())
        for each in found:
            await nursery.start(each.replica.run)
        with trio.fail_after(10_000):
            yield found
        nursery.cancel_scope.cancel()


def versions(book: Book, subject: str = SUBJECT) -> list[tuple[int, str]]:
    return [(each.version.version, each.schema.text) for each in book.entries(subject, deleted=True)]


async def test_limits_of_the_broker_are_those_of_its_registry() -> None:
    async with MemoryStore() as store, trio.open_nursery() as nursery:
        replica = Replica(store, None, Limits(max_subjects=1, max_versions_per_subject=2))
        await nursery.start(replica.run)

        async def examined(examination: Examination) -> Finding:
            return examine(examination)

        service = SchemaService(store, replica, lambda: 1, examined)
        await service.register(fixed(1))
        await service.change(lambda book: book.set_level(None, Level.NONE))
        await service.register(fixed(2))
        with pytest.raises(LimitExceededError, match="max_versions_per_subject is 2"):
            await service.register(fixed(3))
        with pytest.raises(LimitExceededError, match="max_subjects is 1"):
            await service.register(fixed(1, "other"))
        nursery.cancel_scope.cancel()


async def test_a_full_registry_says_so_at_once() -> None:
    async with brokers(1) as (one,):
        one.replica._book = Book(SchemaLimits(max_subjects=1))
        await one.service.register(fixed(1))
        before = trio.current_time()
        with pytest.raises(LimitExceededError, match="max_subjects"):
            await one.service.register(fixed(2, "other"))
        assert trio.current_time() - before < 0.05, "it was tried once"


def test_the_prefix_is_that_of_the_records() -> None:
    assert PREFIX == RECORDS


@pytest.mark.parametrize("seed", range(20))
async def test_brokers_that_register_at_once_make_one_number_and_one_version(seed: int) -> None:
    async with brokers(3, seed) as all_brokers:
        await all_brokers[0].service.change(lambda book: book.set_level(None, Level.NONE))
        for each in all_brokers:
            each.store.latency_s, each.store.refuse, each.store.break_watch = 0.02, 0.1, 0.1
            each.store.lose_answer, each.store.hold = 0.2, 0.1
        given: dict[int, set[tuple[int, int, int]]] = {size: set() for size in range(1, 6)}

        async def register(broker: OneBroker, size: int) -> None:
            while True:
                try:
                    found = await broker.service.register(fixed(size))
                except UnavailableError:
                    continue
                given[size].add((found.number, found.version, found.subject_number))
                return

        async def deliver() -> None:
            while True:
                await trio.sleep(0.05)
                for each in all_brokers:
                    await each.store.arrive()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            async with trio.open_nursery() as registering:
                for size in given:
                    for each in all_brokers:
                        registering.start_soon(register, each, size)
            nursery.cancel_scope.cancel()
        for each in all_brokers:
            each.store.refuse = each.store.lose_answer = each.store.hold = each.store.break_watch = 0.0
            await each.store.arrive()
        books = [await each.service.current() for each in all_brokers]
        assert {size: len(found) for size, found in given.items()} == dict.fromkeys(given, 1), "one number and version"
        made = {next(iter(found)) for found in given.values()}
        assert {version for _, version, _ in made} == set(range(1, 6))
        assert len({number for number, _, _ in made}) == 5
        assert len({subject for _, _, subject in made}) == 1
        assert versions(books[0]) == versions(books[1]) == versions(books[2])
        assert len(versions(books[0])) == 5


async def test_only_one_of_two_registrations_has_made_the_version() -> None:
    async with brokers(2) as (a, b):
        a.store.latency_s = b.store.latency_s = 0.01
        made: list[bool] = []

        async def register(broker: OneBroker) -> None:
            made.append((await broker.service.register(fixed(1))).is_new)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(register, a)
            nursery.start_soon(register, b)
        assert sorted(made) == [False, True]


async def test_a_change_whose_answer_is_lost_is_found_to_be_made() -> None:
    async with brokers(1) as (a,):
        await a.service.register(fixed(1))
        await a.service.register(fixed(1, "other"))

        async def lose() -> None:
            await trio.sleep(0.04)  # the pause before the next attempt is 0.05 s
            a.store.lose_answer = 0.0

        async def losing(call: object) -> object:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose)
                return await call  # type: ignore[misc]

        current = a.service.current

        async def lossless() -> Book:
            lost, a.store.lose_answer = a.store.lose_answer, 0.0
            book = await current()
            a.store.lose_answer = lost
            return book

        a.service.current = lossless  # type: ignore[method-assign]
        a.store.lose_answer = 1.0
        found = await losing(a.service.register(fixed(2, "third")))
        assert found.is_new  # type: ignore[attr-defined]
        a.store.lose_answer = 1.0
        gone, _ = await losing(a.service.change_with(lambda book: book.delete_version(SUBJECT, 1)))  # type: ignore[misc]
        assert gone == 1
        assert a.store.faults["lose_answer"] == 2
        with pytest.raises(SchemaVersionDeletedError):
            await a.service.change_with(lambda book: book.delete_version(SUBJECT, 1))


async def delete_by_operation(service: SchemaService, version: int) -> list[int]:
    operations = SchemaOperations(service, None)  # type: ignore[arg-type] - topics have no part in it
    return (await operations.delete(DeleteSchema(SUBJECT, version))).versions


async def delete_by_request(service: SchemaService, version: int) -> list[int]:
    call = Call({"subject": SUBJECT, "version": str(version)}, {})
    gone, _ = await service.change_with(lambda book: delete_version(book, call))
    return [gone]


@pytest.mark.parametrize("delete", [delete_by_operation, delete_by_request])
@pytest.mark.parametrize("version", [LATEST, 3])
async def test_a_deletion_without_an_answer_deletes_one_version(
    delete: Callable[[SchemaService, int], Awaitable[list[int]]], version: int
) -> None:
    """Also if the subject has been changed when it is repeated: the latest version is another one by then."""
    async with brokers(2) as (a, b):
        await a.service.change(lambda book: book.set_level(None, Level.NONE))
        for size in range(1, 4):
            await a.service.register(fixed(size))
        write = a.service._write

        async def write_unanswered(change: Change) -> None:
            a.service._write = write  # type: ignore[method-assign]
            await write(change)
            await b.service.register(fixed(4))
            raise UnavailableError("no answer")

        a.service._write = write_unanswered  # type: ignore[method-assign]
        assert await delete(a.service, version) == [3]
        assert (await a.service.current()).versions(SUBJECT) == [1, 2, 4]
        with pytest.raises(SchemaVersionDeletedError):
            await delete(a.service, 3)


async def test_what_one_broker_has_registered_another_one_finds_at_once() -> None:
    async with brokers(2) as (a, b):
        for size in range(1, 30):
            found = await a.service.register(fixed(size, f"s{size}"))
            assert (await b.service.schema(found.number)).text == fixed(size).text
            assert (await b.service.fresh()).entry(f"s{size}").number == found.number


async def test_what_is_missing_is_asked_for_once_a_second() -> None:
    async with brokers(1) as (a,):
        asked = 0
        get = a.store.get

        async def counted(key: str) -> object:
            nonlocal asked
            asked += 1
            return await get(key)

        a.store.get = counted  # type: ignore[method-assign, assignment]
        for _ in range(5):
            with pytest.raises(SchemaNotFoundError):
                await a.service.schema(7)
        assert asked == 1
        with pytest.raises(SubjectNotFoundError):
            await a.service.find(lambda book: book.entry("x"))
        assert asked == 2, "of another one nothing was known"
        await trio.sleep(NEGATIVE_S)
        with pytest.raises(SchemaNotFoundError):
            await a.service.schema(7)
        assert asked == 3


async def test_reading_goes_on_while_the_metadata_do_not_answer_and_changes_fail() -> None:
    async with brokers(1) as (a,):
        found = await a.service.register(fixed(1))
        a.store.refuse = 1.0
        assert (await a.service.schema(found.number)).name == "F"
        assert (await a.service.fresh()).subjects() == [SUBJECT]
        with pytest.raises(UnavailableError):
            await a.service.current()
        before = a.store.faults["refuse"]
        with pytest.raises(UnavailableError):
            await a.service.register(fixed(2))
        assert a.store.faults["refuse"] == before + TRIES
        a.store.refuse = 0.0
        assert (await a.service.register(fixed(1))).is_new is False


async def test_what_is_missing_here_is_unavailable_while_the_metadata_do_not_answer() -> None:
    async with brokers(2) as (a, b):
        await b.service.register(fixed(1))
        await deafen(b, a)
        made = await a.service.register(fixed(2))
        await a.service.register(fixed(1, "other"))
        b.store.refuse = 1.0
        service = b.service
        assert (await service.read(lambda book: book.entry(SUBJECT, 1))).version.version == 1
        assert (await service.lookup(fixed(1))) is not None
        for ask in (
            lambda: service.schema(made.number),
            lambda: service.read(lambda book: book.entry(SUBJECT, made.version)),
            lambda: service.read(lambda book: book.entries("other")),
            lambda: service.lookup(fixed(2)),
            lambda: service.lookup(fixed(1, "other")),
            lambda: service.check(fixed(3), made.version),
        ):
            with pytest.raises(UnavailableError):
                await ask()
        b.store.refuse = 0.0
        b.store.break_watch = 0.0
        assert (await service.read(lambda book: book.entry(SUBJECT, made.version))).number == made.number
        with pytest.raises(SubjectNotFoundError):
            await service.read(lambda book: book.entry("nothing"))
        assert await service.lookup(fixed(9)) is None


async def test_a_known_text_is_not_parsed_again() -> None:
    async with brokers(1) as (a,):
        await a.service.register(fixed(1))
        assert a.examined == 1
        for _ in range(3):
            assert not (await a.service.register(fixed(1))).is_new
            assert await a.service.lookup(fixed(1)) is not None
        assert a.examined == 1
        assert await a.service.lookup(fixed(2)) is None
        with pytest.raises(SubjectNotFoundError):
            await a.service.lookup(fixed(1, "other"))
        assert a.examined == 2, "a subject that does not exist costs no examination"


async def deafen(broker: OneBroker, other: OneBroker) -> None:
    """Let the watch of a broker fail from now on: with the step after the next change, which it waits for."""
    broker.store.break_watch = 1.0
    await other.service.change(lambda book: book.set_level(None, Level.NONE))
    await trio.sleep(0.1)


async def test_a_watch_that_falls_behind_and_a_damaged_record_leave_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    async with brokers(2) as (a, b):
        await deafen(b, a)
        for size in range(1, 31):  # more changes than the history has
            await a.service.register(fixed(size))
        assert b.service.book.subjects() == []
        b.store.break_watch = 0.0
        await trio.sleep(REACH_S)
        assert len(versions(b.service.book)) == 30
        await a.store.put(f"{PREFIX}/subjects/broken", b"\xc1")
        assert (await a.service.register(fixed(31))).version == 31
        assert "the record /schemas/subjects/broken of the schema registry is unusable" in caplog.text


async def test_a_replica_that_hears_nothing_says_so() -> None:
    async with brokers(2) as (a, b):
        await deafen(b, a)
        await a.service.register(fixed(1))
        with pytest.raises(UnavailableError, match="report no changes"):
            await b.service.current()
        assert (await b.service.fresh()).subjects() == []


async def test_a_cancelled_registration_leaves_the_service_usable() -> None:
    async with brokers(1) as (a,):
        a.store.latency_s = 1.0
        for wait_s in (0.1, 0.5, 1.0, 2.0, 3.0):
            with trio.move_on_after(wait_s):
                await a.service.register(fixed(1))
        assert (await a.service.register(fixed(1))).version == 1
        assert len(versions(a.service.book)) == 1


async def test_errors_of_a_change_are_those_of_a_current_registry() -> None:
    async with brokers(2) as (a, b):
        await deafen(b, a)
        await a.service.register(fixed(1))
        b.store.break_watch = 0.0
        gone, _ = await b.service.change_with(lambda book: book.delete_subject(SUBJECT))
        assert gone == [1]
        with pytest.raises(DanubeError, match="deleted already"):
            await a.service.change_with(lambda book: book.delete_subject(SUBJECT))
