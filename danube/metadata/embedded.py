"""The embedded metadata store: a member of a Raft group in each broker, with its files in a directory.

A broker alone is the only member of its group (:mod:`danube.metadata.raft`). Files::

    DATA_DIR/metadata/            or the directory in the URL
        metadata.db               the table (:mod:`danube.metadata._sqlite`)
        log/journal-*.log         the log, which is the durability; locked by the process that has it open
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from danube.log import RealDisk
from danube.metadata._contract import MetadataStore
from danube.metadata._plugins import Group, MetadataPlugin, Surroundings
from danube.metadata._sqlite import FILE_NAME
from danube.metadata.raft import NodeOptions, RaftStore, SqliteStateTable
from danube.metadata.raft.options import FILE_BYTES
from danube.metadata.raft.state import EARLIER_FORMAT
from danube.model.errors import ConfigurationError, DataDirectoryError
from danube.raft import Conf, NodeId

__all__ = ["DIRECTORY", "LOG_DIRECTORY", "LONE_MEMBER", "EmbeddedConfig", "EmbeddedPlugin", "own_directory"]

DIRECTORY: Final = "metadata"
"""Of the store, in the data directory."""
LOG_DIRECTORY: Final = "log"
"""Of the log, in the store's directory."""
LONE_MEMBER: Final = NodeId(1)
"""Id of the first member of a group that a broker begins alone."""
_RESERVED_DESCRIPTORS: Final = 2
"""The log rarely needs more than three files."""


class EmbeddedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The embedded store has no options; the URL's path says where it is."""


class EmbeddedPlugin(MetadataPlugin[EmbeddedConfig]):
    """``embedded://``: metadata in the broker's data directory; ``embedded:///a/directory``: in that one."""

    name: ClassVar[str] = "embedded"
    summary: ClassVar[str] = "durable, in the data directories of the brokers, replicated by Raft"
    config: ClassVar[type[EmbeddedConfig]] = EmbeddedConfig

    @asynccontextmanager
    async def open(self, config: EmbeddedConfig, surroundings: Surroundings) -> AsyncIterator[MetadataStore]:
        """Open the store, and create it if it is missing.

        Raises:
            ConfigurationError: the URL names no directory.
            DataDirectoryError: the directory is in use, cannot be used, or holds metadata of another format.
            DataLossError: log or table are damaged, or do not belong together.
        """
        if surroundings.location:
            raise ConfigurationError(
                f"metadata URL embedded://{surroundings.location}{surroundings.path} names a host;"
                f" for a directory write three slashes: embedded:///{surroundings.location}{surroundings.path}"
            )
        directory = Path(surroundings.path) if surroundings.path else own_directory(surroundings.data_directory)
        limits = surroundings.limits
        group = surroundings.group or Group(LONE_MEMBER, Conf((LONE_MEMBER,)))
        async with RealDisk(directory / LOG_DIRECTORY, reserved_descriptors=_RESERVED_DESCRIPTORS) as disk:
            store = RaftStore(
                disk,
                SqliteStateTable(directory),
                member=group.member,
                first_conf=group.first_conf,
                links=group.links,
                limits=limits,
                random=surroundings.random,
                clock=surroundings.clock,
                options=NodeOptions(file_bytes=max(FILE_BYTES, 4 * limits.metadata_max_transaction_bytes)),
            )
            if group.links is not None:
                group.links.connect(store.node)
            async with store:
                yield store


def own_directory(data_directory: Path | None) -> Path:
    """Return the directory of the metadata in a data directory.

    Raises:
        ConfigurationError: there is no data directory.
        DataDirectoryError: it holds metadata of an earlier format.
    """
    if data_directory is None:
        raise ConfigurationError("the metadata engine 'embedded' needs a directory: write embedded:///a/directory")
    if (data_directory / FILE_NAME).exists():
        raise DataDirectoryError(EARLIER_FORMAT.format(data_directory / FILE_NAME))
    return data_directory / DIRECTORY
