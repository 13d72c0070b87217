"""The native API of sealed history: sealing, retention, storages, and bringing topics back from a bucket.

A sister of :mod:`danube.model.api`, with the same rules: msgspec Structs, encoded as msgpack arrays, new fields at the
end with a default. All calls are unary. Some of them take as long as a storage takes to be read through, so a client
gives them no deadline; both sides notice by PING when the other one is gone.

Lists of findings are cut at :data:`MOST_NAMES`; the number beside a list tells how many there are.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.policies import Durability, Retention

__all__ = [
    "MOST_NAMES",
    "ChangeRetention",
    "CheckStorage",
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
    "UnloadTopic",
]

MOST_NAMES: Final = 1000
"""Most names in a list of findings."""


class HistoryMethod:
    """Paths of the calls."""

    SEAL_TOPIC: Final = "/danube.native.v1.Topics/Seal"
    UNLOAD_TOPIC: Final = "/danube.native.v1.Topics/Unload"
    CHANGE_RETENTION: Final = "/danube.native.v1.Topics/ChangeRetention"
    RESTORE_TOPICS: Final = "/danube.native.v1.Topics/Restore"
    STORAGES_STATUS: Final = "/danube.native.v1.Storages/Status"
    CHECK_STORAGE: Final = "/danube.native.v1.Storages/Check"
    REPAIR_STORAGE: Final = "/danube.native.v1.Storages/Repair"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages."""


# --- Topics ----------------------------------------------------------------------------------------------------------


class SealTopic(_Message):
    """Asks to seal everything that a topic (a partitioned one whole) has; answered with SealedTopics when it is."""

    topic: str


class UnloadTopic(_Message):
    """Asks to disconnect everybody from a topic and to seal it; answered with SealedTopics."""

    topic: str


class SealedTopic(_Message):
    """How much of a topic or partition is sealed: ``[start_offset, sealed_offset)``, and up to ``end_offset`` not."""

    topic: str
    start_offset: int
    sealed_offset: int
    end_offset: int
    parts: int
    objects: int
    sealed_bytes: int


class SealedTopics(_Message):
    """Answer to SealTopic and UnloadTopic, one row for each partition."""

    topics: list[SealedTopic]


class ChangeRetention(_Message):
    """Changes a topic's rules, applies them, or asks what they would do."""

    topic: str
    retention: Retention | None = None
    """The new rules, all of them; None leaves the rules as they are."""
    dry_run: bool = False
    """Change nothing: only say what would go."""
    now: bool = False
    """Apply the rules before answering; otherwise they are applied within a minute."""


class RetentionOutcome(_Message):
    """What the rules take away of a topic or partition: what lies below ``new_start_offset``."""

    topic: str
    start_offset: int
    new_start_offset: int
    end_offset: int
    freed_bytes: int
    """Of sealed batches; the journal gives its share back when its files are recycled."""
    freed_parts: int


class RetentionPlans(_Message):
    """Answer to ChangeRetention."""

    retention: Retention
    """The rules that the plans are for."""
    applied: bool
    """Whether the plans were carried out."""
    plans: list[RetentionOutcome]
    """One for each partition."""


# --- Storages --------------------------------------------------------------------------------------------------------


class SealingFigures(_Message):
    """How far sealing is, over all storages."""

    unsealed_bytes: int
    """In the journal, of topics that are sealed."""
    unsealed_topics: int
    oldest_age_s: float
    """Of what has lain in the journal for the longest time without being sealed."""
    max_age_s: float
    """The age at which it is due: the limit ``segment_max_age_s``."""
    sealed_objects: int
    """Since the broker was started."""
    sealed_bytes: int
    failing_for_s: float
    """Since when sealing fails; 0 while it works."""
    last_error: str
    journal_used_bytes: int
    journal_limit_bytes: int
    """What is not sealed fills the journal; when it is full, publishing waits."""


class OperationFigures(_Message):
    """One kind of storage operation, since the broker was started."""

    calls: int
    failures: int
    retries: int
    bytes: int
    busy_s: float


class StorageStatus(_Message):
    """One configured storage at this moment."""

    storage: str
    url: str
    """Without secrets."""
    durable: bool
    conditional_put: bool
    shared: bool
    max_object_bytes: int
    topics: int
    """Topics and partitions whose history goes there."""
    parts: int
    objects: int
    """That hold history; those that wait for their deletion are not among them."""
    object_bytes: int
    garbage_objects: int
    """No longer referenced, and deleted when the grace has passed."""
    unsealed_bytes: int
    """Of its topics, in the journal."""
    oldest_unsealed_age_s: float
    healthy: bool
    """Whether the last attempt was answered."""
    failing_for_s: float
    last_error: str
    """However long ago; empty if there was none."""
    last_error_age_s: float
    max_concurrency: int
    in_flight: int
    waiting: int
    operations: dict[str, OperationFigures]


class StoragesStatus(_Message):
    """What is known of all storages and of sealing."""

    sealing: SealingFigures
    storages: list[StorageStatus]


class CheckStorage(_Message):
    """Asks to compare a storage with the catalogue; changes nothing. Answered with StorageFindings."""

    storage: str
    deep: bool = False
    """Read every byte that is referenced and compare the checksums."""


class RepairStorage(_Message):
    """Asks to check a storage and to remove what nothing refers to. Answered with StorageFindings."""

    storage: str
    adopt: bool = False
    """First take the place as it is for this storage, though its marker is missing or another one's."""


class StorageFindings(_Message):
    """What a check or repair of one storage has found."""

    storage: str
    url: str
    ok: bool
    """Whether all history is there."""
    objects: int
    """Segment objects in the backend."""
    size_bytes: int
    referenced: int
    garbage: int
    """Known, no longer referenced, waiting for their grace to end."""
    recent: int
    """Unknown and younger than the grace: uploads that may be under way."""
    manifests: int
    """That were read and are intact."""
    orphans: int
    """Unknown to the catalogue and older than the grace."""
    missing: int
    """Referenced, and not there, or of another size."""
    damaged: int
    """Parts whose bytes do not match their checksums, and damaged manifests."""
    deleted: int
    """Repair: orphans that were deleted."""
    abandoned_uploads: int
    """Repair: remains of interrupted uploads that were removed."""
    orphan_keys: list[str]
    missing_objects: list[str]
    damaged_parts: list[str]
    """Each with what was found."""
    deep: bool = False
    """Whether the bytes were compared with their checksums."""


# --- Restore ---------------------------------------------------------------------------------------------------------


class RestoreTopics(_Message):
    """Asks to bring back the topics whose history is in a bucket. Answered with RestoreReport."""

    url: str
    """Of the bucket; the broker must have a storage that is configured with it."""
    storage: str = ""
    """Name of that storage, if there are several with this URL."""
    topics: list[str] = []
    """Only these; none means all."""
    give_up_others: bool = False
    """With ``topics``: whether what belongs to the other topics may be lost."""
    deep: bool = False
    """Read every byte and compare the checksums before anything is changed."""
    dry_run: bool = False
    """Change nothing: only say what would come back."""


class RestoredTopic(_Message):
    """A topic, with the sums over its partitions."""

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
    """Subscriptions whose cursors were beyond what came back, and were set back to its end."""
    unlisted_parts: int
    """Parts that no manifest mentions and that were found by their objects' footers."""


class RestoreReport(_Message):
    """What a bucket holds, and what became of it."""

    storage: str
    url: str
    dry_run: bool
    cluster: str
    epoch: int
    """Of the former owner."""
    written_us: int
    """When the newest manifest was written; 0 if there is none."""
    topics: list[RestoredTopic]
    objects: int
    """That are needed."""
    object_bytes: int
    unused: int
    """Objects that nothing needs: replaced, expired, or not usable; the broker removes them by and by."""
    unused_objects: list[str]
    """Those of them that might be missed, each with the reason why it was left out."""
