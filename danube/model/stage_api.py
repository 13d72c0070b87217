"""The native API of staged publishing: batches that are stored out of sight, and shown together, once.

A distributed job writes with many tasks and decides in one place. Its tasks *stage*: each opens a stream, sends batches
for one topic or partition, and gets a :class:`StagedBatch`, a small value that it hands to the place that decides.
That place *commits* the stages of one batch: all of them become messages of their topics, or none does, once for each
(producer, batch id), however often it asks. A stage that nobody commits is invisible, and expires.

A sister of :mod:`danube.model.api`, with the same rules: msgspec Structs, encoded as msgpack arrays, new fields at the
end with a default. Streams carry tagged unions.

``Stage`` (bidirectional)::

    client: StageOpen, then StageBatch ..., then StageFinish
    broker: StageOpened, then (when everything is on its disk) Staged

The parts in StageBatch are those of :mod:`danube.model.batch`, with producer id, epoch and sequence 0: the broker fills
them in when they are committed. The other calls are unary.
"""

from __future__ import annotations

from typing import Final

import msgspec

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
    """What a stage can be."""

    OPEN: Final = "open"
    """Its stream still sends."""
    STAGED: Final = "staged"
    """Finished: it waits for its commit."""
    COMMITTING: Final = "committing"
    """Its commit is decided, and on its way into the topics."""


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of plain messages."""


class _Value(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Base of messages that applications get to see."""


class _Tagged(_Message, tag_field="tag"):
    """Base of messages that travel in a union."""


class StagedBatch(_Value, frozen=True):
    """A finished stage, for whoever commits. It can be pickled."""

    stage_id: int
    """Names it; 0 if the batch was committed before, and nothing had to be staged."""
    topic: str
    """The topic or partition that it is for."""
    records: int
    size_bytes: int
    """Of its parts, as they are stored."""
    broker: str
    """The broker that holds it."""


# --- Staging ---------------------------------------------------------------------------------------------------------


class StageOpen(_Tagged, tag=0):
    """First message of a Stage stream."""

    topic: str
    """A plain topic or one partition; a partitioned base name is refused."""
    producer: str
    """Whose batch it is: the identity of the job, stable over its restarts."""
    batch_id: int
    """Which of its batches; they count upwards."""
    attempt: str = ""
    """Which try of which task, for people who look."""
    write_id: str = ""
    """Which try of the whole job: ASCII letters, digits, ``_``, ``-``, ``.``; at most 255. An abort that names it takes
    this stage, too, and refuses it if it is opened or finished afterwards. Empty: no abort but that of the batch."""


class StageBatch(_Tagged, tag=1):
    """One batch of messages."""

    part: bytes


class StageFinish(_Tagged, tag=2):
    """There are no more; answered by Staged. A stream that ends without it drops the stage."""


StageRequest = StageOpen | StageBatch | StageFinish


class StageOpened(_Tagged, tag=0):
    """Answer to StageOpen."""

    stage_id: int
    committed: bool
    """The batch was committed before. Nothing more needs to be sent, and the stream ends."""
    broker: str
    max_batch_bytes: int
    max_message_bytes: int


class Staged(_Tagged, tag=1):
    """Answer to StageFinish: everything is on the broker's disk."""

    stage: StagedBatch


StageReply = StageOpened | Staged


# --- Deciding --------------------------------------------------------------------------------------------------------


class CommitStages(_Message):
    """Asks to make stages visible; answered with StageCommit when every message is as durable as its topic says."""

    producer: str
    batch_id: int
    stage_ids: list[int]
    """All stages of the batch that count, perhaps none. Other stages of this and earlier batches are dropped."""
    label: str = ""
    """Which run of the producer commits, at most 255 characters; remembered with its last batch."""


class StageCommit(_Value, frozen=True):
    """Outcome of a commit."""

    committed: bool
    """Whether this call has committed the batch; False if it, or a later one, was committed before."""
    offsets: dict[str, tuple[int, int]]
    """For each topic or partition ``(start, end)``: no message of the batch is before ``start``, and the last one is
    right before ``end``. Messages of other producers may be among them. Known for the latest batch of a producer; empty
    for earlier ones. A topic that was deleted after the decision is not there."""
    label: str = ""
    """That the producer's last batch was committed with."""


class AbortStages(_Message):
    """Asks to drop stages; a batch that was committed stays so."""

    producer: str
    batch_id: int
    stage_ids: list[int]
    """None means all of this batch."""
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
    """None if the producer has committed nothing, or not for so long that it is forgotten."""


class ListStages(_Message):
    """Asks what is staged; an empty producer means everybody."""

    producer: str = ""


class StageInfo(_Value, frozen=True):
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
    """How many there are."""
    size_bytes: int
    """Of all of them."""
    limit_bytes: int
    """The limit max_staged_bytes."""
