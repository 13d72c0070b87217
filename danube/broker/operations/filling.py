"""Fills declared gaps with what the disk of a lost broker still has: ``danube cluster return-tail``.

The command reads the journal of the lost broker and sends its batches to the owners of the topics, which seal them at
their own offsets. What is sealed is the only state, so a transfer that was cut off begins again where it was. The last
call says that there is no more: then the gap is filled, and subscriptions get the messages.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.broker.security.caller import caller_name
from danube.cluster.gaps import GapRecord, GapState
from danube.cluster.records import BrokerRecord, BrokerState, broker_name
from danube.log import StoredBatch
from danube.model.batch import STAMP_SIZE, check_part, read_stamp
from danube.model.cluster_api import FillGap, GapFilled, GapToFill, GetGaps, OpenGaps
from danube.model.decoding import UNDECODABLE
from danube.model.errors import FailedPreconditionError, InvalidArgumentError, LimitExceededError, NotFoundError
from danube.model.ids import BrokerId, Offset
from danube.model.limits import MIB
from danube.model.log_events import log_event
from danube.model.records import members

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic

__all__ = ["FillOperations"]

_log = logging.getLogger("danube.broker")

_SPARE_BYTES: Final = 2 * MIB
"""How much longer than the largest message a transfer may be."""
_BATCHES: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


class FillOperations:
    """See the module.

    Args:
        directory: of the topics.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._membership = directory.membership
        self._lock = trio.Lock()
        self._transfer = 0
        self._received = bytearray()
        """Of one transfer at a time: another one takes its place, and its sender begins again."""

    async def gaps(self, request: GetGaps) -> OpenGaps:
        """Return the gaps that the data directory of a lost broker can fill.

        Raises:
            NotFoundError: the directory is not that of a broker of this cluster.
            FailedPreconditionError: the broker was not declared gone.
            UnavailableError: the metadata do not answer.
        """
        catalogue = self._directory.catalogue
        broker, _ = self._lost(request.identity)
        await catalogue.gaps.refresh()
        wanted = {
            topic_id: [gap for gap in gaps if gap.broker == broker and gap.state is GapState.OPEN]
            for topic_id, gaps in catalogue.gaps.every().items()
        }
        found = [
            GapToFill(topic=each, topic_id=topic_id, start=gap.start, end=gap.end, move=gap.move)
            for name, record in catalogue.topics()
            for each, topic_id in members(name, record)
            for gap in wanted.get(topic_id, ())
        ]
        return OpenGaps(broker_name(broker), found)

    def _lost(self, identity: str) -> tuple[BrokerId, BrokerRecord]:
        for name, record in self._membership.brokers.values.items():
            if record.identity == identity:
                if record.state is not BrokerState.GONE:
                    raise FailedPreconditionError(
                        f"the data directory is that of broker {name}, which was not declared gone: start it, and its"
                        " topics go on"
                    )
                return BrokerId(int(name[1:])), record
        raise NotFoundError("the data directory is not that of a broker of this cluster")

    async def fill(self, request: FillGap) -> GapFilled:
        """Take a piece of a transfer; seal the batches of a complete one.

        Raises:
            NotOwnerError: another broker owns the topic.
            FailedPreconditionError: there is no such open gap, or a piece is missing: begin the transfer again.
            InvalidArgumentError: a batch is not one of the gap, or does not continue what was filled.
            StorageError: they cannot be sealed now.
        """
        topic = self._directory.find(request.topic)
        broker, _ = self._lost(request.identity)
        async with self._lock:
            gap = self._gap(topic, request, broker)
            if request.data or request.more:
                self._take(request)
                if not request.more:
                    await self._seal(topic, gap)
            if request.complete and not request.more:
                await self._complete(topic, gap)
            return GapFilled(self._filled(topic, gap))

    async def _seal(self, topic: Topic, gap: GapRecord) -> None:
        """Seal the batches of the transfer, whose last piece was taken."""
        data, self._received, self._transfer = bytes(self._received), bytearray(), 0
        batches = self._batches(topic, gap, data)
        if batches:
            await self._directory.history.fill(topic, batches)

    def _gap(self, topic: Topic, request: FillGap, broker: BrokerId) -> GapRecord:
        for gap in topic.gaps if topic.topic_id == request.topic_id else ():
            if gap.start == request.start and gap.broker == broker and gap.state is GapState.OPEN:
                return gap
        raise FailedPreconditionError(
            f"topic {topic.name!r} waits for nothing from offset {request.start} on: the gap was filled or forgotten"
        )

    def _take(self, request: FillGap) -> None:
        if request.position == 0:
            self._transfer, self._received = request.transfer, bytearray()
        if request.transfer != self._transfer or request.position != len(self._received):
            raise FailedPreconditionError("a piece of the transfer is missing; begin it again")
        most = self._directory.runtime.limits.max_message_bytes + _SPARE_BYTES
        if len(self._received) + len(request.data) > most:
            raise LimitExceededError(f"a transfer has at most {most} bytes (max_message_bytes and {_SPARE_BYTES})")
        self._received += request.data

    def _filled(self, topic: Topic, gap: GapRecord) -> Offset:
        """Return up to where a gap is filled."""
        history = self._directory.history.catalogue.find(topic.topic_id)
        parts = history.between(gap.start, gap.end, len(history.parts))[0] if history is not None else []
        return max([gap.start, *(record.part.end_offset for record in parts)])

    def _batches(self, topic: Topic, gap: GapRecord, data: bytes) -> list[StoredBatch]:
        """Decode and check batches; those that are sealed already are left out."""
        try:
            pairs = _BATCHES.decode(data)
        except UNDECODABLE as error:
            raise InvalidArgumentError(f"a transfer for topic {topic.name!r} cannot be decoded: {error}") from error
        filled = self._filled(topic, gap)
        found: list[StoredBatch] = []
        for head, part in pairs:
            stamp, header = read_stamp(head), check_part(part)
            low, high = stamp.base_offset, Offset(stamp.base_offset + header.record_count)
            if stamp.topic_id != topic.topic_id or stamp.total_size != STAMP_SIZE + len(part):
                raise InvalidArgumentError(f"a batch for topic {topic.name!r} contradicts its stamp")
            if high <= filled:
                continue
            if low < filled or high > gap.end:
                raise InvalidArgumentError(
                    f"topic {topic.name!r}: a batch of offsets [{low}, {high}) does not fit into what is missing,"
                    f" [{filled}, {gap.end})"
                )
            found.append(StoredBatch(low, high, head, part, header, stamp.append_time_us))
            filled = high
        return found

    async def _complete(self, topic: Topic, gap: GapRecord) -> None:
        filled = self._filled(topic, gap)
        record = msgspec.structs.replace(gap, state=GapState.FILLED, filled_end=filled)
        conditions = self._membership.conditions(topic.topic_id)
        await self._directory.catalogue.gaps.settle(topic.topic_id, record, conditions)
        _log.warning(
            "topic %r has its messages [%d, %d) again, from the disk of broker %s, which %s gave back",
            topic.name,
            gap.start,
            filled,
            broker_name(gap.broker),
            caller_name() or "an operator",
            extra=log_event("topic.gap_filled", topic=topic.name),
        )
