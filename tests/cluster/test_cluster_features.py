"""Feature levels: what holds them back, when they rise by themselves, and how they are raised in the metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import msgspec
import pytest
import trio

from danube.cluster import membership as membership_module
from danube.cluster.features import FEATURE_LEVEL, MOVES_LEVEL, UPGRADE_AFTER_S, Older, due_level, outlook
from danube.cluster.forming import Founding
from danube.cluster.membership import Membership
from danube.cluster.records import (
    BROKERS,
    CLUSTER_KEY,
    BrokerRecord,
    BrokerState,
    ClusterRecord,
    LastStart,
    SessionRecord,
)
from danube.cluster.upgrading import Upgrading
from danube.metadata import MemoryStore
from danube.model.errors import ConfigurationError, FailedPreconditionError

pytestmark = pytest.mark.virtual

_encode = msgspec.msgpack.encode


def record(level: int, state: BrokerState = BrokerState.ACTIVE) -> BrokerRecord:
    return BrokerRecord(identity="x", feature_level=level, state=state)


def running(level: int) -> SessionRecord:
    return SessionRecord(address="x:6650", feature_level=level)


def test_brokers_with_a_session_and_those_that_may_return_hold_the_level_back() -> None:
    brokers = {"b1": record(2), "b2": record(1), "b10": record(1), "b3": record(1, BrokerState.GONE)}
    found = outlook(1, brokers, {"b1": running(2), "b2": running(1)})
    assert (found.level, found.possible, found.newest) == (1, 1, 2)
    assert found.older == (Older("b2", 1, True), Older("b10", 1, False))


def test_a_session_says_more_than_the_record_of_a_broker() -> None:
    assert outlook(1, {"b1": record(1)}, {"b1": running(2)}).possible == 2
    assert outlook(1, {"b1": record(2)}, {"b1": running(1)}, newest=2).older == (Older("b1", 1, True),)


def test_a_broker_that_was_forgotten_holds_back_while_it_still_runs() -> None:
    brokers = {"b1": record(2), "b2": record(1, BrokerState.GONE)}
    assert outlook(1, brokers, {"b2": running(1)}).possible == 1
    assert outlook(1, brokers, {}).possible == 2


def test_the_level_never_falls() -> None:
    assert outlook(2, {"b1": record(1)}, {}).possible == 2
    assert outlook(2, {}, {}).possible == 2


def test_the_level_rises_by_itself_after_an_hour() -> None:
    ready, held = outlook(1, {"b1": record(2)}, {}), outlook(1, {"b1": record(2), "b2": record(1)}, {})
    assert due_level(ready, 100.0, 100.0 + UPGRADE_AFTER_S - 0.1) is None
    assert due_level(ready, 100.0, 100.0 + UPGRADE_AFTER_S) == 2
    assert due_level(held, 0.0, 1e9) is None


def test_what_the_first_clusters_wrote_is_level_one() -> None:
    old = msgspec.msgpack.encode(["identity", "active", "", [], 3, 4])
    assert msgspec.msgpack.decode(old, type=BrokerRecord).feature_level == 1


class _Broker:
    """A member that may have an older version."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.name = name
        self.last_start = LastStart(0, 0)
        self.member = Membership(
            store,
            cluster="danube",
            identity=name,
            record=SessionRecord(address=f"{name}:6650"),
            storages=("default",),
            random=Random(name),
        )
        self.coordinates = False
        self.upgrading = Upgrading(store, self.member, lambda: self.coordinates)

    async def join(self) -> None:
        await self.member.join(self.last_start.life, self.last_start, self.store_start)

    async def store_start(self, life: int, start: int) -> None:
        self.last_start = LastStart(life, start)


@asynccontextmanager
async def _cluster(
    monkeypatch: pytest.MonkeyPatch, *levels: int, raised: bool = False
) -> AsyncIterator[tuple[MemoryStore, list[_Broker]]]:
    """Brokers of these levels, in a cluster that began at the lowest."""
    async with MemoryStore() as store, trio.open_nursery() as nursery:
        brokers = [_Broker(store, f"m{number}") for number in range(len(levels))]
        level = max(levels) if raised else min(levels)
        await store.put(CLUSTER_KEY, _encode(ClusterRecord(name="danube", incarnation=1, feature_level=level)))
        for broker, known in zip(brokers, levels, strict=True):
            monkeypatch.setattr(membership_module, "FEATURE_LEVEL", known)
            await broker.join()
            await nursery.start(broker.member.run)
        monkeypatch.setattr(membership_module, "FEATURE_LEVEL", FEATURE_LEVEL)
        await trio.sleep(1)
        yield store, brokers
        nursery.cancel_scope.cancel()


async def _level(store: MemoryStore) -> int:
    item = await store.get(CLUSTER_KEY)
    assert item is not None
    return msgspec.msgpack.decode(item.value, type=ClusterRecord).feature_level


async def test_a_new_cluster_begins_at_the_newest_level() -> None:
    async with MemoryStore() as store:
        broker = _Broker(store, "m0")
        await broker.join()
        assert await _level(store) == FEATURE_LEVEL
        assert broker.member.may_move()
        broker.member.check_moves()


async def test_an_upgrade_is_refused_while_a_broker_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _cluster(monkeypatch, 1, FEATURE_LEVEL) as (store, (_, new)):
        assert not new.member.may_move()
        with pytest.raises(FailedPreconditionError, match=f"topics move from level {MOVES_LEVEL} on"):
            new.member.check_moves()
        with pytest.raises(FailedPreconditionError, match="stays 1: b1 knows level 1, and others know level 2"):
            await new.upgrading.upgrade()
        assert await _level(store) == 1


async def test_an_upgrade_reaches_all_brokers_and_shuts_old_versions_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _cluster(monkeypatch, 1, 1) as (store, brokers):
        for broker in brokers:  # upgraded, and restarted
            record = msgspec.structs.replace(broker.member.brokers.values[broker.member.broker], feature_level=2)
            await store.put(BROKERS + broker.member.broker, _encode(record))
            sessions = broker.member.sessions
            name = broker.member.broker
            shown = msgspec.structs.replace(sessions.values[name], feature_level=2)
            await store.put(f"/sessions/{name}", _encode(shown))
        await trio.sleep(1)
        monkeypatch.setattr(type(brokers[0].member), "session", lambda _self: ())  # its key was rewritten above
        told: list[int] = []
        brokers[1].member.on_cluster.append(lambda: told.append(brokers[1].member.cluster.feature_level))
        found = await brokers[0].upgrading.upgrade()
        assert (found.level, found.newest) == (1, 2)
        await trio.sleep(1)
        assert told == [2]
        assert brokers[1].member.may_move()
        assert (await brokers[1].upgrading.upgrade()).level == 2
        monkeypatch.setattr(membership_module, "FEATURE_LEVEL", 1)
        old = _Broker(store, "m1")
        old.last_start = brokers[1].last_start
        with pytest.raises(ConfigurationError, match="uses features of level 2"):
            await old.join()


class _Ambushed:
    """The metadata; once, while something is read, something else happens."""

    def __init__(self, store: MemoryStore, reads: str, happens: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._reads: str | None = reads
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def _after(self, key: str) -> None:
        if key == self._reads:
            self._reads = None
            await self._happens()

    async def get(self, key: str) -> Any:
        found = await self._store.get(key)
        await self._after(key)
        return found

    async def list(self, prefix: str) -> Any:
        found = await self._store.list(prefix)
        await self._after(prefix)
        return found


@asynccontextmanager
async def _set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[MemoryStore, list[_Broker]]]:
    """Two new brokers in a cluster of level 1."""
    async with _cluster(monkeypatch, FEATURE_LEVEL, FEATURE_LEVEL) as (store, brokers):
        await store.put(CLUSTER_KEY, _encode(ClusterRecord(name="danube", incarnation=1, feature_level=1)))
        for each in brokers:
            each.member.cluster = msgspec.structs.replace(each.member.cluster, feature_level=1)
        yield store, brokers


@pytest.mark.parametrize("read", [CLUSTER_KEY, BROKERS, "/sessions/"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "late"])
async def test_an_old_version_that_starts_meanwhile_is_not_overlooked(
    monkeypatch: pytest.MonkeyPatch, read: str, is_known: bool
) -> None:
    """Whether the table of this broker shows it already or not."""
    async with _set_back(monkeypatch) as (store, (one, _)):
        record = msgspec.structs.replace(one.member.brokers.values["b2"], life=7, feature_level=1)
        shown = msgspec.structs.replace(one.member.sessions.values["b2"], feature_level=1)

        async def start() -> None:
            await store.put(BROKERS + "b2", _encode(record))
            await store.put("/sessions/b2", _encode(shown))
            if is_known:
                await trio.sleep(1)

        one.upgrading._store = cast("Any", _Ambushed(store, read, start))
        with pytest.raises(FailedPreconditionError, match="b2 knows level 1"):
            await one.upgrading.upgrade()
        assert await _level(store) == 1
        await store.put(BROKERS + "b2", _encode(msgspec.structs.replace(record, feature_level=2)))
        await store.put("/sessions/b2", _encode(msgspec.structs.replace(shown, feature_level=2)))
        await trio.sleep(1)
        await one.upgrading.upgrade()
        assert await _level(store) == 2


@pytest.mark.parametrize("is_founder", [True, False])
async def test_an_old_version_that_joins_meanwhile_is_not_overlooked(
    monkeypatch: pytest.MonkeyPatch, is_founder: bool
) -> None:
    founding = Founding("danube", 1, ("m0:6650", "m1:6650", "m2:6650"), ("m0", "m1", "m2")) if is_founder else None
    async with _set_back(monkeypatch) as (store, (one, _)):
        counted = ClusterRecord(name="danube", incarnation=1, feature_level=1, next_broker=4 if is_founder else 3)
        await store.put(CLUSTER_KEY, _encode(counted))
        one.member.cluster = counted
        old = _Broker(store, "m2")
        old.member._founding = founding

        async def join() -> None:
            monkeypatch.setattr(membership_module, "FEATURE_LEVEL", 1)
            await old.join()

        one.upgrading._store = cast("Any", _Ambushed(store, "/sessions/", join))
        with pytest.raises(FailedPreconditionError, match="b3 knows level 1"):
            await one.upgrading.upgrade()
        assert await _level(store) == 1


@pytest.mark.parametrize("is_founder", [True, False])
async def test_an_old_version_does_not_join_a_cluster_that_was_raised_meanwhile(
    monkeypatch: pytest.MonkeyPatch, is_founder: bool
) -> None:
    founding = Founding("danube", 1, ("m0:6650", "m1:6650", "m2:6650"), ("m0", "m1", "m2")) if is_founder else None
    async with _set_back(monkeypatch) as (store, (one, _)):
        counted = ClusterRecord(name="danube", incarnation=1, feature_level=1, next_broker=4 if is_founder else 3)
        await store.put(CLUSTER_KEY, _encode(counted))
        one.member.cluster = counted
        old = _Broker(store, "m2")
        old.member._founding = founding
        monkeypatch.setattr(membership_module, "FEATURE_LEVEL", 1)

        async def store_start(life: int, start: int) -> None:
            await one.upgrading.upgrade()

        with pytest.raises(ConfigurationError, match="uses features of level 2"):
            await old.member.join(0, LastStart(0, 0), store_start)
        assert await store.get(BROKERS + "b3") is None


async def test_the_coordinator_raises_the_level_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _cluster(monkeypatch, FEATURE_LEVEL, FEATURE_LEVEL) as (store, (one, two)):
        await store.put(CLUSTER_KEY, _encode(ClusterRecord(name="danube", incarnation=1, feature_level=1)))
        for each in (one, two):
            each.member.cluster = msgspec.structs.replace(each.member.cluster, feature_level=1)
        one.coordinates = True
        async with trio.open_nursery() as nursery:
            for each in (one, two):
                nursery.start_soon(each.upgrading.run)
            await trio.sleep(UPGRADE_AFTER_S - 60)
            assert await _level(store) == 1
            await trio.sleep(120)
            assert await _level(store) == 2
            assert two.member.may_move()
            nursery.cancel_scope.cancel()
