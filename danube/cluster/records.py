"""Records of the cluster in the metadata. Each is a msgpack array; new fields are added at the end and have a default.

Keys::

    /cluster                     ClusterRecord
    /brokers/{broker}            BrokerRecord, until the broker is forgotten
    /sessions/{broker}           SessionRecord, attached to the lease of the session: it vanishes with it
    /coordinator/holder          CoordinatorRecord, attached to the session of the coordinator
    /assignments/{topic id}      Assignment: the owner of a topic, or of one partition
    /moves/{topic id}            MoveRecord, while its owner is to move the topic to another broker
    /creating/{namespace}/{topic}  CreatingRecord, while a topic with many partitions is created
    /wals/{storage}/{wal}        WalRecord, once a wal has another owner than the broker that began it

A *wal* is the log of commits of durability ``remote`` that one broker at a time writes below ``wal/{cluster}/{wal}`` in
a storage. A broker begins one under its own name; the successor of a dead broker goes on with that one's wal. Broker
names are ``b1``, ``b2`` and so on (:func:`broker_name`); topic ids have 16 hexadecimal digits.

A session's key is never rewritten: its revision identifies the session, and changes by its broker are conditional on
it. An assignment's revision is the condition of every other change of the topic.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

import msgspec

from danube.model.errors import BrokerForgottenError, DataLossError, InvalidArgumentError
from danube.model.ids import BrokerId, OwnerEpoch, TopicId

__all__ = [
    "ASSIGNMENTS",
    "BROKERS",
    "CLUSTER_KEY",
    "COORDINATOR",
    "CREATING",
    "DELETED",
    "MOVES",
    "SESSIONS",
    "TOPICS",
    "Assignment",
    "BrokerRecord",
    "BrokerState",
    "ClusterRecord",
    "CoordinatorRecord",
    "CreatingRecord",
    "DeletedRecord",
    "LastStart",
    "MoveReason",
    "MoveRecord",
    "Reason",
    "SessionRecord",
    "WALS",
    "Wal",
    "WalRecord",
    "beginner_of",
    "broker_name",
    "check_latest",
    "check_not_gone",
    "is_broker_name",
    "is_topic_key",
    "is_topic_name",
    "parse_broker",
    "parse_topic_id",
    "topic_key",
    "wal_key",
    "wal_name",
    "wal_of",
]

CLUSTER_KEY: Final = "/cluster"
COORDINATOR: Final = "/coordinator/"
BROKERS: Final = "/brokers/"
SESSIONS: Final = "/sessions/"
ASSIGNMENTS: Final = "/assignments/"
"""Prefix of the rows that assign topics to brokers, one for each topic."""
TOPICS: Final = "/topics"
CREATING: Final = "/creating"
DELETED: Final = "/deleted/"
MOVES: Final = "/moves/"
"""Prefix of the rows that order the move of a topic to another broker, one for each topic that is to move."""
WALS: Final = "/wals/"
"""Prefix of the rows of wals that have changed hands."""

_BROKER: Final = re.compile("b[1-9][0-9]{0,8}")
_TOPIC: Final = re.compile("[0-9a-f]{16}")


class ClusterRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What all members have in common. Written when the cluster is formed."""

    name: str
    """Chosen by the operator (``--cluster``); links between brokers of different names are refused."""
    incarnation: int
    """64 bits that identify this cluster among all of the same name; changed by a restore and by a recovery."""
    feature_level: int
    """The formats and messages that members may use; see :mod:`danube.cluster.features`."""
    epoch_base: int = 0
    """Added to every topic's epoch. A restored backup raises it, so that no epoch is used twice."""
    next_broker: int = 1
    """The number of the next broker that joins."""


class BrokerState(enum.StrEnum):
    """What the cluster may expect of a broker. Whether it is running is a matter of its session."""

    ACTIVE = "active"
    """Gets topics."""
    DRAINING = "draining"
    """Keeps its topics until they have been moved, and gets no new ones."""
    GONE = "gone"
    """Will not return. Only an operator can say that (``danube cluster forget``)."""


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A broker, from the moment it joins until it is forgotten."""

    identity: str
    """Random, stored in the data directory: a machine with a new disk is another broker."""
    state: BrokerState = BrokerState.ACTIVE
    rack: str = ""
    """Brokers with the same rack fail together. Empty: this one fails alone."""
    storages: tuple[str, ...] = ()
    """Names of its storages; a storage that is not shared has the form ``{storage}@{broker}``."""
    life: int = 0
    """Number of its starts. A data directory with a lower one is a copy, or was set back."""
    start: int = 0
    """Random, of its last start: two processes with copies of one data directory have the same life, but not this."""
    feature_level: int = 1
    """The highest one that the version knows that it was last started with; see :mod:`danube.cluster.features`."""
    shared: tuple[str, ...] = ()
    """Names of those of its storages that other brokers reach, too."""
    reserve: int = 0
    """How many offsets its journal can use at most (:func:`danube.cluster.gaps.reserve_of`), with the largest limits
    that it was ever started with; 0: not known."""


class LastStart(NamedTuple):
    """The last start of a broker that was to be entered in its record, according to its data directory."""

    life: int
    """Its number; 0: there was none."""
    start: int
    """See :class:`BrokerRecord`; 0: not known, an earlier version has stored it."""


def check_not_gone(name: str, record: BrokerRecord) -> None:
    """Check that a broker was not declared gone.

    Raises:
        BrokerForgottenError: it was.
    """
    if record.state is BrokerState.GONE:
        raise BrokerForgottenError(
            f"the data directory is that of broker {name}, which was declared gone for good (danube cluster forget"
            f" {name}): other brokers go on with its topics, so it does not join again. Give back what only its disk"
            " has: danube cluster return-tail --data-dir DIRECTORY. To run a broker on this machine, start it with an"
            " empty data directory"
        )


def check_latest(name: str, record: BrokerRecord, last: LastStart) -> None:
    """Check that a data directory has seen the last start that is in the record of its broker.

    Only what the directory said when it was opened counts: another process with a copy of it may have come first.

    Raises:
        DataLossError: it is a copy, or was set back.
    """
    if record.life > last.life:
        found = f"is of start {last.life} of broker {name}, which has been started {record.life} times"
    elif record.life == last.life and last.start not in (0, record.start):
        found = f"is not the latest: another process has made start {record.life} of broker {name}"
    else:
        return
    raise DataLossError(
        f"the data directory {found}: the directory is a copy of another one that is in use, or an old snapshot of it"
        " was restored. Start the broker with its latest directory; or, if that is lost, with an empty one: then it"
        " becomes a new broker"
    )


class SessionRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A running broker."""

    address: str
    """``host:port`` at which clients and other brokers reach it."""
    admin_address: str = ""
    """Empty: it has no admin port."""
    version: str = ""
    feature_level: int = 0
    life: int = 0
    """The start to which the session belongs; see :class:`BrokerRecord`."""
    http_address: str = ""
    """URL at which others reach its HTTP port; empty: it has none, or only its own machine reaches it."""


class CoordinatorRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The broker that coordinates.

    All its changes are conditional on the revision of this record, which is also the number of its term: a later
    coordinator has a higher one.
    """

    broker: BrokerId


class Reason(enum.StrEnum):
    """Why a topic has its owner."""

    CREATED = "created"
    FAILOVER = "failover"
    """The former owner died, and nothing that was promised depends on its disk."""
    FOUND = "found"
    """The broker had the topic before it became a member of the cluster."""
    FORGOTTEN = "forgotten"
    """The former owner was declared gone, and what only its disk had is a declared gap (:mod:`danube.cluster.gaps`)."""
    MOVED = "moved"
    """The former owner has handed it over: a planned move."""


class Assignment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The owner of a topic or partition. There is one for each of 100,000 topics in each broker: keep it small."""

    owner: BrokerId
    epoch: OwnerEpoch
    """Higher by 1 with each change of the owner. Stamps and names of segments contain it."""
    reason: Reason = Reason.CREATED
    move: int = 0
    """The id of the move (:class:`MoveRecord`) that gave the topic to its owner: in the owner's journal the topic
    begins at the entry that names this id. 0: it was not moved; its entries count from the beginning of the journal."""
    wal: str = ""
    """Durability ``remote``: the wal that the topic is in. Empty: the one that has the name of the owner."""


class Wal(NamedTuple):
    """A wal: its storage, and its name there."""

    storage: str
    name: str


class WalRecord(msgspec.Struct, frozen=True, array_like=True):
    """The owner of a wal that another broker has begun. Its topics are assigned to the same broker, a little later."""

    owner: BrokerId
    former: BrokerId
    """The owner before; it had no session when it lost the wal."""
    changes: int = 1
    """How often it has changed hands."""


class MoveReason(enum.StrEnum):
    """Why a topic is to move."""

    ASKED = "asked"
    """An operator has named the topic and the broker."""
    DRAIN = "drain"
    """Its owner is drained."""
    BALANCE = "balance"
    """Its owner has more load than others."""


class MoveRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The order to its owner to move a topic to another broker. At most one exists for a topic.

    The row is the token of the move: the transaction that changes the owner is conditional on its revision, and deletes
    it. So a move ends, one way or the other, once the row is gone: then the assignment says which way. Each side may
    abandon the move by deleting the row; after that the owner cannot change under this id any more. What the target has
    stored of the topic counts only if the assignment repeats the id.
    """

    move: int
    """63 random bits, never 0."""
    target: BrokerId
    target_session: int
    """Revision of the target's session when the move was ordered: one that has started again knows nothing of it."""
    assignment: int
    """Revision of the assignment that it was ordered on."""
    reason: MoveReason = MoveReason.ASKED
    by: str = ""
    """The principal who asked; empty: the coordinator."""
    ordered_s: float = 0.0
    """When, in seconds since 1970, by the clock of the broker that wrote it."""


class CreatingRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A topic whose assignments are being written, in several transactions; its record follows in the last one.

    Each of these transactions is conditional on the revision of this key, so once the key is deleted none of them can
    be applied any more.
    """

    creator: BrokerId
    session: int
    """Revision of the creator's session: if it has ended, nothing more will come."""
    topic_ids: tuple[TopicId, ...]


class DeletedRecord(msgspec.Struct, frozen=True, array_like=True):
    """A topic that was deleted, until all its owners have removed what they have of it."""

    topic_ids: tuple[TopicId, ...]
    storage: str = ""
    """The one with the wals that hold it, if its durability is ``remote``; else it is in the journals of brokers."""


def broker_name(broker: BrokerId) -> str:
    """Return the name of a broker in keys, commands and messages: ``b1``."""
    return f"b{broker}"


def is_broker_name(name: str) -> bool:
    """Whether :func:`parse_broker` understands a name."""
    return _BROKER.fullmatch(name) is not None


def parse_broker(name: str) -> BrokerId:
    """Return the broker with a name.

    Raises:
        InvalidArgumentError: this is not the name of a broker.
    """
    if not is_broker_name(name):
        raise InvalidArgumentError(f"{name!r} is not the name of a broker, such as b1")
    return BrokerId(int(name[1:]))


def wal_name(broker: BrokerId, number: int) -> str:
    """Return the name of a broker's wal: ``b1`` is its first one, ``b1-2`` that after it has lost the first one."""
    return broker_name(broker) if number == 1 else f"{broker_name(broker)}-{number}"


def beginner_of(wal: str) -> BrokerId:
    """Return the broker that has begun a wal; it owns the wal as long as there is no :class:`WalRecord`."""
    return parse_broker(wal.partition("-")[0])


def wal_of(assignment: Assignment) -> str:
    """Return the wal that a topic of durability ``remote`` is in."""
    return assignment.wal or broker_name(assignment.owner)


def wal_key(storage: str, wal: str) -> str:
    """Return the name of a wal's row below :data:`WALS`."""
    return f"{storage}/{wal}"


def topic_key(topic_id: TopicId) -> str:
    """Return the name of a topic's row below :data:`ASSIGNMENTS`."""
    return f"{topic_id:016x}"


def is_topic_name(name: str) -> bool:
    """Whether a row of topics has the form of a topic's name: ``/{namespace}/{topic}``."""
    return name.startswith("/") and name.count("/") == 2


def is_topic_key(name: str) -> bool:
    """Whether :func:`parse_topic_id` understands a name."""
    return _TOPIC.fullmatch(name) is not None


def parse_topic_id(name: str) -> TopicId:
    """Return the topic of a row below :data:`ASSIGNMENTS`.

    Raises:
        InvalidArgumentError: this is not the name of such a row.
    """
    if not is_topic_key(name):
        raise InvalidArgumentError(f"{name!r} is not a topic id of 16 hexadecimal digits")
    return TopicId(int(name, 16))
