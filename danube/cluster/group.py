"""This broker among those that keep the metadata: forms the group or joins it, and looks after its members.

::

    group = MetadataGroup(peers, disk, identity=..., cluster=..., random=..., place=...)
    await group.settle(listed, join)                    # may wait for other brokers
    async with open_store(url, group=group.place(), ...) as store, group.present(store):
        group.announce()                                # once the metadata are known to be the right ones

:meth:`MetadataGroup.settle` decides, before the metadata are opened, which member this broker is: the one it was, a
founder (:mod:`danube.cluster.forming`), a new one that the leader has admitted, or the only one. The decision is stored
in the data directory first (:mod:`danube.cluster.group_memory`).

Any member can be asked to admit another one; the leader does it. The leader also decides who votes
(:mod:`danube.cluster.voters`).

**Addresses.** A member needs those of the others before it can read the metadata. It takes, in this order, what the
brokers at the other ends of its links say, the records in its own table, and what it has stored when it was admitted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Final, TypeVar

import msgspec
import trio

from danube.cluster.forming import Founding, Standing, found
from danube.cluster.gathering import ANSWER_S, Gathering
from danube.cluster.gathering import CHANNEL as FORMING
from danube.cluster.group_memory import (
    MEMBERS,
    Add,
    Admitted,
    GroupMemory,
    MemberRecord,
    encode_memory,
    file_name,
    file_number,
    founded,
    is_member_name,
    newest,
    next_number,
)
from danube.cluster.voters import Seen, next_change
from danube.log import Disk
from danube.log.patience import PatientDisk
from danube.metadata import Group, MetadataStore, RowChange, Table, may_pass
from danube.metadata.raft import Node, PeerLinks, RaftStore
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    DataDirectoryError,
    DataLossError,
    FailedPreconditionError,
    JournalFullError,
    UnavailableError,
)
from danube.model.log_events import log_event
from danube.model.space import is_out_of_space, out_of_space
from danube.peers import Peer, Peers
from danube.raft import Conf, NodeId

__all__ = ["JOINING", "MetadataGroup", "load_memory", "save_memory"]

_log = logging.getLogger("danube.cluster")

BELONGING: Final = "belonging"
"""Channel of calls that ask who the members are: the answer is a list of ids, with all changes made before."""
BELONGING_S: Final = 2.0
"""Time limit of such a call."""
MISSING_S: Final = 3.0
"""A member that has had no leader for so long asks whether it still is one, and again after each such time."""
JOINING: Final = "joining"
"""Channel of calls that ask for a place. Brokers that are no members may call it."""
CALL_S: Final = 10.0
"""Time limit of such a call."""
RETRY_S: Final = 0.5
"""Pause before a call is repeated."""
REPORT_S: Final = 10.0
"""How often a broker that waits for its place logs why."""
TEND_S: Final = 0.5
"""How often the leader looks after its members."""
_MOST_HOPS: Final = 3
_FIRST_DRAWN: Final = 1 << 16
"""Ids of members that join begin here; founders have lower ones."""
_NEW_NAME: Final = "group.new"

_encode = msgspec.msgpack.Encoder().encode
_STANDING: Final = msgspec.msgpack.Decoder(Standing)
_ADD: Final = msgspec.msgpack.Decoder(Add)
_IDS: Final = msgspec.msgpack.Decoder(list[NodeId])
_ADMITTED: Final = msgspec.msgpack.Decoder(Admitted)

T = TypeVar("T")


class MetadataGroup:
    """The place of this broker in the group; see the module.

    Args:
        peers: links to the other brokers. ``peers.own`` describes this broker, and is changed once it is a member.
        disk: of the data directory; nothing else writes to it during :meth:`settle`.
        identity: of the data directory.
        cluster: name of the cluster.
        random: draws the id of a member that joins.
        place: the data directory, for messages.
        descriptor_wait_s: for how long each step waits for a file descriptor, in seconds.
    """

    def __init__(
        self,
        peers: Peers,
        disk: Disk,
        *,
        identity: str,
        cluster: str,
        random: Random,
        place: str = "",
        descriptor_wait_s: float = 0.0,
    ) -> None:
        self._peers = peers
        self._disk = PatientDisk(disk, "the place of the broker in its cluster", descriptor_wait_s)
        self._identity = identity
        self._cluster = cluster
        self._random = random
        self._place = place
        self._gathering: Gathering
        self._memory: GroupMemory
        self._heard: dict[NodeId, str] = {}
        self._records: dict[NodeId, str] = {}
        self._silent: dict[NodeId, float] = {}
        self._node: Node | None = None
        self._store: RaftStore | None = None
        self._leader_missed_at = math.inf
        """Since when there is no leader, or the others were not asked about that."""
        self._news = trio.Event()
        self._announced = trio.Event()

    # --- The decision

    async def settle(self, listed: Sequence[str] = (), join: str | None = None, *, is_new: bool = True) -> None:
        """Decide which member this broker is, and let others ask it. May wait for other brokers.

        Args:
            listed: ``--peers``, with the address of this broker as it describes itself; empty: none.
            join: ``--join``, the address of a member; None: not given.
            is_new: whether the data directory holds no metadata.

        Raises:
            ConfigurationError: lists, names or directories of brokers do not fit together.
            DataLossError: what the data directory says is damaged or missing.
            DataDirectoryError: the data directory cannot be read or written.
            JournalFullError: its disk is full.
        """
        peers = self._peers
        self._gathering = Gathering(peers, peers.own.address, Standing(self._identity, self._cluster, tuple(listed)))
        peers.on_call(FORMING, self._answer_standing, strangers=True)
        peers.on_call(JOINING, self._answer_add, strangers=True)
        peers.on_call(BELONGING, self._answer_members)
        memory = await load_memory(self._disk, self._place)
        if memory is not None and memory.cluster != self._cluster:
            raise ConfigurationError(
                f"the data directory {self._place} belongs to the cluster {memory.cluster!r}, and the broker was"
                f" started for {self._cluster!r}; start it with the right --cluster, or with another data directory"
            )
        if memory is None and not is_new:
            raise DataLossError(
                f"data directory {self._place}: the file 'group-...', which says to which cluster the metadata belong,"
                " is missing. Nothing was changed. Restore it from a copy of the directory; or make the broker the only"
                " one that keeps the metadata: danube cluster recover"
            )
        if memory is not None and memory.is_opened and is_new and memory.conf and len(memory.conf.members) > 1:
            raise DataLossError(
                f"data directory {self._place}: the metadata of member {memory.member} are missing, and it may have"
                " voted. Nothing was changed. Restore the directory 'metadata' from the very same disk; or remove the"
                " files 'group-*', and start the broker with --join: then it gets the metadata as a new member"
            )
        if memory is None:
            memory = await self._decide(tuple(listed), join)
        elif not memory.incarnation and memory.is_opened:
            raise DataLossError(
                f"data directory {self._place}: `danube cluster recover` was interrupted, and the metadata are"
                " incomplete. Nothing was changed. Repeat that command"
            )
        elif not memory.incarnation:
            memory = await self._join(memory, [*listed, *([join] if join else []), *memory.addresses.values()])
        self._memory = memory
        self._gathering.become(memory.founding, memory.incarnation)
        peers.identify(msgspec.structs.replace(peers.own, incarnation=memory.incarnation, member=memory.member))

    @property
    def memory(self) -> GroupMemory:
        """What this broker remembers; after :meth:`settle`."""
        return self._memory

    def place(self) -> Group:
        """Return this broker's place, for the metadata engine; after :meth:`settle`."""
        links = PeerLinks(self._peers, self.address, heard=self._hear)
        return Group(self._memory.member, self._memory.conf, links)

    async def _decide(self, listed: tuple[str, ...], join: str | None) -> GroupMemory:
        own = self._peers.own.address
        if join is not None:
            return await self._join(None, [join])
        if listed and listed != (own,):
            decision = await self._gathering.decide(self._store_founding)
            if isinstance(decision, Founding):
                return founded(decision, self._identity)
            return await self._join(None, [decision.address, *(each for each in listed if each != own)])
        founding = found(self._cluster, (own,), (self._identity,))
        await self._store_founding(founding)
        return founded(founding, self._identity)

    async def _store_founding(self, founding: Founding) -> None:
        await save_memory(self._disk, founded(founding, self._identity), self._place)

    async def _join(self, memory: GroupMemory | None, candidates: Sequence[str]) -> GroupMemory:
        """Ask members for a place, until one answers."""
        own = self._peers.own.address
        candidates = [each for each in dict.fromkeys(candidates) if each != own]
        if not candidates:
            raise ConfigurationError(
                f"the broker in {self._place} has asked for a place in a cluster, and knows no member of it; start it"
                " with --join HOST, or with an empty data directory"
            )
        if memory is None:
            member = NodeId(_FIRST_DRAWN + self._random.getrandbits(31))
            memory = GroupMemory(
                cluster=self._cluster,
                member=member,
                addresses=dict(enumerate(candidates)),  # type: ignore[arg-type]
            )
            await save_memory(self._disk, memory, self._place)  # asked again under this id after a crash
        ask = _encode(Add(self._cluster, memory.member, self._identity, own))
        reported_at = -REPORT_S
        while True:
            for address in candidates:
                try:
                    answer = _understood(_ADMITTED, await self._peers.call(address, JOINING, ask, CALL_S))
                except ConfigurationError:
                    raise
                except DanubeError as error:
                    if trio.current_time() - reported_at >= REPORT_S:
                        reported_at = trio.current_time()
                        _log.warning(
                            "waiting for a place in the cluster, asked at %s: %s",
                            address,
                            error,
                            extra=log_event("cluster.place_delayed"),
                        )
                    continue
                memory = msgspec.structs.replace(
                    memory, incarnation=answer.incarnation, conf=answer.conf, addresses=answer.addresses
                )
                await save_memory(self._disk, memory, self._place)
                _log.info("joined the cluster %r as metadata member %d", self._cluster, memory.member)
                return memory
            await trio.sleep(RETRY_S)

    # --- Addresses

    def address(self, member: NodeId) -> str | None:
        """Return the address of a member's broker, None if it is not known."""
        return self._heard.get(member) or self._records.get(member) or self._memory.addresses.get(member)

    def _hear(self, peer: Peer) -> None:
        """Note where a broker is that has a link to this one."""
        if peer.member is None:
            return
        member = NodeId(peer.member)
        before = self.address(member)
        if before != peer.address:
            self._heard[member] = peer.address
            if before is not None:
                self._peers.unlink(before)

    def _record_changed(self, change: RowChange[MemberRecord]) -> None:
        member = NodeId(int(change.name))
        if change.after is None:
            self._records.pop(member, None)
        else:
            self._records[member] = change.after.address

    # --- Questions of others

    async def _answer_standing(self, peer: Peer, payload: bytes) -> bytes:
        return await self._gathering.answer(payload)

    async def _answer_add(self, peer: Peer, payload: bytes) -> bytes:
        ask = _understood(_ADD, payload)
        node = self._open_node()
        if node.raft.is_leader:
            return _encode(await self._admit(node, ask))
        leader = node.raft.leader
        address = self.address(leader) if leader is not None else None
        if address is None or ask.hops >= _MOST_HOPS:
            raise UnavailableError("no leader of the metadata is known; try again")
        passed_on = msgspec.structs.replace(ask, hops=ask.hops + 1)
        return await self._peers.call(address, JOINING, _encode(passed_on), CALL_S)

    async def _answer_members(self, peer: Peer, payload: bytes) -> bytes:
        node = self._open_node()
        await node.read(lambda machine: None, is_brief=True)  # a majority confirms that nothing has changed since
        return _encode(sorted(node.raft.conf.members))

    async def remove(self, member: NodeId) -> Conf:
        """Remove a member from the group; it has no other place afterwards. Does nothing if it is none.

        Raises:
            InvalidArgumentError: it is the last one that votes.
            UnavailableError: the leader did not answer, or is busy with another change; look, and try again.
        """
        node = self._open_node()
        store = self._store
        assert store is not None
        conf = await node.remove(member)
        await store.delete(f"{MEMBERS}{member}")
        return conf

    def _open_node(self) -> Node:
        if self._node is None:
            raise UnavailableError(
                f"the broker at {self._peers.own.address} has not opened its metadata yet; try again"
            )
        return self._node

    async def _admit(self, node: Node, ask: Add) -> Admitted:
        """Add a member that has no vote yet, in place of those that were at its address, or had its identity."""
        if ask.cluster != self._cluster:
            raise ConfigurationError(
                f"the broker at {ask.address} was started for the cluster {ask.cluster!r}, and this is"
                f" {self._cluster!r}; correct its --cluster or --join"
            )
        store = self._store
        assert store is not None
        identities = await self._identities(node)
        conf = node.raft.conf
        replaced = ask.replaces(conf.members | identities.keys(), self.address, identities)
        former = [member for member in replaced if member in conf.members]
        for member in former:
            there = self._peers.peer(ask.address)
            is_linked = there is not None and there.member == member
            if member == node.member or (is_linked and await self._is_taken(member, ask)):
                raise ConfigurationError(
                    f"--advertise: {ask.address} is the address of metadata member {member}, which is running; start"
                    " the broker that is to join with an address of its own"
                )
        if ask.member not in conf.members:
            voters = [each for each in conf.voters if each not in former]
            learners = [each for each in conf.learners if each not in former]
            await self._put_record(store, ask.member, MemberRecord(address=ask.address, identity=ask.identity))
            conf = await node.change_members(voters, [*learners, ask.member], instead_of=conf)
            _log.warning(
                "metadata member %d at %s joins%s",
                ask.member,
                ask.address,
                f" in place of {', '.join(map(str, former))}" if former else "",
                extra=log_event("metadata.member_joins", member=ask.member),
            )
            self._wake()
        for member in sorted(set(replaced) - conf.members):  # also what an earlier call has left that failed half-way
            await store.delete(f"{MEMBERS}{member}")
        return self._members(node)

    async def _is_taken(self, member: NodeId, ask: Add) -> bool:
        """Return whether another broker than the one that asks for a place answers at its address.

        Raises:
            UnavailableError: nothing answers on the link to the former member there; it breaks soon.
        """
        try:
            answer = _understood(_STANDING, await self._peers.call(ask.address, FORMING, b"", ANSWER_S))
        except DanubeError as error:
            raise UnavailableError(
                f"{ask.address} is the address of metadata member {member}, which does not answer; try again"
            ) from error
        return answer.identity != ask.identity

    async def _identities(self, node: Node) -> dict[NodeId, str]:
        """Return the identities of the members' directories, as a majority knows them: the table follows later."""
        rows = await node.read(lambda machine: list(machine.table.scan(MEMBERS)), is_brief=True)
        named = [(row.key.removeprefix(MEMBERS), row.value) for row in rows]
        return {
            NodeId(int(name)): msgspec.msgpack.decode(value, type=MemberRecord).identity
            for name, value in named
            if is_member_name(name)
        }

    def _members(self, node: Node) -> Admitted:
        conf = node.raft.conf
        addresses = {member: address for member in sorted(conf.members) if (address := self.address(member))}
        addresses[node.member] = self._peers.own.address
        return Admitted(self._memory.incarnation, conf, addresses)

    # --- A member

    @asynccontextmanager
    async def present(self, store: MetadataStore) -> AsyncIterator[None]:
        """Look after the group during the body, which ends when the member of this broker has failed.

        The body's exception is raised as it is.

        Args:
            store: the open metadata store; another engine than this one needs no looking after.

        Raises:
            DanubeError: what the member has failed with: the broker has no metadata any more, and must start again.
        """
        if not isinstance(store, RaftStore):
            yield
            return
        if not self._memory.is_opened:
            self._memory = msgspec.structs.replace(self._memory, is_opened=True)
            await save_memory(self._disk, self._memory, self._place)
        self._table = Table(
            store, MEMBERS, MemberRecord, watched=True, on_change=self._record_changed, is_name=is_member_name
        )
        for item in await store.node.read_here(lambda machine: machine.table.scan(MEMBERS)):
            name = item.key.removeprefix(MEMBERS)
            if is_member_name(name):  # the table logs the others
                record = msgspec.msgpack.decode(item.value, type=MemberRecord)
                self._records[NodeId(int(name))] = record.address
        self._store, self._node = store, store.node  # from here on it answers brokers that ask for a place
        failure: Exception | None = None

        async def end_with(node: Node, scope: trio.CancelScope) -> None:
            nonlocal failure
            await node.wait_ended()
            if node.failure is not None:
                failure = node.failure
                scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_with, store.node, nursery.cancel_scope)
            nursery.start_soon(self._look_after)
            try:
                yield
            except Exception as error:  # noqa: BLE001 - raised below: a nursery would put it into a group
                failure = error
            nursery.cancel_scope.cancel()
        self._node = self._store = None
        if failure is not None:
            raise failure

    async def _look_after(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._announce)
            nursery.start_soon(self._tend)
            await self._table.follow()

    def announce(self) -> None:
        """Let the address of this broker be entered in the metadata. Until then nothing in them is changed."""
        self._announced.set()

    async def _announce(self) -> None:
        """Enter the address of this broker in the metadata."""
        await self._announced.wait()
        store = self._store
        assert store is not None
        record = MemberRecord(address=self._peers.own.address, identity=self._identity)
        while True:
            try:
                await self._put_record(store, self._memory.member, record)
                return
            except DanubeError as error:
                if not may_pass(error):
                    raise
                _log.info("the address of this broker is not in the metadata yet: %s", error)
                await trio.sleep(RETRY_S)

    async def _put_record(self, store: RaftStore, member: NodeId, record: MemberRecord) -> None:
        key = f"{MEMBERS}{member}"
        value = _encode(record)
        present = await store.get(key)
        if present is None or present.value != value:
            await store.put(key, value, expected_revision=present.mod_revision if present is not None else 0)

    # --- The leader

    def _wake(self) -> None:
        self._news.set()

    async def _tend(self) -> None:
        """Decide who votes, while this member leads. Needs no timer while it is alone."""
        node = self._node
        assert node is not None
        while True:
            self._news = trio.Event()
            if node.is_alone:
                await self._news.wait()
            else:
                with trio.move_on_after(TEND_S):
                    await self._news.wait()
            if not node.raft.is_leader:
                self._silent.clear()
                await self._look_for_leader(node)
                continue
            conf = node.raft.conf
            change = next_change(conf, node.member, self._seen(node))
            if change is None:
                continue
            _log.warning(
                "the voters of the metadata become %s: %s",
                _shown(change.voters),
                change.reason,
                extra=log_event("metadata.voters_change"),
            )
            try:
                await node.change_members(change.voters, change.learners, instead_of=conf)
            except DanubeError as error:
                if not may_pass(error):
                    raise
                _log.info("the voters of the metadata were not changed: %s", error)

    async def _look_for_leader(self, node: Node) -> None:
        """End the member if it has had no leader for a while, and others say that it is none of them any more."""
        now = trio.current_time()
        if node.raft.leader is not None or math.isinf(self._leader_missed_at):
            self._leader_missed_at = now
        if now - self._leader_missed_at < MISSING_S:
            return
        own = self._peers.own.address
        known = {*self._memory.addresses.values(), *self._records.values(), *self._heard.values()} - {own}
        for address in sorted(known):
            try:
                members = _understood(_IDS, await self._peers.call(address, BELONGING, b"", BELONGING_S))
            except DanubeError as error:
                _log.info("%s has not said who keeps the metadata: %s", address, error)
                continue
            if node.member not in members:
                node.exclude(_excluded(self._memory, self._place, address))
            break
        self._leader_missed_at = trio.current_time()

    def _seen(self, node: Node) -> dict[NodeId, Seen]:
        raft, now = node.raft, trio.current_time()
        matches = raft.matches()
        seen: dict[NodeId, Seen] = {}
        for member in raft.conf.members:
            address = self.address(member)
            if member == node.member:
                continue
            if address is not None and self._peers.peer(address) is not None:
                self._silent.pop(member, None)
                since = now
            else:
                since = self._silent.setdefault(member, now)
            seen[member] = Seen(raft.log.last_index - matches.get(member, 0), now - since)
        return seen


async def load_memory(disk: Disk, place: str) -> GroupMemory | None:
    """Return what a data directory remembers; None if it is new.

    Args:
        disk: of the directory.
        place: the directory, for messages.

    Raises:
        DataLossError: it is damaged.
        DataDirectoryError: it cannot be read.
    """
    try:
        names = await disk.list()
        files = {
            number: await disk.read(name, 0, names[name])
            for name in sorted(names)
            if (number := file_number(name)) is not None
        }
    except OSError as error:
        raise _unusable(place, error) from error
    return newest(files, place)


async def save_memory(disk: Disk, memory: GroupMemory, place: str) -> None:
    """Store what a data directory is to remember, synced; arguments as in :func:`load_memory`.

    Raises:
        DataDirectoryError: it cannot be written.
        JournalFullError: the disk is full.
    """
    content = encode_memory(memory)
    try:
        names = await disk.list()
        numbers = {name: number for name in names if (number := file_number(name)) is not None}
        if _NEW_NAME in names:
            await disk.remove(_NEW_NAME)
        # The file has its name once it is durable.
        await disk.create(_NEW_NAME, len(content))
        await disk.write(_NEW_NAME, 0, [content], sync=True)
        await disk.rename(_NEW_NAME, file_name(next_number(numbers.values())))
        await disk.sync_directory()
        for name in numbers:
            await disk.remove(name)
    except OSError as error:
        raise _unusable(place, error) from error


def _understood(decoder: msgspec.msgpack.Decoder[T], payload: bytes) -> T:
    try:
        return decoder.decode(payload)
    except UNDECODABLE as error:
        raise ConfigurationError(
            f"a message about the members of the cluster is not understood ({error}); install the same version of"
            " Danube on all brokers"
        ) from error


def _excluded(memory: GroupMemory, place: str, address: str) -> DanubeError:
    return FailedPreconditionError(
        f"metadata member {memory.member}, which is this broker's, was removed from the cluster {memory.cluster!r}:"
        " another broker has taken its place, or an operator has removed it. The broker's messages are kept. To make it"
        f" a member again, remove the directory 'metadata' and the files 'group-*' from {place}, and start it with"
        f" --join {address}. If it was declared gone (danube cluster forget), it is refused then, too"
    )


def _shown(members: Sequence[NodeId]) -> str:
    return ", ".join(map(str, members))


def _unusable(place: str, error: OSError) -> DataDirectoryError | JournalFullError:
    if is_out_of_space(error):
        return out_of_space(f"data directory {place}: the place of the broker in its cluster", error)
    return DataDirectoryError(
        f"data directory {place}: the place of the broker in its cluster cannot be read or written ({error.strerror});"
        " make the directory writable for the broker's user, or replace its disk"
    )
