"""How a broker becomes a member of its cluster, from its own address to its membership in the metadata.

If the brokers keep the metadata themselves, the broker finds its place among them (:mod:`danube.cluster.group`)
before it can open them. Then it enters itself there, as the one with its identity or as a new one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack

import trio
from msgspec import structs

from danube.broker.directory.identity import DirectoryIdentity
from danube.broker.runtime.config import BrokerConfig
from danube.broker.runtime.own_address import foreign_hosts, http_url, own_address
from danube.broker.runtime.ports import Ports
from danube.broker.runtime.seams import Seams
from danube.cluster.gaps import reserve_of
from danube.cluster.group import MetadataGroup
from danube.cluster.membership import Membership
from danube.cluster.records import SessionRecord
from danube.log import Disk
from danube.metadata import MetadataStore
from danube.metadata.embedded import EmbeddedPlugin
from danube.model.addresses import parse_address
from danube.model.version import __version__
from danube.peers import Peers
from danube.raft import NodeId

__all__ = ["Joining", "find_own_address"]


async def find_own_address(config: BrokerConfig, seams: Seams, bound: Sequence[str]) -> str:
    """Return the address at which other brokers reach this one, which listens on ``bound``.

    Raises:
        ClusterConfigurationError: it cannot be told; the message says which option is needed.
    """
    resolved: dict[str, Collection[str]] = {}

    async def resolve(host: str) -> None:
        resolved[host] = await seams.own_addresses(host)

    async with trio.open_nursery() as nursery:
        for host in foreign_hosts(config, bound):
            nursery.start_soon(resolve, host)
    return own_address(config, bound, resolved)


class Joining:
    """The steps of one start, in the order of the methods.

    Args:
        config, seams: of the broker.
        identity: of its data directory.
        peers: its links to others.
        ports: on which it listens; they tell callers what it waits for.
        certified: the number of the broker that its certificate names; None: it names none.
    """

    def __init__(
        self,
        config: BrokerConfig,
        seams: Seams,
        identity: DirectoryIdentity,
        peers: Peers,
        ports: Ports,
        certified: int | None,
    ) -> None:
        self._config = config
        self._seams = seams
        self._identity = identity
        self._peers = peers
        self._ports = ports
        self._certified = certified
        self._group: MetadataGroup | None = None

    async def open_metadata(self, opened: AsyncExitStack, disk: Disk) -> MetadataStore:
        """Open the metadata, as one of those that keep them if the engine runs in the brokers.

        Args:
            opened: closes them.
            disk: of the journal; stores the broker's place among those that keep them.
        """
        config, seams = self._config, self._seams
        if config.metadata_scheme != EmbeddedPlugin.name or not seams.has_groups:
            return await opened.enter_async_context(seams.open_metadata(config, None))
        group = MetadataGroup(
            self._peers,
            disk,
            identity=self._identity.identity,
            cluster=config.cluster,
            random=seams.random,
            place=config.data_directory,
            descriptor_wait_s=config.limits.start_descriptor_wait_s,
        )
        if config.has_neighbours:
            self._ports.tell("it waits for other brokers of its cluster")
        is_new = not await seams.holds_metadata(config)
        await group.settle(config.peer_addresses, config.join_address or None, is_new=is_new)
        self._ports.tell("it opens its metadata")
        store = await opened.enter_async_context(seams.open_metadata(config, group.place()))
        await opened.enter_async_context(group.present(store))
        self._group = group
        return store

    @property
    def remove_member(self) -> Callable[[NodeId], Awaitable[object]] | None:
        """Removes a member from the group that keeps the metadata; None: the brokers do not keep them."""
        return None if self._group is None else self._group.remove

    def announce(self) -> None:
        """Let the broker be entered among those that keep the metadata, which have been verified."""
        if self._group is not None:
            self._group.announce()

    async def join(self, store: MetadataStore, storages: Iterable[str], shared: Iterable[str] = ()) -> Membership:
        """Enter the broker in the metadata, and return it as a member of its cluster.

        Args:
            store: the metadata.
            storages: names of its storages.
            shared: those of them that other brokers reach, too.

        Raises:
            ConfigurationError, DataLossError, DanubeError: see :meth:`danube.cluster.membership.Membership.join`.
        """
        peers = self._peers
        membership = Membership(
            store,
            cluster=self._config.cluster,
            identity=self._identity.identity,
            record=SessionRecord(
                address=peers.own.address,
                admin_address=self._admin_address(),
                version=__version__,
                http_address=http_url(self._ports.http_addresses, peers.own.address, secure=self._config.serves_tls),
            ),
            storages=tuple(sorted(storages)),
            shared=tuple(sorted(shared)),
            rack=self._config.rack,
            reserve=reserve_of(self._config.limits.journal_max_bytes, self._config.limits.max_batch_records),
            random=self._seams.random,
            founding=self._group.memory.founding if self._group is not None else None,
            certified=self._certified,
        )
        await membership.join(self._identity.life, self._identity.last_start, self._identity.store_start)
        if not peers.own.incarnation:  # the metadata are not kept by the brokers
            peers.identify(structs.replace(peers.own, incarnation=membership.cluster.incarnation))
        membership.on_cluster.append(lambda: peers.require(membership.cluster.feature_level))
        peers.require(membership.cluster.feature_level)
        return membership

    def _admin_address(self) -> str:
        """Return the address at which others reach the admin port; empty if there is none."""
        if not self._ports.admin_addresses:
            return ""
        host, port = parse_address(self._ports.admin_addresses[0])
        if host in ("0.0.0.0", "::"):
            host, _ = parse_address(self._peers.own.address)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
