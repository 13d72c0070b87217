"""Gives a data directory an identity, and counts the starts of its broker, in the file ``broker`` of the directory.

A broker is its data directory: other brokers, and the metadata, know it by the directory's *identity*, a random number
of 64 bits. The last start that was to be entered in the metadata exposes copies: a directory is refused that is behind,
or has stored another one (:mod:`danube.cluster.membership`).

A directory without the file is new, and gets one, unless it holds other files of a broker: then the file is lost, and
with a new identity this would be another broker, to which nothing in the metadata belongs. The start is refused; the
file ``accept-loss`` allows it.
"""

from __future__ import annotations

from random import Random
from typing import Final

from danube.broker.directory.identity_file import (
    ACCEPT_NAME,
    BROKER_NAME,
    FILE_BYTES,
    SLOT_BYTES,
    BrokerFile,
    encode_slot,
    examine_broker_file,
    unusable,
)
from danube.cluster.records import LastStart
from danube.log import Disk
from danube.log.patience import PatientDisk
from danube.model.errors import DataLossError

__all__ = ["DirectoryIdentity", "read_broker_file"]

_NEW_NAME: Final = "broker.new"
"""Name of the file until it is complete."""


async def read_broker_file(disk: Disk, place: str) -> BrokerFile | None:
    """Return what the file says; None if the data directory is new. Changes nothing.

    Args:
        disk: of the journal.
        place: the data directory, for messages.

    Raises:
        DataLossError: the file is damaged, or it is missing and the directory is not new.
        OSError: the disk cannot be read.
    """
    names = await disk.list()
    content = await disk.read(BROKER_NAME, 0, FILE_BYTES + 1) if BROKER_NAME in names else None
    return examine_broker_file(names, content, place)


class DirectoryIdentity:
    """The identity of an open data directory. Create it with :meth:`open`.

    Attributes:
        identity: 16 hexadecimal digits; never changes.
        life: number of the last start when the directory was opened; 0: there was none.
        last_start: the last one that was to be entered in the metadata, when the directory was opened.
    """

    def __init__(self, disk: Disk, found: BrokerFile) -> None:
        self.identity = found.identity
        self.life = found.life
        self.last_start = found.last_start
        self._disk = disk
        self._stored = found

    @classmethod
    async def open(cls, disk: Disk, random: Random, place: str, descriptor_wait_s: float = 0.0) -> DirectoryIdentity:
        """Read the identity of a data directory; draw one if it is new.

        Args:
            disk: of the journal, which does not run yet.
            random: draws the identity.
            place: the data directory, for messages.
            descriptor_wait_s: for how long each step waits for a file descriptor, in seconds.

        Raises:
            DataLossError: the file is damaged or missing, and the loss is not accepted. Nothing was changed.
            DataDirectoryError: the file cannot be read or written.
            JournalFullError: the disk is full.
            OutOfDescriptorsError: no file descriptor is left.
        """
        disk = PatientDisk(disk, f"the file {BROKER_NAME!r} of the data directory", descriptor_wait_s)
        try:
            try:
                found = await read_broker_file(disk, place)
            except DataLossError:
                if ACCEPT_NAME not in await disk.list():
                    raise
                found = None
            if found is None:
                found = await _create(disk, random)
            elif not found.life:
                await disk.sync_directory()  # the first start may have died before it did that
            return cls(disk, found)
        except OSError as error:
            raise unusable(error) from error

    async def store_life(self, life: int) -> None:
        """Store the number of this start, synced. Does nothing if it is stored.

        Cancellation leaves either number. The journal must not run yet: its disk takes one synced write at a time.

        Raises:
            DataDirectoryError: the file cannot be written.
            JournalFullError: the disk is full.
        """
        if life != self._stored.life:
            await self._store(life, self._stored.last_start)

    async def store_start(self, life: int, start: int) -> None:
        """Store that this start is to be entered in the metadata, as :meth:`store_life`.

        Args:
            life: its number.
            start: see :class:`~danube.cluster.records.BrokerRecord`.

        Raises:
            DataDirectoryError: the file cannot be written.
            JournalFullError: the disk is full.
        """
        await self._store(life, LastStart(life, start))

    async def _store(self, life: int, last_start: LastStart) -> None:
        slot = 1 - self._stored.slot
        content = encode_slot(self.identity, life, last_start)
        try:
            await self._disk.write(BROKER_NAME, slot * SLOT_BYTES, [content], sync=True)
        except OSError as error:
            raise unusable(error) from error
        self._stored = BrokerFile(self.identity, life, last_start, slot)


async def _create(disk: Disk, random: Random) -> BrokerFile:
    """Write a new file. It has its name once it is durable, so no crash leaves half of it."""
    names = await disk.list()
    for name in (_NEW_NAME, BROKER_NAME):
        if name in names:
            await disk.remove(name)
    made = BrokerFile(f"{random.getrandbits(64) or 1:016x}", 0, LastStart(0, 0), 0)
    await disk.create(_NEW_NAME, FILE_BYTES)
    await disk.write(_NEW_NAME, 0, [encode_slot(made.identity, made.life, made.last_start)], sync=True)
    await disk.rename(_NEW_NAME, BROKER_NAME)
    await disk.sync_directory()
    return made
