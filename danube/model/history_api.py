"""The native API of sealed history: sealing, retention, storages, and restoring topics from a bucket.

Like :mod:`danube.model.api`: msgspec Structs, encoded as msgpack arrays, new fields at the
end with a default. All calls are unary. Some of them take as long as reading a whole storage, so a client
sets no deadline for them; both sides detect a lost peer by PING.

Lists of findings are truncated at :data:`MOST_NAMES`; the number beside a list is the full count.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.ids import Offset, OwnerEpoch, TopicId
from danube.model.policies import Durability, Retention

__all__ = [
    "MOST_NAMES",
    "ChangeRetention",
    "CheckStorage",
    "ForgetStranded",
    "HistoryMethod",
    "OperationFigures",
    "RepairStorage",
    "RestoreReport",
    "RestoreTopics",
    "RestoredTopic",
    "RetentionOutcome",
    "RetentionPlans",
    "SealTopic",
    "SealedTopic",
    "SealedTopics",
    "SealingFigures",
    "StorageFindings",
    "StorageStatus",
    "StoragesStatus",
    "StrandedTopic",
    "StrandedTopics",
    "UnloadTopic",
]

MOST_NAMES: Final = 1000
"""Maximum number of names in a list of findings."""


class HistoryMethod:
    """Paths of the calls."""

    SEAL_TOPIC: Final = "/danube.native.v1.Topics/Seal"
    UNLOAD_TOPIC: Final = "/danube.native.v1.Topics/Unload"
    CHANGE_RETENTION: Final = "/danube.native.v1.Topics/ChangeRetention"
    RESTORE_TOPICS: Final = "/danube.native.v1.Topics/Restore"
    STORAGES_STATUS: Final = "/danube.native.v1.Storages/Status"
    CHECK_STORAGE: Final = "/danube.native.v1.Storages/Check"
    REPAIR_STORAGE: Final = "/danube.native.v1.Storages/Repair"
    LIST_STRANDED: Final = "/danube.native.v1.Topics/ListStranded"
    FORGET_STRANDED: Final = "/danube.native.v1.Topics/ForgetStranded"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages."""


# --- Topics ----------------------------------------------------------------------------------------------------------


class SealTopic(_Message):
    """Asks to seal all data of a topic (of all its partitions); answered with SealedTopics when done."""

    topic: str


class UnloadTopic(_Message):
    """Asks to disconnect all clients from a topic and to seal it; answered with SealedTopics."""

    topic: str


class SealedTopic(_Message):
    """Extent of a topic or partition: sealed in ``[start_offset, sealed_offset)``, not sealed up to ``end_offset``."""

    topic: str
    start_offset: Offset
    sealed_offset: Offset
    end_offset: Offset
    parts: int
    objects: int
    sealed_bytes: int


class SealedTopics(_Message):
    """Answer to SealTopic and UnloadTopic, one row for each partition."""

    topics: list[SealedTopic]


class ChangeRetention(_Message):
    """Changes a topic's retention rules, applies them, or reports their effect."""

    topic: str
    retention: Retention | None = None
    """The complete new rules; None leaves the rules unchanged."""
    dry_run: bool = False
    """Change nothing: only report what would be removed."""
    now: bool = False
    """Apply the rules before answering; otherwise they are applied within a minute."""


class RetentionOutcome(_Message):
    """Effect of the rules on a topic or partition: messages below ``new_start_offset`` are removed."""

    topic: str
    start_offset: Offset
    new_start_offset: Offset
    end_offset: Offset
    freed_bytes: int
    """Bytes of sealed batches; the journal frees its share when its files are recycled."""
    freed_parts: int


class RetentionPlans(_Message):
    """Answer to ChangeRetention."""

    retention: Retention
    """The rules that the plans were computed for."""
    applied: bool
    """Whether the plans were carried out."""
    plans: list[RetentionOutcome]
    """One for each partition."""


class StrandedTopic(_Message):
    """A topic with entries in the journal that the metadata do not know; they are kept, and not served."""

    topic_id: TopicId
    journal_bytes: int
    """Size of its messages in the journal."""
    end_offset: Offset
    """After the last of these messages; 0 if there are none, only cursors or producers."""


class StrandedTopics(_Message):
    """Answer to ListStranded, and to ForgetStranded (then: those that were deleted)."""

    topics: list[StrandedTopic]


class ForgetStranded(_Message):
    """Asks to delete what the journal holds of stranded topics; answered with StrandedTopics when that is durable."""

    topic_ids: list[TopicId]
    accept_loss: bool = False
    """Consent: their messages are lost for good. Without it the call is refused."""


# --- Storages --------------------------------------------------------------------------------------------------------


class SealingFigures(_Message, kw_only=True):
    """Progress of sealing, over all storages."""

    unsealed_bytes: int
    """Bytes in the journal of topics that are sealed."""
    unsealed_topics: int
    oldest_age_s: float
    """Age of the oldest unsealed batch in the journal."""
    max_age_s: float
    """The age at which batches are due: the limit ``segment_max_age_s``."""
    sealed_objects: int
    """Number of objects sealed since the broker was started."""
    sealed_bytes: int
    failing_for_s: float
    """For how long sealing has been failing; 0 while it works."""
    last_error: str
    journal_used_bytes: int
    journal_limit_bytes: int
    """Unsealed data fills the journal up to this limit; then publishing waits."""
    stranded_topics: int = 0
    """Topics with messages or cursors in the journal that the metadata do not know; they are kept, and not served."""
    stranded_bytes: int = 0
    """Bytes of their messages."""


class OperationFigures(_Message):
    """Statistics of one kind of storage operation, since the broker was started."""

    calls: int
    failures: int
    retries: int
    bytes: int
    busy_s: float


class StorageStatus(_Message, kw_only=True):
    """Present state of one configured storage."""

    storage: str
    url: str
    """URL without secrets."""
    durable: bool
    conditional_put: bool
    shared: bool
    max_object_bytes: int
    topics: int
    """Number of topics and partitions whose history is stored there."""
    parts: int
    objects: int
    """Number of objects that hold history, without those waiting for deletion."""
    object_bytes: int
    garbage_objects: int
    """Unreferenced objects, deleted at the end of their grace period."""
    unsealed_bytes: int
    """Bytes in the journal of its topics."""
    oldest_unsealed_age_s: float
    healthy: bool
    """Whether the backend answered the last attempt."""
    failing_for_s: float
    last_error: str
    """The last error, however long ago; empty if there was none."""
    last_error_age_s: float
    max_concurrency: int
    in_flight: int
    waiting: int
    operations: dict[str, OperationFigures]


class StoragesStatus(_Message):
    """State of all storages and of sealing."""

    sealing: SealingFigures
    storages: list[StorageStatus]


class CheckStorage(_Message):
    """Asks to compare a storage with the catalogue, without changes. Answered with StorageFindings."""

    storage: str
    deep: bool = False
    """Read all referenced bytes and compare the checksums."""


class RepairStorage(_Message):
    """Asks to check a storage and to remove unreferenced objects. Answered with StorageFindings."""

    storage: str
    adopt: bool = False
    """First adopt the location for this storage, even if its marker is missing or belongs to another storage."""


class StorageFindings(_Message, kw_only=True):
    """Result of a check or repair of one storage."""

    storage: str
    url: str
    ok: bool
    """Whether all history is present."""
    objects: int
    """Segment objects in the backend."""
    size_bytes: int
    referenced: int
    garbage: int
    """Known, unreferenced, within their grace."""
    recent: int
    """Unknown and younger than the grace: possibly uploads in progress."""
    manifests: int
    """Number of manifests read and found intact."""
    orphans: int
    """Unknown to the catalogue and older than the grace."""
    missing: int
    """Referenced, but absent or of another size."""
    damaged: int
    """Parts whose bytes do not match their checksums, and damaged manifests."""
    deleted: int
    """Repair: deleted orphans."""
    abandoned_uploads: int
    """Repair: removed remains of interrupted uploads."""
    orphan_keys: list[str]
    missing_objects: list[str]
    damaged_parts: list[str]
    """Each with the damage found."""
    deep: bool = False
    """Whether bytes were compared with their checksums."""


# --- Restore ---------------------------------------------------------------------------------------------------------


class RestoreTopics(_Message):
    """Asks to restore the topics whose history is in a bucket. Answered with RestoreReport."""

    url: str
    """URL of the bucket; the broker must have a storage configured with it."""
    storage: str = ""
    """Name of that storage, if there are several with this URL."""
    topics: list[str] = []
    """Names of the topics to restore; empty means all."""
    give_up_others: bool = False
    """With ``topics``: whether data of the other topics may be lost."""
    deep: bool = False
    """Read every byte and compare the checksums before changing anything."""
    dry_run: bool = False
    """Change nothing: only report what would be restored."""


class RestoredTopic(_Message, kw_only=True):
    """A restored topic, with sums over its partitions."""

    topic: str
    durability: Durability
    partitions: int
    start_offset: int
    end_offset: int
    parts: int
    objects: int
    size_bytes: int
    subscriptions: list[str]
    state: str
    """``restored`` (or would be), ``present`` (an earlier, interrupted call has restored it), ``given-up``."""
    clamped: list[str]
    """Subscriptions whose cursors were beyond the restored end, and were set back to it."""
    unlisted_parts: int
    """Number of parts that no manifest mentions, found by their objects' footers."""


class RestoreReport(_Message, kw_only=True):
    """Contents of a bucket, and the result of restoring them."""

    storage: str
    url: str
    dry_run: bool
    cluster: str
    epoch: OwnerEpoch
    """Epoch of the former owner."""
    written_us: int
    """Time of the newest manifest; 0 if there is none."""
    topics: list[RestoredTopic]
    objects: int
    """Number of needed objects."""
    object_bytes: int
    unused: int
    """Number of objects that are not needed: replaced, expired, or unusable; the broker removes them later."""
    unused_objects: list[str]
    """Those of them whose data may be wanted, each with the reason why it was left out."""
