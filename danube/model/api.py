"""The native API: the messages that a client and a broker exchange, and the paths of their calls.

All messages are msgspec Structs, encoded as msgpack arrays (``array_like``): new fields go to the end with a default.
Streams carry tagged unions; the tag is the first element of the array.

``Publish`` (bidirectional)::

    client: PublishOpen, then PublishBatch ...          many in flight, in sequence order
    broker: PublishOpened, then PublishAcks ...         coalesced; a PublishRefused names one sequence

``Consume`` (bidirectional)::

    client: ConsumeOpen, then Credit | Ack | AckCumulative | Nack | FlushAcks | ExtendLease | GiveBack ...
    broker: ConsumeOpened, then Delivery | Gap | AcksFlushed | ActiveChanged | CaughtUp | LeaseChanged ...

Offsets, sequences and ids are unsigned 64-bit integers; times are microseconds since the epoch unless a name says
otherwise; sets of offsets are flat lists ``[start, end, start, end, ...]`` (see :mod:`danube.model.ranges`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from danube.model.policies import LATEST, Durability, ProducerAccess, Retention, SubscriptionPolicy, SubscriptionType

__all__ = [
    "Ack",
    "AckCumulative",
    "AckedSequence",
    "AcksFlushed",
    "ActiveChanged",
    "BrokerInfo",
    "CaughtUp",
    "ConsumeOpen",
    "ConsumeOpened",
    "ConsumeReply",
    "ConsumeRequest",
    "ConsumerInfo",
    "CreateNamespace",
    "CreateTopic",
    "Credit",
    "DeleteNamespace",
    "DeleteSubscription",
    "DeleteTopic",
    "Delivery",
    "DescribeTopic",
    "Done",
    "Empty",
    "Explanation",
    "ExtendLease",
    "FlushAcks",
    "Gap",
    "GiveBack",
    "LeaseChanged",
    "ListNamespaces",
    "ListSubscriptions",
    "ListTopics",
    "LookupTopic",
    "Method",
    "Nack",
    "NamespaceList",
    "ProducerInfo",
    "PublishAcks",
    "PublishBatch",
    "PublishOpen",
    "PublishOpened",
    "PublishRefused",
    "PublishReply",
    "PublishRequest",
    "SeekSubscription",
    "SubscriptionInfo",
    "SubscriptionList",
    "SubscriptionRef",
    "TopicInfo",
    "TopicList",
    "TopicPartitions",
]


class Method:
    """Paths of the native calls."""

    PUBLISH: Final = "/danube.native.v1.Broker/Publish"
    CONSUME: Final = "/danube.native.v1.Broker/Consume"
    INFO: Final = "/danube.native.v1.Broker/Info"
    LOOKUP_TOPIC: Final = "/danube.native.v1.Topics/Lookup"
    CREATE_TOPIC: Final = "/danube.native.v1.Topics/Create"
    DELETE_TOPIC: Final = "/danube.native.v1.Topics/Delete"
    LIST_TOPICS: Final = "/danube.native.v1.Topics/List"
    DESCRIBE_TOPIC: Final = "/danube.native.v1.Topics/Describe"
    CREATE_NAMESPACE: Final = "/danube.native.v1.Namespaces/Create"
    DELETE_NAMESPACE: Final = "/danube.native.v1.Namespaces/Delete"
    LIST_NAMESPACES: Final = "/danube.native.v1.Namespaces/List"
    LIST_SUBSCRIPTIONS: Final = "/danube.native.v1.Subscriptions/List"
    DESCRIBE_SUBSCRIPTION: Final = "/danube.native.v1.Subscriptions/Describe"
    EXPLAIN_SUBSCRIPTION: Final = "/danube.native.v1.Subscriptions/Explain"
    SEEK_SUBSCRIPTION: Final = "/danube.native.v1.Subscriptions/Seek"
    DELETE_SUBSCRIPTION: Final = "/danube.native.v1.Subscriptions/Delete"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of plain messages."""


class _Tagged(_Message, tag_field="tag"):
    """Base of messages that travel in a union; the first element of the array says which one it is."""


# --- Publish ---------------------------------------------------------------------------------------------------------


class PublishOpen(_Tagged, tag=0):
    """First message of a Publish stream."""

    topic: str
    """A plain topic or one partition; a partitioned base name is refused."""
    producer_name: str
    """Identity for idempotence; unique per anonymous producer (the client makes one up)."""
    anonymous: bool = False
    """The name was made up: forget its state soon after it goes idle."""
    access: ProducerAccess = ProducerAccess.SHARED
    durability: Durability | None = None
    """None takes what the topic has (or the broker's default when the topic is created)."""
    resume_epoch: int = 0
    """0 opens a new session; else the epoch this session already has (a reconnect keeps its epoch)."""
    partitions: int = 0
    """How many partitions the base topic shall have, if opening creates it; 0 for a plain topic."""


class PublishBatch(_Tagged, tag=1):
    """A batch, as :func:`danube.model.batch.encode_part` made it."""

    part: bytes


PublishRequest = PublishOpen | PublishBatch


class PublishOpened(_Tagged, tag=0):
    """Answer to PublishOpen."""

    topic_id: int
    producer_id: int
    epoch: int
    next_sequence: int
    """The sequence that the producer's next record must have."""
    durability: Durability
    max_batch_bytes: int
    max_message_bytes: int


class AckedSequence(_Message):
    """One stored batch."""

    base_sequence: int
    base_offset: int
    record_count: int


class PublishAcks(_Tagged, tag=1):
    """Batches that have reached the topic's durability, in sequence order."""

    acks: list[AckedSequence]


class PublishRefused(_Tagged, tag=2):
    """A batch was not stored; later ones in flight are refused with a sequence gap."""

    base_sequence: int
    status: int
    code: str
    message: str


PublishReply = PublishOpened | PublishAcks | PublishRefused


# --- Consume ---------------------------------------------------------------------------------------------------------


class ConsumeOpen(_Tagged, tag=0):
    """First message of a Consume stream."""

    topic: str
    """A plain topic or one partition."""
    subscription: str
    consumer_name: str
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    start: str | int = LATEST
    """Where a new subscription starts: ``earliest``, ``latest`` or an offset. Ignored if it exists already."""
    start_time_us: int = 0
    """If not 0: start at the first message appended at or after this time, instead of ``start``."""
    key_filters: list[str] = []
    """Of a key-shared consumer: it takes only keys that match one of them (``*`` any run, ``?`` one character)."""
    policy: dict[str, Any] = {}
    """Fields of :class:`danube.model.SubscriptionPolicy` that a new subscription begins with; ignored if it exists."""
    reader: bool = False
    """Read from ``start`` without a subscription: nothing is acknowledged or remembered, and the name may be empty."""


class Credit(_Tagged, tag=1):
    """Adds to what the broker may deliver."""

    messages: int
    size_bytes: int


class Ack(_Tagged, tag=2):
    """Acknowledges ranges of offsets.

    What a consumer says about messages has the generation of their delivery (see :class:`Sought`); if the subscription
    has another one by now, it counts as a sign of life and as nothing else.
    """

    ranges: list[int]
    generation: int = 0


class AckCumulative(_Tagged, tag=3):
    """Acknowledges everything up to and including ``offset`` (exclusive and failover only)."""

    offset: int
    generation: int = 0


class Nack(_Tagged, tag=4):
    """Says that ranges have failed; they are delivered again, or go the way of poison."""

    ranges: list[int]
    delay_ms: int = -1
    """Pause before the redelivery; -1: as the subscription's policy says."""
    reason: str = ""
    """For people, and for the dead-letter topic; cut at ``Limits.max_nack_reason_chars``."""
    generation: int = 0


class FlushAcks(_Tagged, tag=5):
    """Asks for AcksFlushed with the same token once every earlier Ack is durable."""

    token: int


class ExtendLease(_Tagged, tag=6):
    """Moves the ack timeout of ranges in flight at this consumer to ``lease_ms`` from now, never to an earlier time."""

    ranges: list[int]
    lease_ms: int = 0
    """0: the subscription's ack timeout. At most ``Limits.max_lease_s``."""
    generation: int = 0


class GiveBack(_Tagged, tag=7):
    """Gives ranges in flight at this consumer back, unseen by its application: others shall have them.

    They have not failed. The consumer counts as silent until it says something else.
    """

    ranges: list[int]
    generation: int = 0


ConsumeRequest = ConsumeOpen | Credit | Ack | AckCumulative | Nack | FlushAcks | ExtendLease | GiveBack


class ConsumeOpened(_Tagged, tag=0):
    """Answer to ConsumeOpen."""

    topic_id: int
    consumer_id: int
    durability: Durability
    active: bool
    """False for a failover consumer that stands by."""
    floor: int
    """Everything below is acknowledged."""
    end_offset: int
    """The topic's end when the stream was opened."""
    ack_timeout_s: float = 0.0
    """After this time without an acknowledgement or an extended lease a message has failed; 0: never."""
    start_offset: int = 0
    """Of a reader: where it begins."""
    subscription_id: int = 0
    """Of the subscription; another one if it was deleted and created again. 0 for a reader."""
    generation: int = 0
    """Of the deliveries that follow, up to the first :class:`Sought`. It survives restarts, unless a power loss may
    take messages (``os``), or nothing is kept."""
    owner_epoch: int = 0
    """Of the topic: each start of its broker, and each take-over by another one, has a higher one. 0 if nothing is
    kept. A client that has seen a higher one talks to a former owner, who does not know yet."""


class Delivery(_Tagged, tag=1):
    """A stored batch with its live offsets, or (flag ``SLICE`` in the part) some records of one.

    Without the flag, record ``i`` of the part has offset ``base_offset + i`` and only those in ``ranges`` are to be
    delivered (an empty list means all). With the flag the records are exactly those of ``ranges``, in order.
    """

    base_offset: int
    append_time_us: int
    attempt: int
    ranges: list[int]
    producer_name: str
    charged_bytes: int
    """Byte credit that this delivery has used up; what the consumer gives back once it has taken it."""
    part: bytes
    """The last field, so that a broker can write its head by hand and leave the bytes where they are."""


class Gap(_Tagged, tag=2):
    """Messages that this consumer will not get: dropped by a ``none`` topic for a slow consumer."""

    start: int
    end: int


class AcksFlushed(_Tagged, tag=3):
    """Answer to FlushAcks."""

    token: int


class ActiveChanged(_Tagged, tag=4):
    """A failover consumer became active or was put on standby."""

    active: bool


class CaughtUp(_Tagged, tag=5):
    """Everything that was in the topic at ``end_offset`` has been delivered, apart from what needs somebody's doing."""

    end_offset: int


class LeaseChanged(_Tagged, tag=6):
    """The subscription's ack timeout is another one now."""

    ack_timeout_s: float


class Sought(_Tagged, tag=7):
    """The subscription was moved (a seek): what was delivered before is void, and what follows is of this generation.

    A consumer drops what it has not handed out, with the credit given back, and what it has not sent of what its
    application has said.
    """

    generation: int


ConsumeReply = ConsumeOpened | Delivery | Gap | AcksFlushed | ActiveChanged | CaughtUp | LeaseChanged | Sought


# --- Unary -----------------------------------------------------------------------------------------------------------


class Empty(_Message):
    """No parameters."""


class Done(_Message):
    """No result."""


class BrokerInfo(_Message):
    """What a broker says about itself."""

    version: str
    pid: int
    data_directory: str
    uptime_s: float
    default_durability: Durability
    connections: int
    topics: int
    journal_used_bytes: int
    journal_limit_bytes: int
    journal_files: int
    commits: int
    syncs: int
    max_message_bytes: int
    max_batch_bytes: int
    unsealed_bytes: int = 0
    """In the journal, of topics whose history is sealed."""
    oldest_unsealed_age_s: float = 0.0
    sealing_failing_s: float = 0.0
    """Since when sealing fails; 0 while it works."""
    sealing_error: str = ""
    sealed_objects: int = 0
    """Since the broker was started."""
    sealed_bytes: int = 0


class LookupTopic(_Message):
    """Asks what stands behind a name."""

    topic: str


class TopicPartitions(_Message):
    """Where the messages of a topic are."""

    topic: str
    partitions: int
    """0 for a plain topic."""
    topics: list[str]
    """The topics to talk to: the topic itself, or its partitions in order."""
    durability: Durability


class CreateTopic(_Message):
    """Creates a topic; 0 partitions make a plain one."""

    topic: str
    partitions: int = 0
    durability: Durability | None = None
    storage: str = ""
    """Name of the storage that its history goes to; empty for the broker's default."""
    retention: Retention = Retention()
    """How long it keeps messages."""


class DeleteTopic(_Message):
    """Deletes a topic (a partitioned one whole) with its messages and subscriptions."""

    topic: str


class ListTopics(_Message):
    """Lists topics; an empty namespace means all."""

    namespace: str = ""


class DescribeTopic(_Message):
    """Asks for one topic (a partitioned base name gives the sums)."""

    topic: str


class ProducerInfo(_Message):
    """One connected or remembered producer."""

    name: str
    epoch: int
    next_sequence: int
    connected: bool


class TopicInfo(_Message):
    """A topic as it stands."""

    topic: str
    topic_id: int
    partitions: int
    durability: Durability
    start_offset: int
    end_offset: int
    stored_bytes: int
    """In the journal and in the storage."""
    producers: list[ProducerInfo]
    subscriptions: list[str]
    created_us: int
    storage: str = ""
    retention: Retention = Retention()
    sealed_offset: int = 0
    """What lies below is in the storage, what lies above in the journal."""
    journal_bytes: int = 0
    sealed_bytes: int = 0
    parts: int = 0
    """Sealed pieces."""
    objects: int = 0
    """Objects that hold them; topics may share one."""
    readers: int = 0
    """Who reads it now without a subscription."""


class TopicList(_Message):
    """Answer to ListTopics."""

    topics: list[TopicInfo]


class CreateNamespace(_Message):
    """Creates a namespace."""

    namespace: str


class DeleteNamespace(_Message):
    """Deletes an empty namespace."""

    namespace: str


class ListNamespaces(_Message):
    """Lists namespaces."""


class NamespaceList(_Message):
    """Answer to ListNamespaces."""

    namespaces: list[str]


class SubscriptionRef(_Message):
    """Names a subscription, to describe or explain it. A partitioned base name covers all partitions."""

    topic: str
    subscription: str


class ListSubscriptions(_Message):
    """Lists the subscriptions of a topic."""

    topic: str


class DeleteSubscription(_Message):
    """Deletes a subscription and its cursor; connected consumers are disconnected."""

    topic: str
    subscription: str


class SeekSubscription(_Message):
    """Moves a cursor: to ``earliest``, ``latest``, an offset, or (if not 0) a time."""

    topic: str
    subscription: str
    position: str | int = LATEST
    time_us: int = 0


class ConsumerInfo(_Message):
    """One connected consumer."""

    name: str
    consumer_id: int
    active: bool
    credit_messages: int
    in_flight_messages: int
    delivered_messages: int
    acked_messages: int
    credit_bytes: int = 0
    key_filters: list[str] = []
    suspended: bool = False
    """It let a message time out and has said nothing since; others go before it."""


class SubscriptionInfo(_Message):
    """A subscription as it stands."""

    topic: str
    subscription: str
    type: SubscriptionType
    floor: int
    position: int
    end_offset: int
    backlog_messages: int
    in_flight_messages: int
    acked_ranges: int
    redelivered_messages: int
    dropped_messages: int
    consumers: list[ConsumerInfo]
    policy: SubscriptionPolicy = SubscriptionPolicy()
    waiting_messages: int = 0
    """To be delivered again, or read and held back."""
    delayed_messages: int = 0
    """Not due yet."""
    poisoned_messages: int = 0
    """Failed too often, and still there."""
    dead_lettered_messages: int = 0
    """Copied to the dead-letter topic since the broker was started."""
    expired_messages: int = 0
    """Outlived their topic's ``message_ttl_s`` since the broker was started."""


class SubscriptionList(_Message):
    """Answer to ListSubscriptions and DescribeSubscription (one row for each partition)."""

    subscriptions: list[SubscriptionInfo]


class Explanation(_Message):
    """Why a subscription moves or does not."""

    topic: str
    subscription: str
    state: str
    """One word: moving, caught-up, no-consumer, no-credit, waiting-for-acks, window-full, waiting-for-retry, ..."""
    sentence: str
