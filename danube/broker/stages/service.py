"""The calls of staged publishing, and the task that completes, removes and expires stages.

A Stage stream takes the batches that have arrived, checks them like a publish stream, writes them with one synced
write, and returns the credit: the more there are, the larger the writes, and a slow disk slows down only the staging
clients. A stream that ends before it has finished leaves nothing behind.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.broker.runtime.stage_disk import StageDisk
from danube.broker.stages.aborted import AbortedWrites, Write
from danube.broker.stages.committing import Committer
from danube.broker.stages.decisions import aborted, held_producers, topics_of
from danube.broker.stages.format import StageHead
from danube.broker.stages.ledger import Known, Ledger
from danube.broker.stages.store import StageStore
from danube.broker.stages.stored import StoredStage
from danube.model import api, validate_name
from danube.model.batch import BatchHeader, check_part
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    DanubeError,
    DataDirectoryError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotOwnerError,
    OwnerAwayError,
)
from danube.model.ids import ProducerId, TopicId
from danube.model.log_events import log_event
from danube.model.names import MAX_NAME_LENGTH, validate_identifier
from danube.model.stage_api import (
    AbortedStages,
    AbortStages,
    CommitStages,
    LastBatch,
    LastBatchIs,
    ListStages,
    StageBatch,
    StageCommit,
    Staged,
    StageFinish,
    StageList,
    StageMethod,
    StageOpen,
    StageOpened,
    StageRequest,
    StageState,
)
from danube.wire import Context, Message, Method, ServerStream, Service

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.stages.distant import Neighbours
    from danube.broker.stages.homes import Homes
    from danube.broker.stages.near import Place
    from danube.peers import Peer, Peers

__all__ = ["CHANNEL", "Stages"]

_log = logging.getLogger("danube.broker")

CHANNEL: Final = "stages"
"""The channel of calls between brokers about stages; see :mod:`danube.broker.stages.distant`."""
_MOST_LISTED: Final = 10_000
_MAX_BATCH_ID: Final = 2**63 - 1
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_LONGEST_ROUND_S: Final = 60.0
_HELD_S: Final = 300.0
"""How often the commits of other brokers are looked at: more often than topics forget producers."""

_REQUEST = msgspec.msgpack.Decoder(StageRequest)
_encode = msgspec.msgpack.Encoder().encode


class Stages:
    """All stages of a broker. Load it once the topics are loaded, and run it beside them."""

    def __init__(self, directory: Directory, disk: StageDisk) -> None:
        self._directory = directory
        self._limits = directory.runtime.limits
        self._clock_us = directory.runtime.clock_us
        self._store = StageStore(disk, self._limits)
        self._ledger = Ledger(directory.catalogue.store, directory.membership.broker, self._limits, self._clock_us)
        self._aborted = AbortedWrites(directory.catalogue.store, self._limits, self._clock_us)
        self._peers: tuple[Peers, Callable[[], bool]] | None = None
        self._held: Collection[ProducerId] = frozenset()
        """Producers of commits that other brokers have decided."""
        self._held_at = -math.inf
        """When that was found."""
        self._committer = Committer(directory, self._store, self._ledger, lambda: self._neighbours)
        self._wake = trio.Event()

    @property
    def held_producers(self) -> Container[ProducerId]:
        """Ids of producers that their topics must not forget."""
        if self._directory.membership.is_alone:
            return self._committer.held
        age_s = trio.current_time() - self._held_at
        return held_producers(self._committer.held, self._held, age_s, self._limits.anonymous_producer_expiry_s)

    def begin(self, peers: Peers, is_serving: Callable[[], bool]) -> None:
        """Reach other brokers from now on, and answer them while this one serves."""
        self._peers = peers, is_serving
        peers.on_call(CHANNEL, self._answer)

    async def _answer(self, peer: Peer, payload: bytes) -> bytes:
        """Answer the owner of a producer's stages, about a topic of this broker."""
        return await self._neighbours.answer(peer, payload)

    @cached_property
    def _neighbours(self) -> Neighbours:
        """The other brokers; not imported by a broker alone."""
        from danube.broker.stages.distant import Neighbours

        return Neighbours(self._directory, self._peers)

    @cached_property
    def _homes(self) -> Homes:
        """The homes of producers; not imported by a broker alone."""
        from danube.broker.stages.homes import Homes

        return Homes(self._directory, self._ledger, self._clock_us)

    async def _require_home(self, producer: str, elsewhere: NotOwnerError | None = None) -> None:
        """Make sure that this broker may stage for a producer; see :meth:`Homes.require`."""
        if not self._directory.membership.is_alone:
            await self._homes.require(producer, elsewhere)
        elif elsewhere is not None:
            raise elsewhere

    @property
    def used_bytes(self) -> int:
        """Bytes of all stages."""
        return self._store.used_bytes

    def holds(self, topic_id: TopicId) -> bool:
        """Whether there are stages of a topic or partition that have to stay with it, because they have no home yet."""
        return any(
            stage.head.topic_id == topic_id and not self._homes.is_here(stage.head.producer) for stage in self._store
        )

    async def _claim_stages(self) -> None:
        """Become the home of producers whose stages are here from before the broker had others, or was restarted."""
        for producer in {stage.head.producer for stage in self._store}:
            try:
                await self._require_home(producer)
            except (NotOwnerError, OwnerAwayError, DataLossError) as error:
                _log.info("stages of %r are of no use here: %s", producer, error)

    def held_topics(self) -> set[TopicId]:
        """Return the topics and partitions of which :meth:`holds` is true."""
        return {stage.head.topic_id for stage in self._store if not self._homes.is_here(stage.head.producer)}

    def topics_of(self, producer: str, stage_ids: Iterable[int], write_id: str) -> set[str]:
        """Return the topics of some stages, of all others of their producer or write, and of its last commit."""
        known = self._ledger.find(producer)
        return topics_of(self._store, known.record if known is not None else None, producer, stage_ids, write_id)

    async def load(self) -> None:
        """Load the stages that exist on the disk.

        Raises:
            DataDirectoryError: the disk cannot be read.
        """
        try:
            await self._store.load()
        except OSError as error:
            raise DataDirectoryError(
                f"data directory {self._directory.runtime.config.data_directory}: its stages cannot be read"
                f" ({error}); make sure that the broker's user may read and write it"
            ) from error
        await self._ledger.load()
        await self._aborted.load()
        self._committer.load()
        for stage in self._store:
            # The files of dropped stages are removed later, and a task may have finished one while the broker crashed.
            if stage.state != StageState.COMMITTING and _write_of(stage.head) in self._aborted:
                self._store.drop(stage)

    def service(self) -> Service:
        """Return the methods, by path."""
        methods = [
            Method(
                path=StageMethod.STAGE,
                kind="bidi",
                handler=self.stage,
                opening=StageOpen,
                max_request_bytes=self._limits.max_batch_bytes + 64,
            ),
            Method(path=StageMethod.COMMIT, kind="unary", handler=self.commit, request_type=CommitStages),
            Method(path=StageMethod.ABORT, kind="unary", handler=self.abort, request_type=AbortStages),
            Method(path=StageMethod.LAST_BATCH, kind="unary", handler=self.last_batch, request_type=LastBatch),
            Method(path=StageMethod.LIST, kind="unary", handler=self.list, request_type=ListStages),
        ]
        return {method.path: method for method in methods}

    async def _find_home(self, producer: str) -> None:
        """Raise NotOwnerError or OwnerAwayError if another broker decides about a producer."""
        if not self._directory.membership.is_alone:
            await self._homes.find(producer)

    # --- Staging ---

    async def stage(self, stream: ServerStream, context: Context) -> None:
        """Handle one Stage call."""
        first = await stream.receive()
        request = None if first is None else _decode(first)
        if first is None or not isinstance(request, StageOpen):
            raise InvalidArgumentError("a Stage stream begins with StageOpen")
        first.release()
        _check_batch(request.producer, request.batch_id, request.write_id)
        if len(request.attempt) > MAX_NAME_LENGTH:
            raise InvalidArgumentError(f"the attempt of a stage has more than {MAX_NAME_LENGTH} characters")
        directory = self._directory
        place = await self._place(request)
        with directory.runtime.namespace_connections.using(place.name, context.connection_id):
            await self._stage(place, request, stream)

    async def _place(self, request: StageOpen) -> Place:
        """Return the topic of a stage that this broker holds, although another one may own the topic.

        Raises:
            NotOwnerError: another broker holds the stages of the producer, or is to do so.
            DanubeError: the topic does not exist, or cannot be reached now.
        """
        directory = self._directory
        try:
            topic = await directory.for_producer(api.PublishOpen(request.topic, request.producer))
        except NotOwnerError as error:
            await self._require_home(request.producer, elsewhere=error)
            _, topic_id = directory.catalogue.locate(request.topic)
            return await self._neighbours.place(request.topic, topic_id)
        await self._require_home(request.producer)
        from danube.broker.stages.near import NearPlace  # most brokers have no stages

        return NearPlace(topic, self._limits)

    async def _stage(self, topic: Place, request: StageOpen, stream: ServerStream) -> None:
        directory = self._directory
        if topic.lossy:
            raise FailedPreconditionError(
                f"topic {topic.name!r} has durability 'none': it stores nothing, so nothing can be staged for it;"
                " create it with durability os, disk or remote"
            )
        limits = self._limits
        opened = StageOpened(
            0, False, directory.runtime.config.cluster, limits.max_batch_bytes, topic.max_message_bytes
        )
        if self._is_decided(request.producer, request.batch_id):
            opened.committed = True
            stream.send_nowait(_encode(opened))
            return
        if Write(request.producer, request.batch_id, request.write_id) in self._aborted:
            raise FailedPreconditionError(
                f"topic {topic.name!r}: nothing can be staged for batch {request.batch_id} of {request.producer!r} by"
                f" write {request.write_id!r}: it was aborted; repeat the job as another write with an id of its own"
            )
        head = StageHead(
            directory.runtime.new_id(),
            topic.name,
            topic.topic_id,
            request.producer,
            request.batch_id,
            request.attempt,
            self._clock_us(),
            request.write_id,
        )
        stage = self._store.create(head)
        try:
            stage.fail = stream.abandon
            opened.stage_id = head.stage_id
            stream.send_nowait(_encode(opened))
            if await self._write(stage, topic, stream):
                refusal = stage.refusal  # the last write may have completed although its stream was ended
                if self._is_decided(request.producer, request.batch_id):
                    refusal = FailedPreconditionError(f"{stage}: the batch was committed without it meanwhile")
                if refusal is not None:
                    stage.state = StageState.OPEN
                    raise refusal
                stream.send_nowait(_encode(Staged(stage.staged(directory.runtime.config.cluster))))
        finally:
            if stage.state == StageState.OPEN:
                self._store.drop(stage)

    async def _write(self, stage: StoredStage, topic: Place, stream: ServerStream) -> bool:
        """Write batches as they arrive; return whether the stage is finished."""
        while (message := await stream.receive()) is not None:
            messages = [message, *stream.receive_nowait()]
            parts: list[tuple[bytes, BatchHeader]] = []
            finished = False
            for each in messages:
                request = _decode(each)
                if finished or isinstance(request, StageOpen):
                    raise InvalidArgumentError(
                        "a Stage stream carries StageOpen once, then StageBatch, and StageFinish at its end"
                    )
                if isinstance(request, StageFinish):
                    finished = True
                else:
                    parts.append((request.part, _checked(request)))
            await topic.judge(parts)
            await self._store.append(stage, parts, finish=finished)
            for each in messages:
                each.release()
            if finished:
                return True
        return False

    def _is_decided(self, producer: str, batch_id: int) -> bool:
        known = self._ledger.find(producer)
        last = None if known is None else known.last_batch
        return last is not None and batch_id <= last

    # --- Decision ---

    async def commit(self, request: CommitStages, _context: Context) -> StageCommit:
        """Make stages visible, all or none, once. A commit that has begun continues if the caller disconnects."""
        _check_batch(request.producer, request.batch_id)
        twice = [number for number, count in Counter(request.stage_ids).items() if count > 1]
        if twice:
            raise InvalidArgumentError(
                f"batch {request.batch_id} of producer {request.producer!r} names stage {twice[0]:016x} twice"
            )
        if len(request.label) > MAX_NAME_LENGTH:
            raise InvalidArgumentError(f"the label of a commit has more than {MAX_NAME_LENGTH} characters")
        await self._find_home(request.producer)
        known = await self._ledger.known(request.producer)
        outcome: list[StageCommit] = []

        async def work() -> None:
            async with known.lock:
                outcome.append(await self._committer.commit(known, request.batch_id, request.stage_ids, request.label))

        try:
            await self._directory.runtime.finish(work)
        finally:
            self._ledger.forget_unused(known)
            if known.pending:
                self._wake.set()
        return outcome[0]

    async def abort(self, request: AbortStages, _context: Context) -> AbortedStages:
        """Drop stages of a batch that was not committed; of a write also stages that are created later."""
        _check_batch(request.producer, request.batch_id, request.write_id)
        if request.write_id and request.stage_ids:
            raise InvalidArgumentError(
                f"an abort names either a write ({request.write_id!r}) or stages ({len(request.stage_ids)}), not both"
            )
        if request.stage_ids:  # without them each broker is told, and drops what it has
            await self._find_home(request.producer)
        dropped, known = 0, self._ledger.find(request.producer)
        if known is None:
            dropped = self._drop(request)
        else:
            async with known.lock:
                await self._committer.refresh(known)
                dropped = self._drop(request)
        if request.write_id and not self._is_decided(request.producer, request.batch_id):
            # It is refused from here on: there was no await since its stages were dropped.
            await self._aborted.remember(Write(request.producer, request.batch_id, request.write_id))
        last = await self._last_batch(request.producer)
        return AbortedStages(dropped, last is not None and request.batch_id <= last)

    def _drop(self, request: AbortStages) -> int:
        named = aborted(self._store, request)
        for stage in named:
            self._end(stage, f"{stage}: it was aborted")
        return len(named)

    def _end(self, stage: StoredStage, why: str) -> None:
        """Drop a stage that is not being appended to its topic."""
        if stage.fail is None:
            self._store.drop(stage)
        else:
            stage.refusal = FailedPreconditionError(why)
            stage.fail(stage.refusal)  # its own task drops it

    async def last_batch(self, request: LastBatch, _context: Context) -> LastBatchIs:
        """Return the last batch that was decided."""
        return LastBatchIs(await self._last_batch(request.producer))

    async def _last_batch(self, producer: str) -> int | None:
        """Return the last batch that was decided by this broker, or by one that is gone."""
        former = None if self._directory.membership.is_alone else await self._homes.last_batch_of_gone(producer)
        known = self._ledger.find(producer)
        if known is None:
            return former
        if not known.certain:
            async with known.lock:
                await self._committer.refresh(known)
        return max((last for last in (former, known.last_batch) if last is not None), default=None)

    async def list(self, request: ListStages, _context: Context) -> StageList:
        """List the stages."""
        now_us = self._clock_us()
        found = [stage for stage in self._store if request.producer in ("", stage.head.producer)]
        found.sort(key=lambda stage: (stage.head.created_us, stage.head.stage_id))
        return StageList(
            [stage.info(now_us) for stage in found[:_MOST_LISTED]],
            len(found),
            self._store.used_bytes,
            self._limits.max_staged_bytes,
        )

    # --- Upkeep ---

    async def run(self) -> None:
        """Complete decided commits, remove dropped stages, and expire old ones; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._store.sweep)
            nursery.start_soon(self._expire)
            nursery.start_soon(self._carry_on)

    async def _carry_on(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._wake = trio.Event()
            pending = [known for known in self._ledger if known.pending]
            async with trio.open_nursery() as nursery:
                for known in pending:
                    if not known.lock.locked():  # else another task completes it
                        nursery.start_soon(self._settle, known)
            if any(known.pending for known in self._ledger):
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                pause_s = _FIRST_PAUSE_S
                await self._wake.wait()

    async def _settle(self, known: Known) -> None:
        before = known.problem
        try:
            async with known.lock:
                await self._committer.settle(known)
        except DanubeError as error:
            if before is None or known.problem is None or before.message != known.problem.message:
                _log.error(
                    "staged batches of %r are delayed; retrying: %s",
                    known.name,
                    error,
                    extra=log_event("stage.delayed", producer=known.name),
                )

    def _is_used(self, producer: str) -> bool:
        """Whether there is a commit or a stage of a producer."""
        return self._ledger.find(producer) is not None or any(stage.head.producer == producer for stage in self._store)

    async def _expire(self) -> None:
        expiry_s = self._limits.stage_expiry_s
        while True:
            await trio.sleep(min(expiry_s / 4, _LONGEST_ROUND_S))
            before_us = self._clock_us() - int(expiry_s * 1e6)
            for stage in self._store:
                if stage.head.created_us < before_us and stage.state != StageState.COMMITTING:
                    _log.warning(
                        "%s expires: it was not committed for %g s", stage, expiry_s, extra=log_event("stage.expired")
                    )
                    self._end(stage, f"{stage}: it has expired after stage_expiry_s = {expiry_s:g}")
            try:
                await self._aborted.expire()
                await self._ledger.expire()
                await self._claim_stages()
                began = trio.current_time()
                if began >= self._held_at + _HELD_S and not self._directory.membership.is_alone:
                    self._held = await self._homes.held()
                    self._held_at = began
                    await self._homes.release(self._is_used, before_us)
            except DanubeError as error:
                _log.warning(
                    "idle producers of staged batches and aborted writes cannot be removed; retrying later: %s",
                    error,
                    extra=log_event("stage.cleanup_delayed"),
                )


def _write_of(head: StageHead) -> Write:
    return Write(head.producer, head.batch_id, head.write_id)


def _checked(request: StageBatch) -> BatchHeader:
    header = check_part(request.part)
    if header.producer_id or header.producer_epoch or header.base_sequence:
        raise InvalidArgumentError("a staged batch has no producer and sequence yet; leave them 0")
    return header


def _check_batch(producer: str, batch_id: int, write_id: str = "") -> None:
    validate_name("producer", producer)
    if write_id:
        validate_identifier("write", write_id)
    if not 0 <= batch_id <= _MAX_BATCH_ID:
        raise InvalidArgumentError(f"producer {producer!r}: batch id {batch_id} is not between 0 and {_MAX_BATCH_ID}")


def _decode(message: Message) -> StageRequest:
    try:
        request: StageRequest = _REQUEST.decode(message.data)
        return request
    except UNDECODABLE as error:
        raise InvalidArgumentError(f"Stage: the message does not decode: {error}") from error
