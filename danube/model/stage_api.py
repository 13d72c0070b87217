"""The native API of staged publishing: batches are stored invisibly, and committed together exactly once.

A distributed job writes with many tasks and commits in one place. Its tasks *stage*: each opens a stream, sends batches
for one topic or partition, and gets a :class:`StagedBatch`, a small value that it passes to the committing process.
That process *commits* the stages of one batch: all or none of them become messages of their topics, once for each
(producer, batch id), even if the commit is repeated. A stage that is never committed stays invisible and expires.

Like :mod:`danube.model.api`: msgspec Structs, encoded as msgpack arrays, new fields at the
end with a default. Streams carry tagged unions.

``Stage`` (bidirectional)::

    client: StageOpen, then StageBatch ..., then StageFinish
    broker: StageOpened, then (when all data is on its disk) Staged

The parts in StageBatch are those of :mod:`danube.model.batch`, with producer id, epoch and sequence 0: the broker fills
them in when they are committed. The other calls are unary.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.ids import Offset

__all__ = [
    "AbortStages",
    "AbortedStages",
    "CommitStages",
    "LastBatch",
    "LastBatchIs",
    "ListStages",
    "StageBatch",
    "StageCommit",
    "StageFinish",
    "StageInfo",
    "StageList",
    "StageMethod",
    "StageOpen",
    "StageOpened",
    "StageReply",
    "StageRequest",
    "StageState",
    "Staged",
    "StagedBatch",
]


class StageMethod:
    """Paths of the calls."""

    STAGE: Final = "/danube.native.v1.Stages/Stage"
    COMMIT: Final = "/danube.native.v1.Stages/Commit"
    ABORT: Final = "/danube.native.v1.Stages/Abort"
    LAST_BATCH: Final = "/danube.native.v1.Stages/LastBatch"
    LIST: Final = "/danube.native.v1.Stages/List"


class StageState:
    """States of a stage."""

    OPEN: Final = "open"
    """Its stream is still sending."""
    STAGED: Final = "staged"
    """Finished: it waits for its commit."""
    COMMITTING: Final = "committing"
    """Its commit is decided, and is being written to the topics."""


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of plain messages."""


class _Value(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Base of messages visible to applications."""


class _Tagged(_Message, tag_field="tag"):
    """Base of messages that travel in a union."""


class StagedBatch(_Value, frozen=True):
    """A finished stage, for the committing process. It can be pickled."""

    stage_id: int
    """Id of the stage; 0 if the batch was committed before, and nothing had to be staged."""
    topic: str
    """Its topic or partition."""
    records: int
    size_bytes: int
    """Bytes of its stored parts."""
    broker: str
    """The broker that holds it."""
    traceparent: str = ""
    """The context of the span that has staged it, by a client with telemetry; brokers leave it empty."""


# --- Staging ---------------------------------------------------------------------------------------------------------


class StageOpen(_Tagged, tag=0):
    """First message of a Stage stream."""

    topic: str
    """A plain topic or one partition; a partitioned base name is refused."""
    producer: str
    """Producer of the batch: the identity of the job, stable over its restarts."""
    batch_id: int
    """Number of the batch; batch ids increase."""
    attempt: str = ""
    """Task and attempt, for display."""
    write_id: str = ""
    """Id of the attempt of the whole job: ASCII letters, digits, ``_``, ``-``, ``.``; at most 255. An abort that names
    it also drops this stage, and refuses it if it is opened or finished afterwards. Empty: dropped only by an abort of
    the batch."""


class StageBatch(_Tagged, tag=1):
    """One batch of messages."""

    part: bytes


class StageFinish(_Tagged, tag=2):
    """End of the batches; answered by Staged. A stream that ends without it drops the stage."""


StageRequest = StageOpen | StageBatch | StageFinish


class StageOpened(_Tagged, tag=0):
    """Answer to StageOpen."""

    stage_id: int
    committed: bool
    """The batch was committed before. The stream ends, and the client need not send anything."""
    broker: str
    max_batch_bytes: int
    max_message_bytes: int


class Staged(_Tagged, tag=1):
    """Answer to StageFinish: all data is on the broker's disk."""

    stage: StagedBatch


StageReply = StageOpened | Staged


# --- Deciding --------------------------------------------------------------------------------------------------------


class CommitStages(_Message):
    """Asks to make stages visible; answered with StageCommit when all messages have their topics' durability."""

    producer: str
    batch_id: int
    stage_ids: list[int]
    """All valid stages of the batch, possibly none. Other stages of this and earlier batches are dropped."""
    label: str = ""
    """Identifies the run of the producer that commits, at most 255 characters; stored with its last batch."""


class StageCommit(_Value, frozen=True):
    """Outcome of a commit."""

    committed: bool
    """Whether this call has committed the batch; False if this batch, or a later one, was committed before."""
    offsets: dict[str, tuple[Offset, Offset]]
    """For each topic or partition ``(start, end)``: no message of the batch is before ``start``, and the last one is
    right before ``end``. Messages of other producers may be among them. Known for the latest batch of a producer; empty
    for earlier ones. A topic that was deleted after the decision is missing."""
    label: str = ""
    """Label with which the producer's last batch was committed."""


class AbortStages(_Message):
    """Asks to drop stages; a committed batch stays committed."""

    producer: str
    batch_id: int
    stage_ids: list[int]
    """Ids of the stages; empty means all of this batch."""
    write_id: str = ""
    """All stages of this batch that were opened with this id, now or later, instead of any in ``stage_ids``."""


class AbortedStages(_Value, frozen=True):
    """Answer to AbortStages."""

    dropped: int
    committed: bool
    """Whether the batch is committed."""


class LastBatch(_Message):
    """Asks for the last batch of a producer that was committed."""

    producer: str


class LastBatchIs(_Message):
    """Answer to LastBatch."""

    batch_id: int | None
    """None if the producer has committed nothing, or its last batch has expired."""


class ListStages(_Message):
    """Asks for the list of stages; an empty producer means all producers."""

    producer: str = ""


class StageInfo(_Value, frozen=True, kw_only=True):
    """One stage."""

    stage_id: int
    topic: str
    producer: str
    batch_id: int
    attempt: str
    state: str
    """See :class:`StageState`."""
    records: int
    size_bytes: int
    age_s: float


class StageList(_Message):
    """Answer to ListStages: at most 10,000 stages, the oldest first."""

    stages: list[StageInfo]
    total: int
    """Number of all stages."""
    size_bytes: int
    """Bytes of all stages."""
    limit_bytes: int
    """The limit max_staged_bytes."""
