"""Staged publishing: batches that become visible together, once, when they are committed.

Tasks stage, the driver commits::

    async with client.stages.open("/default/orders-part-0", producer="orders-job", batch_id=7, attempt="3.0") as stage:
        await stage.add([b"...", b"..."])
        staged = await stage.finish()            # picklable: take it to the driver
    ...
    outcome = await client.stages.commit("orders-job", 7, [staged, ...])

A stage is bound to one connection: when that breaks, the stage has failed, and the task stages again. A commit may be
repeated any number of times, and the client repeats it by itself while the broker is unreachable.

In a cluster all stages of a producer are held by one broker, its home, whichever brokers own the topics: the first that
gets a stage of it. That one decides about a commit, and has the owners append the batches. The client goes where the
others send it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import anyio
import msgspec

from danube.client._checks import check_count, check_list, encoded
from danube.client._everywhere import everywhere
from danube.client._lane import frame_batch
from danube.client._payloads import pieces
from danube.client._retry import Retry, receive_reply
from danube.client._route import Owner
from danube.client._stage_checks import check_batch, checked_stages, measured
from danube.model import api, stage_api
from danube.model.batch import Codec, Record, SchemaRef, encode_part
from danube.model.errors import (
    CallRefusedError,
    ClosedError,
    ConnectionLostError,
    DanubeError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotFoundError,
    ProtocolError,
)
from danube.model.ids import NO_PRODUCER, NO_PRODUCER_EPOCH
from danube.model.limits import MIB
from danube.model.names import split_partition, validate_topic
from danube.model.stage_api import StageCommit, StagedBatch, StageMethod

if TYPE_CHECKING:
    from collections.abc import Callable

    from danube.client._pool import Pool
    from danube.client._route import Route
    from danube.wire.client import ClientStream

__all__ = ["Stage", "Stages"]

_PART_BYTES: Final = 1 * MIB
_PART_RECORDS: Final = 50_000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(stage_api.StageReply).decode

T = TypeVar("T")


class Stage:
    """Messages being written to the broker's disk, invisible until they are committed; made by :meth:`Stages.open`."""

    topic: str
    """The topic or partition."""
    stage_id: int
    """Number by which the broker knows it."""
    committed: bool
    """Whether this batch was committed before. Then nothing is sent, and committing it again has no effect."""
    records: int
    """Number of added records."""
    size_bytes: int
    """Size of the parts that were sent."""

    def __init__(
        self,
        stream: ClientStream,
        topic: str,
        opened: stage_api.StageOpened,
        codec: Codec,
        schema: SchemaRef,
        clock_us: Callable[[], int],
    ) -> None:
        self.topic = topic
        self.stage_id = opened.stage_id
        self.committed = opened.committed
        self.records = 0
        self.size_bytes = 0
        self._stream = stream
        self._opened = opened
        self._codec = codec
        self._schema = schema
        self._clock_us = clock_us
        self._items: list[Any] = []
        self._items_size = 0
        self._kind: type = bytes
        self._publish_time_us: int | None = None
        self._staged: StagedBatch | None = None

    async def add(self, records: Sequence[bytes] | Sequence[Record], publish_time_us: int | None = None) -> None:
        """Add messages, many in one call; wait while the broker's disk is behind.

        They are collected to batches of up to 1 MiB, so some of them may be sent with the next call, or :meth:`finish`.

        Args:
            records: payloads, or :class:`danube.model.batch.Record` with keys or attributes; not both in one call.
            publish_time_us: in microseconds since the epoch, the base of the records' ``publish_delta_us``; None: now.

        Raises:
            InvalidArgumentError: neither bytes nor Records.
            MessageTooLargeError: a message exceeds the broker's limit.
            LimitExceededError: the broker has no room for more (``max_staged_bytes``, or its disk is full).
            FailedPreconditionError: the batch was committed without this stage, or aborted, in the meantime.
            ConnectionLostError, DanubeError: the stage has failed; stage again.
        """
        if self._staged is not None:
            raise ClosedError(f"the stage of {self.topic} is finished; open another one")
        records = check_list("records", records, "bytes or Records")
        if publish_time_us is not None:
            check_count("publish_time_us", publish_time_us)
        count = len(records)
        if not count:
            return
        kind, lengths, largest = measured(records)
        if largest > self._opened.max_message_bytes:
            raise MessageTooLargeError(
                f"a message for {self.topic} has {largest} bytes, more than max_message_bytes ="
                f" {self._opened.max_message_bytes}; split it, or raise the broker's limit"
            )
        self.records += count
        if self.committed:
            return
        if self._items and (kind is not self._kind or publish_time_us != self._publish_time_us):
            await self._send()
        self._kind, self._publish_time_us = kind, publish_time_us
        limit = min(_PART_BYTES, self._opened.max_batch_bytes - 4096)
        for start, end, size in pieces(lengths, limit, _PART_RECORDS):
            if self._items and (self._items_size + size > limit or len(self._items) + end - start > _PART_RECORDS):
                await self._send()
            self._items += records[start:end]
            self._items_size += size
            if self._items_size > limit // 2:
                await self._send()

    async def finish(self) -> StagedBatch:
        """Send the remaining messages, and return the stage when it is on the broker's disk.

        Raises as :meth:`add`.
        """
        if self._staged is None:
            self._staged = await self._finish()
        return self._staged

    async def _finish(self) -> StagedBatch:
        if self.committed:
            return StagedBatch(0, self.topic, self.records, 0, self._opened.broker)
        if self._items:
            await self._send()
        await self._stream.send(_encode(stage_api.StageFinish()))
        reply = await receive_reply(self._stream, _decode, self.topic)
        if not isinstance(reply, stage_api.Staged) or reply.stage.records != self.records:
            raise ProtocolError(f"{self.topic}: the broker did not confirm the stage; stage again")
        return reply.stage

    async def _send(self) -> None:
        items, self._items, self._items_size = self._items, [], 0
        part = encode_part(
            items,
            producer_id=NO_PRODUCER,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=0,
            publish_time_us=self._clock_us() if self._publish_time_us is None else self._publish_time_us,
            codec=self._codec,
            schema_id=self._schema.schema_id,
            schema_version=self._schema.schema_version,
        )
        self.size_bytes += len(part)
        if self._stream.over:
            # The broker's last reply is the reason.
            await receive_reply(self._stream, _decode, self.topic)
        await self._stream.send(frame_batch(part))


class Stages:
    """Stages messages, and commits stages atomically; it is :attr:`Client.stages`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._options = pool.options

    @asynccontextmanager
    async def open(
        self,
        topic: str,
        *,
        producer: str,
        batch_id: int,
        attempt: str = "",
        write_id: str = "",
        compression: Literal["lz4", "zstd"] | None = None,
        schema: SchemaRef | None = None,
    ) -> AsyncIterator[Stage]:
        """Stage messages for one topic or partition. Leaving the block without :meth:`Stage.finish` drops them.

        Args:
            topic: a plain topic (created if the broker allows that), or one partition of a partitioned one.
            producer: identity of the job, stable across restarts; batches are numbered for each.
            batch_id: number of the batch, 0 or more; a batch that is not above the last committed one counts as
                committed (:attr:`Stage.committed`).
            attempt: the attempt of the task, for people.
            write_id: the attempt of the whole job, a new one for each (:func:`uuid.uuid4`): :meth:`abort` uses
                it to drop its stages, also those of tasks that are still running then. ASCII letters, digits, ``_``,
                ``-``, ``.``.
            compression: of batches.
            schema: number and version of the schema of the messages, which are encoded already; None: they have none.

        Raises:
            FailedPreconditionError: the topic has durability ``none``, or the write was aborted.
            LimitExceededError: too much is staged (``max_stages``, ``max_staged_bytes``).
            DanubeError: the topic is unavailable, or the broker does not answer within ``request_timeout_s``.
        """
        validate_topic(topic)
        check_batch(producer, batch_id, write_id)
        if compression not in (None, "lz4", "zstd"):
            raise InvalidArgumentError(f"compression {compression!r} is unknown; known are 'lz4' and 'zstd'")
        if schema is not None and not isinstance(schema, SchemaRef):
            raise InvalidArgumentError(
                f"schema is {type(schema).__name__}; give the number and version of a registered schema as a SchemaRef"
            )
        number, version = schema or SchemaRef()
        ref = SchemaRef(check_count("schema_id", number), check_count("schema_version", version))
        codec = Codec.NONE if compression is None else Codec[compression.upper()]
        stream, opened = await self._open(stage_api.StageOpen(topic, producer, batch_id, attempt, write_id))
        async with stream:
            yield Stage(stream, topic, opened, codec, ref, self._options.environment.clock_us)

    async def _open(self, request: stage_api.StageOpen) -> tuple[ClientStream, stage_api.StageOpened]:
        """Open a stage at the home of its producer; repeat what was refused unexecuted, up to ``request_timeout_s``."""
        route, backoff = self._route(request.producer, request.topic), self._options.backoff()
        give_up_at = anyio.current_time() + self._options.request_timeout_s
        while True:
            stream: ClientStream | None = None
            try:
                channel = await self._pool.follow(route)
                stream = channel.open_stream(StageMethod.STAGE)
                opened = await self._opened(stream, request)
            except BaseException as error:
                if stream is not None:
                    stream.cancel()
                if not isinstance(error, DanubeError):
                    raise
                if route.failed(error):
                    continue
                delay_s = backoff.next_delay_s()
                unsent = stream is None and isinstance(error, ConnectionLostError) and route.asked is not None
                executed = not isinstance(error, CallRefusedError) and not unsent
                if executed or anyio.current_time() + delay_s > give_up_at:
                    raise route.explained(error) from error.__cause__
            else:
                route.served()
                return stream, opened
            await anyio.sleep(delay_s)

    async def _opened(self, stream: ClientStream, request: stage_api.StageOpen) -> stage_api.StageOpened:
        limit_s = self._options.request_timeout_s
        with anyio.move_on_after(limit_s):
            await stream.send(encoded(request))
            opened = await receive_reply(stream, _decode, request.topic)
            if not isinstance(opened, stage_api.StageOpened):
                raise ProtocolError(f"the broker answered StageOpen with {type(opened).__name__}")
            return opened
        raise DeadlineExceededError(
            f"opening a stage of {request.topic}: no answer within request_timeout_s = {limit_s:g} s"
        )

    async def commit(
        self, producer: str, batch_id: int, stages: Sequence[StagedBatch], *, label: str = ""
    ) -> StageCommit:
        """Make stages visible: all of them or none, once for this batch of this producer.

        Returns when every message has reached the durability of its topic. May be repeated, and is repeated here while
        the broker is unreachable (up to ``reconnect_timeout_s``), until it has reported the outcome of the batch.

        Args:
            producer, batch_id: as the stages were opened with.
            stages: the stages to commit; may be empty. All other stages of this batch are dropped.
            label: names the run of the producer. If nothing was committed, the reply has the label of the last
                committed batch, which distinguishes a repetition from another run that counts its batches from 0 again.

        Raises:
            FailedPreconditionError: a stage is missing, has expired, or belongs to another producer or batch, or its
                topic was deleted. Nothing is committed.
            InvalidArgumentError: a stage is named twice.
            UnavailableError: the broker has decided to commit, and cannot finish now (the message says why). It
                continues by itself; commit again to get the outcome.
            DanubeError: any other error.
        """
        check_batch(producer, batch_id)
        stages = checked_stages(stages)
        if any(not stage.stage_id for stage in stages):
            last = await self.last_batch(producer)
            if last is None or last < batch_id:
                raise FailedPreconditionError(
                    f"producer {producer!r}: a stage reported batch {batch_id} as committed, but the last commit is"
                    f" that of batch {last}: the broker has lost or forgotten the commit; stage again"
                )
        request = stage_api.CommitStages(
            producer, batch_id, [stage.stage_id for stage in stages if stage.stage_id], label
        )
        topics = {stage.topic for stage in stages if stage.stage_id}
        return await self._at_home(producer, topics, StageMethod.COMMIT, request, StageCommit, patient=True)

    async def abort(
        self, producer: str, batch_id: int, stages: Sequence[StagedBatch] = (), *, write_id: str = ""
    ) -> bool:
        """Drop stages (none named: all of the batch), and return whether the batch has been committed already.

        A committed batch remains committed: a client that has lost the reply to a commit may call this.

        Args:
            producer, batch_id: as the stages were opened with.
            stages: those to drop; empty: all of the batch, or of the write.
            write_id: as the stages were opened with: all of them are dropped, and those that its tasks open or finish
                later are refused, also after a restart of the broker (limits ``max_aborted_writes``,
                ``aborted_write_expiry_s``). Not together with ``stages``.

        Raises:
            InvalidArgumentError: stages and a write are named.
            DanubeError: any other error.
        """
        check_batch(producer, batch_id, write_id)
        stages = checked_stages(stages)
        if stages and write_id:
            raise InvalidArgumentError(f"abort takes either stages or the write {write_id!r}, not both")
        ids = [stage.stage_id for stage in stages]
        if stages and not any(ids):
            last = await self.last_batch(producer)
            return last is not None and last >= batch_id
        request = stage_api.AbortStages(producer, batch_id, [number for number in ids if number], write_id)
        if stages:
            topics = {stage.topic for stage in stages}
            return (
                await self._at_home(producer, topics, StageMethod.ABORT, request, stage_api.AbortedStages)
            ).committed
        return any(
            each.committed for each in await everywhere(self._pool, StageMethod.ABORT, request, stage_api.AbortedStages)
        )

    async def last_batch(self, producer: str) -> int | None:
        """Return the last committed batch of a producer; None if there is none, or the broker has forgotten it."""
        check_batch(producer, 0)
        request = stage_api.LastBatch(producer)
        found = await everywhere(self._pool, StageMethod.LAST_BATCH, request, stage_api.LastBatchIs)
        return max((each.batch_id for each in found if each.batch_id is not None), default=None)

    async def describe(self, producer: str = "") -> stage_api.StageList:
        """Return the stages of a producer, the oldest first of each broker, and the totals of all brokers.

        Args:
            producer: empty for the stages of all producers.
        """
        lists = await everywhere(self._pool, StageMethod.LIST, stage_api.ListStages(producer), stage_api.StageList)
        if len(lists) == 1:
            return lists[0]
        return stage_api.StageList(
            [stage for each in lists for stage in each.stages],
            sum(each.total for each in lists),
            sum(each.size_bytes for each in lists),
            sum(each.limit_bytes for each in lists),
        )

    # --- Brokers ---

    async def _at_home(
        self, producer: str, topics: AbstractSet[str], path: str, request: Any, kind: type[T], *, patient: bool = False
    ) -> T:
        """Make a call to the broker that holds the stages of a producer; repeat it after a connection loss.

        With ``patient`` it has no deadline.
        """
        limit_s = None if patient else self._options.request_timeout_s

        route: Route | None = None

        async def call() -> T:
            nonlocal route
            if route is None:
                route = await self._route_home(producer, topics)
            return await self._pool.attempt(path, request, kind, timeout_s=limit_s, route=route)

        return await self._retry().repeat(call)

    def _route(self, producer: str, topic: str = "") -> Route:
        """Return the way to the home of a producer; while that is not known, to the owner of a topic of it."""
        brokers, home = self._pool.brokers, f"stages of {producer}"  # no topic has such a name
        if brokers.owner(home) is None and topic:
            owner = brokers.owner(topic)
            if owner is not None:
                brokers.own(home, Owner(owner.address, 0))
        return self._pool.route(home)

    async def _route_home(self, producer: str, topics: AbstractSet[str]) -> Route:
        """Return the way to the home of a producer. If that is not known, an owner of its topics is asked first.

        Brokers without homes hold the stages of their own topics.
        """
        route = self._route(producer)
        if route.address is not None:
            return route
        for base in sorted({(split_partition(topic) or (topic, 0))[0] for topic in topics}):
            try:
                found = await self._pool.attempt(
                    api.Method.LOOKUP_TOPIC,
                    api.LookupTopic(base, self._pool.revision),
                    api.TopicPartitions,
                    timeout_s=self._options.request_timeout_s,
                )
            except NotFoundError:
                continue  # the broker reports that it was deleted
            self._pool.learn(found)
        known = [topic for topic in sorted(topics) if self._pool.brokers.owner(topic) is not None]
        return self._route(producer, known[0] if known else "")

    def _retry(self) -> Retry:
        retry = Retry(self._pool)
        retry.succeeded_once = True  # there was a connection: it may take reconnect_timeout_s to be restored
        return retry
