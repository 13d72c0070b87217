"""``zookeeper://`` over simulated nodes: the conformance kit, and clients with bad networks, in virtual time."""

from __future__ import annotations

from random import Random

import pytest
import trio
from danube_metadata_zookeeper import ZooKeeperStore
from danube_metadata_zookeeper._nodes import CreateNode, DeleteNode, SetNode
from danube_metadata_zookeeper._records import Paths, Snapshot, decode
from simulated_zookeeper import SimulatedNodes, SimulatedZooKeeper

from danube.metadata import Condition, Delete, LeaseId, Put
from danube.model.errors import (
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    MetadataConflictError,
    NotFoundError,
    UnavailableError,
    WatchCompactedError,
)
from danube.model.limits import Limits
from danube.testing.metadata import MetadataStoreConformance
from danube.testing.metadata_history import MetadataHistory

pytestmark = pytest.mark.virtual

HISTORY = 400
LIMITS = Limits(metadata_history_revisions=HISTORY)


class TestSimulatedZooKeeper(MetadataStoreConformance):
    history_revisions = HISTORY

    @pytest.fixture(autouse=True)
    def _servers(self):
        self.servers = SimulatedZooKeeper()
        self.random = Random(1)

    def open_store(self):
        nodes = SimulatedNodes(self.servers, self.random, latency_s=0.001, lag_s=0.002)
        return ZooKeeperStore(nodes, "/some/where", limits=LIMITS, random=self.random)


class TestAtTheRoot(TestSimulatedZooKeeper):
    """Without a prefix, and without latency: more is committed together."""

    def open_store(self):
        return ZooKeeperStore(SimulatedNodes(self.servers, self.random), "", limits=LIMITS, random=self.random)


def opened(servers: SimulatedZooKeeper, seed: int = 0, limits: Limits = LIMITS, **options) -> ZooKeeperStore:
    random = Random(seed)
    return ZooKeeperStore(
        SimulatedNodes(servers, random, latency_s=0.001, lag_s=0.01), "/d", limits=limits, random=random, **options
    )


# Several clients in a bad network


class Member:
    """A client that does random things, opens its store again now and then, and records what it sees."""

    def __init__(self, name: str, servers: SimulatedZooKeeper, history: MetadataHistory, random: Random) -> None:
        self.name = name
        self.servers = servers
        self.history = history
        self.random = random
        self.leases: list[LeaseId] = []
        self.unknown = 0

    async def live(self, lives: int, steps: int) -> None:
        for _ in range(lives):
            nodes = SimulatedNodes(self.servers, self.random, latency_s=0.01, lose_answer=0.05, lag_s=0.05)
            try:
                store = ZooKeeperStore(nodes, "/d", limits=LIMITS, random=self.random)
                async with store, trio.open_nursery() as nursery:
                    nursery.start_soon(self.tell, store)
                    nursery.start_soon(self.disturb, nodes)
                    async with trio.open_nursery() as users:
                        for _ in range(3):
                            users.start_soon(self.use, store, steps)
                    nursery.cancel_scope.cancel()
            except* UnavailableError:
                self.unknown += 1
            nodes.lose_answer = 0
            nodes.arrive()

    async def disturb(self, nodes: SimulatedNodes) -> None:
        while True:
            await trio.sleep(self.random.uniform(0.05, 0.5))
            fault = self.random.randrange(4)
            if fault == 0:
                nodes.reconnect(expire=self.random.random() < 0.5)
            elif fault == 1:
                nodes.arrive()
            elif fault == 2:
                nodes.is_cut = True
                await trio.sleep(self.random.uniform(0, 0.3))
                nodes.is_cut = False

    async def tell(self, store: ZooKeeperStore) -> None:
        async with store.watch("/", self.history.position[self.name] + 1) as watch:
            async for batch in watch:
                self.history.told(self.name, batch, trio.current_time())

    async def use(self, store: ZooKeeperStore, steps: int) -> None:
        for _ in range(steps):
            try:
                with trio.move_on_after(self.random.choice((0.005, 10, 10, 10))):
                    await self.step(store)
            except (UnavailableError, MetadataConflictError, NotFoundError):
                await trio.sleep(0.01)

    async def step(self, store: ZooKeeperStore) -> None:
        random, history, start = self.random, self.history, trio.current_time()
        key = f"/k/{random.randrange(8)}"
        match random.randrange(8):
            case 0:
                item = await store.get(key)
                history.read(start, trio.current_time(), key, item)
            case 1:
                items, revision = await store.list("/k")
                history.listed(start, trio.current_time(), "/k", items, revision)
            case 2:
                ttl_s = random.choice((0.5, 2.0))
                lease = await store.grant_lease(ttl_s)
                history.kept(lease, ttl_s, start, trio.current_time())
                self.leases.append(lease)
            case 3 if self.leases:
                lease = random.choice(self.leases)
                await store.keep_alive(lease)
                history.kept(lease, history.ttl(lease), start, trio.current_time())
            case 4 if self.leases and random.random() < 0.3:
                lease = random.choice(self.leases)
                history.revoking(lease)
                await store.revoke(lease)
            case _:
                item = await store.get(key)
                history.read(start, trio.current_time(), key, item)
                start = trio.current_time()
                conditions = [Condition(key, item.mod_revision if item else 0)] if random.random() < 0.5 else []
                lease = random.choice([None, *self.leases[-2:]])
                operations: list[Put | Delete] = [Put(key, b"%d" % random.randrange(1000), lease)]
                if random.random() < 0.3:
                    operations.append(Delete(f"/k/x{random.randrange(3)}"))
                if random.random() < 0.3:
                    operations.append(Put(f"/k/y{random.randrange(3)}", b""))
                result = await store.transact(conditions, operations)
                history.changed(start, trio.current_time(), conditions, operations, result.revision)


async def hold(store: ZooKeeperStore, history: MetadataHistory, key: str) -> None:
    """Put a key with a lease that is not renewed."""
    start = trio.current_time()
    lease = await store.grant_lease(0.5)
    history.kept(lease, 0.5, start, trio.current_time())
    start, operations = trio.current_time(), [Put(key, b"", lease)]
    result = await store.transact([], operations)
    history.changed(start, trio.current_time(), [], operations, result.revision)


@pytest.mark.parametrize("seed", range(12))
async def test_clients_with_bad_networks_see_one_linear_history(seed: int) -> None:
    servers, history, random = SimulatedZooKeeper(), MetadataHistory(), Random(seed)
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            members = [Member(f"m{number}", servers, history, Random(random.random())) for number in range(3)]
            for member in members:
                nursery.start_soon(member.live, 2, 25)
        async with opened(servers, seed) as store:
            await hold(store, history, "/k/last")
            await trio.sleep(10)  # all leases end
            items, revision = await store.list("/")
            assert all(item.lease is None for item in items)
            async with store.watch("/", history.position["m0"] + 1) as watch:
                while history.position["m0"] < revision:
                    history.told("m0", await watch.__anext__(), trio.current_time())
    assert history.check(items, revision) == []
    assert history.changes > 20
    assert history.reads > 20
    assert history.leases_ended > 0
    assert servers.refusals > 0


# The log


async def test_the_log_is_bounded_and_everything_can_be_read_again() -> None:
    """Snapshots replace the log; what the history must have is kept, and old pieces and entries are gone."""
    servers, paths = SimulatedZooKeeper(), Paths("/d")
    limits = Limits(metadata_history_revisions=300)
    expected: dict[str, bytes] = {}
    async with opened(servers, limits=limits) as store, opened(servers, 1, limits) as idle:
        lease = await store.grant_lease(3600)
        for number in range(1600):
            key = f"/k/{number % 40}"
            value = b"%d" % number * 200
            await store.put(key, value, lease=lease if number % 3 == 0 else None)
            expected[key] = value
            if number % 7 == 0:
                await store.delete(f"/k/{number % 11}")
                expected.pop(f"/k/{number % 11}", None)
        await trio.sleep(1)
        picture = await store.list("/")
        assert await idle.list("/") == picture
    assert {item.key: item.value for item in picture[0]} == expected
    names = [path for path in servers.nodes if path.startswith(paths.log + "/")]
    assert len(names) < 300 + 1024 + 2 * 128
    snapshot = decode(Snapshot, servers.nodes[paths.snapshot].data, paths.snapshot)
    assert snapshot.first > 1
    assert [path for path in servers.nodes if path.startswith(paths.pieces + "/")] == [
        paths.piece(name) for name in snapshot.pieces
    ]
    async with opened(servers, 2, limits) as again:
        assert await again.list("/") == picture
        await again.keep_alive(lease)
        assert await again.grant_lease(10) > lease
        async with again.watch("/", picture[1] - 200) as watch:
            assert [(await watch.__anext__()).revision for _ in range(201)][-1] == picture[1]
        with pytest.raises(WatchCompactedError):
            async with again.watch("/", 1):
                pass


async def test_a_client_that_was_away_for_longer_than_the_history() -> None:
    servers = SimulatedZooKeeper()
    limits = Limits(metadata_history_revisions=100)
    async with opened(servers, limits=limits) as store, opened(servers, 1, limits) as other:
        async with other.watch("/") as watch:
            other.nodes.is_cut = True
            for number in range(1600):
                last = await store.put("/k", b"%d" % number)
            await trio.sleep(1)
            other.nodes.is_cut = False
            other.nodes.reconnect()
            with pytest.raises(WatchCompactedError):
                await watch.__anext__()
        assert (await other.list("/"))[1] == last
        async with other.watch("/") as watch:
            revision = await store.put("/k", b"")
            assert (await watch.__anext__()).revision == revision


# Faults


async def test_a_lost_answer_is_unknown_and_the_store_goes_on() -> None:
    servers = SimulatedZooKeeper()
    async with opened(servers, 3) as store:
        store.nodes.lose_answer = 1.0
        for number in range(30):
            with pytest.raises(UnavailableError):
                await store.put(f"/k/{number}", b"")
        store.nodes.lose_answer = 0.0
        store.nodes.arrive()
        revision = await store.put("/end", b"")
        items, present = await store.list("/")
        assert present == revision
        assert 1 < len(items) < 31
        assert len({item.mod_revision for item in items}) == len(items)


async def test_no_server_answers() -> None:
    servers = SimulatedZooKeeper()
    async with opened(servers) as store:
        lease = await store.grant_lease(2)
        await store.put("/l", b"", lease=lease)
        store.nodes.is_cut = True
        for call in (lambda: store.get("/a"), lambda: store.put("/a", b""), lambda: store.keep_alive(lease)):
            with pytest.raises(UnavailableError):
                await call()
        await trio.sleep(60)
        store.nodes.is_cut = False
        await store.keep_alive(lease)  # nothing was ended meanwhile
        assert await store.get("/l") is not None
    servers.clients.clear()
    nodes = SimulatedNodes(servers, Random(0))
    nodes.is_cut = True
    with pytest.raises(UnavailableError):
        async with ZooKeeperStore(nodes, "/d"):
            pass


@pytest.mark.parametrize("what", ["gone", "founded again", "went back", "entry changed", "foreign entry"])
async def test_a_history_that_was_changed_by_others_is_told(what: str) -> None:
    servers, paths = SimulatedZooKeeper(), Paths("/d")
    async with opened(servers) as store, store.watch("/") as watch:
        await store.put("/a", b"1")
        await watch.__anext__()
        before = servers.nodes
        await store.put("/a", b"2")
        await watch.__anext__()
        match what:
            case "gone":
                servers.commit([DeleteNode(paths.revision)])
            case "founded again":
                async with ZooKeeperStore(SimulatedNodes(servers, Random(9)), "/e", random=Random(9)) as other:
                    await other.put("/b", b"")
                    await other.put("/b", b"")
                    await other.put("/b", b"")
                servers.commit([SetNode(paths.revision, servers.nodes["/e/revision"].data)])
            case "went back":
                servers.commit([SetNode(paths.revision, before[paths.revision].data)])
            case "entry changed":
                async with opened(servers, 7) as other:
                    store.nodes.is_cut = True
                    await other.put("/b", b"")
                servers.commit([SetNode(paths.entry(3), servers.nodes[paths.entry(2)].data)])
                store.nodes.is_cut = False
            case "foreign entry":
                servers.commit([CreateNode(paths.entry(3), b"what?")])
        with pytest.raises(DataLossError, match="ZooKeeper"):
            await store.put("/c", b"")
        with pytest.raises(DataLossError):
            await watch.__anext__()
        with pytest.raises(DataLossError):
            await store.get("/a")


async def test_a_root_with_nodes_of_another_program_is_refused() -> None:
    servers, paths = SimulatedZooKeeper(), Paths("/d")
    servers.commit([CreateNode("/d"), CreateNode(paths.log)])
    with pytest.raises(FailedPreconditionError, match="/d has nodes of another program"):
        async with opened(servers):
            pass
    servers.commit([CreateNode(paths.revision, b"other")])
    with pytest.raises(DataLossError, match="/d/revision does not hold Danube's metadata"):
        async with opened(servers):
            pass


async def test_parts_that_are_missing_are_told() -> None:
    servers, paths = SimulatedZooKeeper(), Paths("/d")
    async with opened(servers) as store:
        for number in range(3):
            await store.put("/a", b"%d" % number)
    servers.commit([DeleteNode(paths.entry(2))])
    with pytest.raises(DataLossError, match="incomplete"):
        async with opened(servers):
            pass
    servers.commit([DeleteNode(paths.snapshot)])
    with pytest.raises(DataLossError, match="/d/snapshot is gone"):
        async with opened(servers):
            pass


async def test_the_node_of_a_lease_was_deleted_by_another_program() -> None:
    """The lease has ended; its keys go with it as soon as its time is up."""
    servers, paths = SimulatedZooKeeper(), Paths("/d")
    async with opened(servers) as store:
        lease, other = await store.grant_lease(2), await store.grant_lease(3600)
        await store.put("/a", b"", lease=lease)
        await store.put("/b", b"", lease=other)
        servers.commit([DeleteNode(paths.lease(lease))])
        servers.commit([DeleteNode(paths.lease(other))])
        with pytest.raises(NotFoundError):
            await store.keep_alive(lease)
        await trio.sleep(10)
        assert await store.get("/a") is None
        assert await store.revoke(other) is not None
        assert await store.get("/b") is None


# Limits


async def test_a_change_that_does_not_fit_into_a_packet_is_refused() -> None:
    servers = SimulatedZooKeeper(256 * 1024)
    async with opened(servers, max_packet_bytes=256 * 1024) as store:
        await store.put("/a", bytes(230_000))
        with pytest.raises(
            InvalidArgumentError, match=r"raise jute\.maxbuffer of the servers and the option max_packet"
        ):
            await store.put("/a", bytes(250_000))
        # What does not fit together is committed one after the other.
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(store.put, f"/k/{number}", bytes(100_000))
        assert len((await store.list("/k"))[0]) == 20


async def test_many_leases_that_end_beside_a_large_change_fit_into_packets() -> None:
    """The paths of their nodes count, too, with the longest prefix."""
    servers, random = SimulatedZooKeeper(), Random(0)
    limits = Limits(metadata_max_value_bytes=1024 * 1024)
    async with ZooKeeperStore(SimulatedNodes(servers, random), "/" + "x" * 500, limits=limits, random=random) as store:
        leases = [await store.grant_lease(3600) for _ in range(250)]
        commits = servers.commits
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.put, "/large", bytes(1_032_000))
            for lease in leases:
                nursery.start_soon(store.revoke, lease)
        assert 2 <= servers.commits - commits < 10
        for lease in leases:
            with pytest.raises(NotFoundError):
                await store.keep_alive(lease)


async def test_a_lease_has_as_many_keys_as_can_be_deleted_together() -> None:
    servers = SimulatedZooKeeper(128 * 1024)
    async with opened(servers, max_packet_bytes=128 * 1024) as store:
        lease = await store.grant_lease(3600)

        async def put_many() -> None:
            for number in range(100):
                await store.put(f"/k/{'x' * 4000}{number}", b"", lease=lease)

        with pytest.raises(LimitExceededError, match=r"lease 1 would have \d+ keys"):
            await put_many()
        count = len((await store.list("/k"))[0])
        assert 20 < count < 40
        assert await store.revoke(lease) is not None
        assert (await store.list("/k"))[0] == []


async def test_too_many_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danube_metadata_zookeeper._store._MOST_WAITING", 5)
    refused: list[DanubeError] = []
    async with opened(SimulatedZooKeeper()) as store:

        async def put(number: int) -> None:
            try:
                await store.put(f"/k/{number}", b"")
            except UnavailableError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(put, number)
        assert refused
        assert "5 requests wait for ZooKeeper" in refused[0].message
        assert len((await store.list("/k"))[0]) + len(refused) == 50
