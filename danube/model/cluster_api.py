"""The native API of the cluster: who the brokers are, what each of them does, and which topics wait for one.

Like :mod:`danube.model.api`: msgspec Structs, encoded as msgpack arrays, new fields at the end with a default. Any
broker answers for the whole cluster: from its own tables (records, sessions, assignments), and from what the other
brokers tell about themselves when it asks them. A broker that does not answer is marked, with the reason.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.api import DeclaredGap
from danube.model.ids import NO_OWNER_EPOCH, NO_TOPIC, Offset, OwnerEpoch, TopicId
from danube.model.policies import Durability

__all__ = [
    "ANY_BROKER",
    "MOST_LOST",
    "MOST_MOVES",
    "MOST_PLACES",
    "MOST_PLANNED",
    "MOST_STAYING",
    "MOST_WAITING_NAMES",
    "UNKNOWN",
    "ActivateBroker",
    "BackupMetadata",
    "BackupPiece",
    "BalanceCluster",
    "BalancePlan",
    "BrokerDrain",
    "BrokerFigures",
    "BrokerLoadRow",
    "BrokerRow",
    "ClusterMethod",
    "ClusterStatus",
    "DrainBroker",
    "ExplainCluster",
    "Explained",
    "ForgetBroker",
    "ForgetGaps",
    "FillGap",
    "Forgotten",
    "GapFilled",
    "GapToFill",
    "GetGaps",
    "OpenGaps",
    "ForgottenGaps",
    "GetClusterStatus",
    "LostOffsets",
    "LostTopic",
    "MetadataMember",
    "MetadataStanding",
    "MetadataStatus",
    "MoveList",
    "MoveRow",
    "MoveTopic",
    "StayingTopic",
    "StorageFace",
    "TopicPlace",
    "UpgradeCluster",
    "Upgraded",
    "WaitingTopics",
]

UNKNOWN: Final = -1
"""A number that the broker does not know."""
ANY_BROKER: Final = 0
"""No broker, in fields that have the number of one."""
MOST_PLACES: Final = 200
"""Most topics that an explanation lists; it counts the others."""
MOST_MOVES: Final = 200
"""Most moves of topics that an answer lists; it counts the others."""
MOST_PLANNED: Final = 1_000
"""Most moves of one plan for an even load."""
MOST_STAYING: Final = 100
"""Most topics that cannot leave a drained broker that an answer names; it counts the others."""
MOST_LOST: Final = 1_000
"""Most topics of a broker that is gone that an answer lists; it counts the others."""
MOST_WAITING_NAMES: Final = 3
"""Most names of topics in a :class:`WaitingTopics`, and most gaps in a :class:`LostOffsets`."""


class ClusterMethod:
    """Paths of the calls."""

    STATUS: Final = "/danube.native.v1.Cluster/Status"
    EXPLAIN: Final = "/danube.native.v1.Cluster/Explain"
    BACKUP: Final = "/danube.native.v1.Cluster/Backup"
    UPGRADE: Final = "/danube.native.v1.Cluster/Upgrade"
    DRAIN: Final = "/danube.native.v1.Cluster/Drain"
    ACTIVATE: Final = "/danube.native.v1.Cluster/Activate"
    MOVE: Final = "/danube.native.v1.Cluster/Move"
    BALANCE: Final = "/danube.native.v1.Cluster/Balance"
    FORGET: Final = "/danube.native.v1.Cluster/Forget"
    FORGET_GAPS: Final = "/danube.native.v1.Topics/ForgetGaps"
    GAPS: Final = "/danube.native.v1.Cluster/Gaps"
    FILL_GAP: Final = "/danube.native.v1.Cluster/FillGap"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages."""


# --- What a broker tells about itself --------------------------------------------------------------------------------


class MetadataStanding(msgspec.Struct, array_like=True, frozen=True, gc=False, kw_only=True):
    """What the metadata engine of one broker tells about itself."""

    engine: str = ""
    """Its name: ``raft``, ``etcd``, ``memory``; empty if it does not say."""
    kept_by: str = ""
    """Who keeps the metadata, if not the brokers: ``etcd at 10.0.0.7:2379``. Then the other fields are empty."""
    member: int = 0
    """Id of this broker's member of the Raft group; 0: there is no such group."""
    leader: int = 0
    """Id of the member that leads, as far as this one knows; 0: none is known."""
    term: int = 0
    committed: int = 0
    """Index of the last entry that this member knows to be committed."""
    applied: int = 0
    """Index of the last entry that is in this member's table."""
    voters: list[int] = []
    leaving: list[int] = []
    """Voters that a change in progress removes; their majority is needed, too, until it is complete."""
    learners: list[int] = []


class StorageFace(_Message, kw_only=True):
    """A storage as one broker has it configured."""

    storage: str
    url: str
    """Without secrets."""
    shared: bool
    """Other machines reach the same objects."""


class BrokerFigures(_Message, kw_only=True):
    """What a broker tells about itself."""

    broker: int
    version: str
    feature_level: int
    uptime_s: float
    time_us: int
    """Its wall clock, when it answered."""
    draining: bool = False
    """It is shutting down."""
    connections: int = 0
    topics: int = 0
    """Topics and partitions that it serves; more may be assigned to it."""
    in_bytes_s: float = 0.0
    """Bytes that arrived at its port, from clients and brokers: mean of the last seconds."""
    out_bytes_s: float = 0.0
    journal_used_bytes: int = 0
    journal_limit_bytes: int = 0
    loop_lag_s: float = UNKNOWN
    """By how much timers of its loop were late: 99 of 100 by less, in the last minute."""
    sealing_failing_s: float = 0.0
    """For how long sealing has been failing; 0 while it works."""
    stranded_topics: int = 0
    session: int = 0
    """Revision of its session, as it knows it; 0: it has none."""
    session_certain: bool = False
    """Its session is certain to be alive."""
    storages: list[StorageFace] = []
    metadata: MetadataStanding = MetadataStanding()


# --- Status ----------------------------------------------------------------------------------------------------------


class GetClusterStatus(_Message):
    """Asks for the status of the cluster. Answered with ClusterStatus."""

    gather: bool = True
    """Ask the other brokers for their figures, too; otherwise only what is in the tables."""


class BrokerRow(_Message, kw_only=True):
    """One broker, as the one that answers sees it."""

    broker: int
    name: str
    """``b1``"""
    state: str
    """``active``, ``draining`` or ``gone`` as recorded; ``away``: it has no session; ``silent``: it has one, and does
    not answer; ``stopping``: it says that it is shutting down."""
    address: str = ""
    """``host:port`` at which clients and brokers reach it; of one that is away, the last known one."""
    admin_address: str = ""
    version: str = ""
    feature_level: int = 0
    life: int = 0
    """Number of its starts."""
    rack: str = ""
    storages: list[str] = []
    session: int = 0
    """Revision of its session in the metadata; 0: it has none."""
    away_s: float = UNKNOWN
    """For how long the broker that answers has seen it without a session: it may be longer."""
    topics: int = 0
    """Topics and partitions assigned to it."""
    coordinator: bool = False
    figures: BrokerFigures | None = None
    """What it told about itself; None if it was not asked, or did not answer."""
    problem: str = ""
    """Why it did not answer."""
    rtt_s: float = UNKNOWN
    """How long its answer took."""
    clock_offset_s: float = 0.0
    """How far its wall clock is ahead of that of the broker that answers, give or take half of ``rtt_s``."""
    successor: int = ANY_BROKER
    """The broker that runs at its address now, from another data directory; 0: none does, or that is not known."""
    http_address: str = ""
    """URL at which others reach its HTTP port; empty: it has none, or only its own machine reaches it."""
    leaving: int = 0
    """Topics and partitions that are ordered to move to another broker."""
    arriving: int = 0
    """Topics and partitions that are ordered to move here."""


class MetadataMember(_Message, kw_only=True):
    """One member of the Raft group that keeps the metadata."""

    member: int
    role: str
    """``leader``, ``voter``, ``learner``; ``leaving``: a voter that is being removed."""
    broker: int = ANY_BROKER
    """The broker that it belongs to; 0 if that is not known."""
    address: str = ""
    applied: int = UNKNOWN
    behind: int = UNKNOWN
    """Entries that are committed and not in its table yet."""


class MetadataStatus(_Message, kw_only=True):
    """The metadata, as far as the engine tells."""

    engine: str = ""
    kept_by: str = ""
    """See :class:`MetadataStanding`."""
    leader: int = 0
    """Id of the member that leads; 0: none is known."""
    term: int = 0
    committed: int = 0
    members: list[MetadataMember] = []


class WaitingTopics(_Message, kw_only=True):
    """Topics of one durability that are not served until a broker is back."""

    broker: int
    """For which they wait; 0: for any that may take them."""
    durability: Durability
    count: int
    topics: list[str] = []
    """Some of their names."""


class LostOffsets(_Message, kw_only=True):
    """What was lost with one broker, and is neither given back nor given up (``danube cluster forget``)."""

    broker: int
    """The broker that was declared gone."""
    topics: int
    """Number of topics and partitions whose subscriptions wait for it."""
    gaps: list[DeclaredGap]
    """The first :data:`MOST_WAITING_NAMES` gaps of offsets."""


class MoveRow(_Message, kw_only=True):
    """A topic or partition that moves to another broker, or is to."""

    topic: str
    source: int
    """The broker that owns it."""
    target: int
    topic_id: TopicId = NO_TOPIC
    reason: str = ""
    """``asked``: an operator has named it; ``drain``: its owner is drained; ``balance``: others have less load."""
    why: str = ""
    """Of a plan: the loads that it is made for."""
    by: str = ""
    """Who asked; empty: the coordinator, or not known."""
    age_s: float = UNKNOWN
    """How long ago it was ordered, by the clocks of two brokers; below 0: it is not ordered."""
    problem: str = ""
    """Why it was not ordered."""


class ClusterStatus(_Message, kw_only=True):
    """Answer to GetClusterStatus."""

    cluster: str
    incarnation: str
    """Identity of the cluster, hexadecimal."""
    feature_level: int
    """The formats and messages that its brokers may use."""
    broker: int
    """The broker that answers."""
    brokers: list[BrokerRow]
    """All brokers that are not forgotten, in the order of their numbers."""
    metadata: MetadataStatus
    coordinator: int = ANY_BROKER
    """0: none is known."""
    topics: int = 0
    """Topics and partitions that are assigned to a broker."""
    waiting: list[WaitingTopics] = []
    warnings: list[str] = []
    """What needs attention, a sentence each."""
    moving: int = 0
    """Topics and partitions that are ordered to move to another broker."""
    moves: list[MoveRow] = []
    """Of them, the first :data:`MOST_MOVES`."""
    lost: list[LostOffsets] = []
    """What was lost with brokers that were declared gone, by broker."""


# --- Explanations ----------------------------------------------------------------------------------------------------


class ExplainCluster(_Message):
    """Asks what is the matter with a broker or a topic. Answered with Explained."""

    subject: str
    """``b2``, or the name of a topic; a partitioned base name covers all partitions."""


class TopicPlace(_Message, kw_only=True):
    """A topic or partition and its owner."""

    topic: str
    durability: Durability
    state: str
    """``served``; ``unavailable``: its owner runs, and cannot serve it; ``unknown``: its owner does not answer;
    ``waiting``: its owner is away, and has its messages; ``moving``: another broker is about to get it;
    ``unassigned``: it has no owner yet, or not any more."""
    topic_id: TopicId = NO_TOPIC
    broker: int = ANY_BROKER
    address: str = ""
    epoch: OwnerEpoch = NO_OWNER_EPOCH
    reason: str = ""
    """Why this broker owns it."""
    sealed_end: int = UNKNOWN
    """Messages below it are in its storage."""
    detail: str = ""
    """What its owner says, if it does not serve it."""
    target: int = ANY_BROKER
    """The broker to which it is ordered to move; 0: it is not."""
    move_reason: str = ""
    """See :class:`MoveRow`."""
    hindrance: str = ""
    """Why it cannot be moved to another broker, according to its owner."""
    move_failure: str = ""
    """Why its last move was given up, according to its owner."""


class Explained(_Message, kw_only=True):
    """Answer to ExplainCluster."""

    subject: str
    state: str
    """One word; of a topic as in :class:`TopicPlace` (``mixed`` if its partitions differ), of a broker as in
    :class:`BrokerRow`."""
    sentence: str
    """What is the matter."""
    remedy: str = ""
    """What to do about it; empty if nothing has to be done."""
    topics: list[TopicPlace] = []
    """Of a topic: itself, or its partitions. Of a broker: those that are assigned to it, the waiting ones first."""
    more: int = 0
    """Number of further topics."""
    gaps: list[DeclaredGap] = []
    """Of a topic: offsets that were lost with a broker. Of a broker: those that were lost with it, and for which
    subscriptions wait. At most :data:`MOST_PLACES`."""
    more_gaps: int = 0
    """Number of further gaps."""


# --- Upgrades --------------------------------------------------------------------------------------------------------


class UpgradeCluster(_Message):
    """Asks to raise the feature level of the cluster to that of its brokers' version. Answered with Upgraded."""


class Upgraded(_Message):
    """Answer to UpgradeCluster."""

    level: int
    """Feature level of the cluster now."""
    before: int
    """What it was."""


# --- Moves -----------------------------------------------------------------------------------------------------------


class DrainBroker(_Message):
    """Asks that a broker gives all its topics away, and gets none. Answered with BrokerDrain, at once."""

    broker: str
    """``b2``"""
    dry_run: bool = False
    """Change nothing; say how far it is."""


class ActivateBroker(_Message):
    """Asks that a broker gets topics again. Answered with BrokerDrain. Topics that have left it do not come back."""

    broker: str
    dry_run: bool = False


class StayingTopic(_Message):
    """A topic or partition that cannot be moved to another broker, or whose move was given up."""

    topic: str
    why: str


class BrokerDrain(_Message, kw_only=True):
    """Answer to DrainBroker and ActivateBroker: how far a broker is."""

    broker: int
    name: str
    state: str
    """``active``, ``draining`` or ``gone``."""
    topics: int
    """Topics and partitions that it owns."""
    moving: int = 0
    """Of them, those that are ordered to move now."""
    staying: int = 0
    """Of them, those that cannot move."""
    named: list[StayingTopic] = []
    """Of those, the first :data:`MOST_STAYING`."""
    failed: list[StayingTopic] = []
    """Others whose last move was given up, and is tried again; the first :data:`MOST_STAYING`."""
    problem: str = ""
    """Why it is not known which topics cannot move; or why none can."""


class MoveTopic(_Message):
    """Asks that a topic, a partition, or all partitions of a topic move to a broker. Answered with MoveList.

    The answer comes as soon as the moves are ordered.
    """

    topic: str
    broker: str
    dry_run: bool = False
    """Order nothing; say what would be ordered."""


class MoveList(_Message):
    """Answer to MoveTopic: what was ordered, without partitions that are on the broker already."""

    moves: list[MoveRow]


class BalanceCluster(_Message):
    """Asks that topics move at once until the load of all brokers is even. Answered with BalancePlan."""

    dry_run: bool = False
    """Order nothing; say what would be ordered."""
    most_moves: int = 64
    """Most topics of the plan, 1 to :data:`MOST_PLANNED`."""


class BrokerLoadRow(_Message, kw_only=True):
    """The load of a broker."""

    broker: int
    load: float
    """Its largest share of what all brokers have together, 0 to 1: of topics, bytes in, bytes out, processor time or
    the journal."""
    after: float
    """The same after the plan."""
    topics: int
    in_bytes_s: float
    out_bytes_s: float
    cpu: float
    """Processors that it uses: 1.0 is one of them, fully."""
    journal_share: float
    """Used share of its journal's limit."""
    is_target: bool = True
    """It may get topics."""


class BalancePlan(_Message, kw_only=True):
    """Answer to BalanceCluster."""

    automatic: bool
    """Whether the cluster does this by itself, little by little (``[balance] enabled``)."""
    brokers: list[BrokerLoadRow]
    moves: list[MoveRow]
    ordered: int = 0
    silent: list[str] = []
    """Brokers that did not answer, and why: they are left out."""


# --- Brokers that will not return ------------------------------------------------------------------------------------


class ForgetBroker(_Message):
    """Asks to declare a broker gone for good: other brokers go on with its topics. Answered with Forgotten."""

    broker: str
    """``b2``; it does not run."""
    accept_loss: bool = False
    """False: change nothing; say what is lost."""


class LostTopic(_Message, kw_only=True):
    """A topic or partition whose newest messages were on the disk of a broker that is gone."""

    topic: str
    durability: Durability
    sealed_end: int
    """Messages below it are in a storage that other brokers reach. What was published from there on is unknown."""
    gap_end: int
    """The first offset of its new owner: between the two is a declared gap."""
    target: int = ANY_BROKER
    """The broker that goes on with it; 0: none yet."""
    loses_history: bool = False
    """Whether sealed messages are lost, too, because they were in the broker's own storage."""


class Forgotten(_Message, kw_only=True):
    """Answer to ForgetBroker."""

    broker: int
    name: str
    accepted: bool
    """Whether it is gone from now on; False: nothing was changed."""
    topics: list[LostTopic] = []
    """The first :data:`MOST_LOST`."""
    more: int = 0
    """Number of further topics."""
    member_problem: str = ""
    """Why its place among those that keep the metadata, and perhaps its vote, is not taken away yet; the call may be
    repeated. Empty: it has none."""


class ForgetGaps(_Message):
    """Asks that subscriptions of a topic no longer wait for what a broker had. Answered with ForgottenGaps."""

    topic: str
    """A topic, a partition, or a topic with all its partitions."""
    dry_run: bool = False
    """Change nothing; say for which offsets subscriptions wait."""


class ForgottenGaps(_Message):
    """Answer to ForgetGaps."""

    gaps: list[DeclaredGap]


class GetGaps(_Message):
    """Asks for the gaps that the disk of a broker can fill which was declared gone. Answered with OpenGaps."""

    identity: str
    """Of its data directory."""


class GapToFill(_Message, kw_only=True):
    """Offsets of a topic or partition that only the disk of a lost broker may have."""

    topic: str
    topic_id: TopicId
    start: Offset
    end: Offset
    move: int
    """The move that had brought the topic to that broker; 0: none."""


class OpenGaps(_Message):
    """Answer to GetGaps."""

    broker: str
    """The name of the broker."""
    gaps: list[GapToFill]


class FillGap(_Message, kw_only=True):
    """Sends a piece of a transfer of batches into a gap, to the owner of the topic. Answered with GapFilled."""

    topic: str
    topic_id: TopicId
    start: Offset
    """Of the gap."""
    identity: str
    """Of the data directory that has the batches."""
    transfer: int = 0
    """Drawn by the sender."""
    position: int = 0
    """Of the piece in the transfer; 0: a transfer begins."""
    data: bytes = b""
    """The pieces together are a msgpack array of pairs: stamp and part of a batch, as they are in the journal."""
    more: bool = False
    """Further pieces follow. After the last one the batches are sealed."""
    complete: bool = False
    """There are no further batches: the gap is filled."""


class GapFilled(_Message):
    """Answer to FillGap."""

    end: Offset
    """Up to which offset messages are there."""


# --- Backups ---------------------------------------------------------------------------------------------------------


class BackupMetadata(_Message):
    """Asks for a piece of a backup of the metadata. Answered with BackupPiece."""

    revision: int = 0
    """Of the backup, as the first piece said; 0: begin a backup."""
    position: int = 0
    """From which the piece continues, as the piece before it said."""


class BackupPiece(_Message):
    """A piece of a backup. The file is all pieces, one after the other."""

    revision: int
    """Of the metadata: the backup contains every change that was acknowledged before it was begun."""
    position: int
    """From which the next piece continues."""
    data: bytes
    last: bool = False
