"""Types of the numbers that identify topics, messages, producers, and the terms of owners and sessions.

At run time all of them are plain ints: msgspec and :mod:`struct` encode and decode them as such, so no byte differs.
The type checker accepts neither an ``int`` nor another of these types in place of one of them.

* **Ids and epochs** have no arithmetic: the sum of an id and a number is an ``int``. A number is converted
  (``TopicId(...)``) where it is drawn, counted, or read from a key or a text. That is a call, so it is never done per
  message.
* **Offsets** have arithmetic everywhere: an offset plus a number is an offset, the difference of two is a number. For
  the type checker ``Offset`` is a class with these operators; at run time it is ``int`` itself, so they cost nothing.

The wire, records, journal, history and broker use all of these types. Two kinds of offsets are plain ints: those in
sets of offsets (flat lists, :class:`danube.model.ranges.RangeSet`, and so all of :mod:`danube.dispatch`, which counts
through them message by message), and those that applications pass to :mod:`danube.client`. Both become an ``Offset``
where one of the layers above takes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NewType, overload

__all__ = [
    "FIRST_OFFSET",
    "NO_OWNER_EPOCH",
    "NO_PRODUCER",
    "NO_PRODUCER_EPOCH",
    "NO_TOPIC",
    "BrokerId",
    "Offset",
    "OwnerEpoch",
    "ProducerEpoch",
    "ProducerId",
    "TopicId",
]

TopicId = NewType("TopicId", int)
"""Identifies a plain topic or one partition where its name is not stored: in journals, segments and metadata.

The broker that creates the topic draws it: 63 random bits, at least 1. It never changes. A topic that is deleted and
created again has another id, and its offsets start again. Below 2**64 in all formats.
"""
NO_TOPIC: Final = TopicId(0)
"""No topic, in journal entries that belong to none; in the planned policies of a partitioned topic: all partitions."""

ProducerId = NewType("ProducerId", int)
"""Identifies a producer, that is its name, in the batches of one topic.

The topic's broker draws it when the name is first opened or registered: 63 random bits, at least 1, and the lowest bit
says whether the name was generated for one session. It is valid as long as the producer's state is kept: a name that
returns later has another id. Below 2**64 in all formats.
"""
NO_PRODUCER: Final = ProducerId(0)
"""No producer: of a composite batch, whose records name theirs, and of a staged batch before its commit."""

ProducerEpoch = NewType("ProducerEpoch", int)
"""Numbers the sessions of a topic's producers; a batch names the session that sends it.

The topic's broker counts them in one counter for all producers of the topic: 1, 2, ... Each open has a higher one than
all opens before it, also after a restart; a reconnect keeps it. Below 2**32 in a batch's header.
"""
NO_PRODUCER_EPOCH: Final = ProducerEpoch(0)
"""No session: of registered producers, which never open one, and wherever no producer is named."""

OwnerEpoch = NewType("OwnerEpoch", int)
"""Numbers the owners of a topic, one after the other, and the lives of each owner.

It is higher with each broker that the topic is assigned to, and with each start of that broker
(:func:`danube.history.tenure.owner_epoch`). Stamps, segments, manifests and commits contain it; those of an earlier
owner that come late are refused, or ignored by readers. Below 2**64 in all formats.
"""
NO_OWNER_EPOCH: Final = OwnerEpoch(0)
"""No owner: of topics that store nothing, and of buckets without manifests or commits."""

BrokerId = NewType("BrokerId", int)
"""Identifies a broker of a cluster: 1, 2, ... in the order in which they became members.

The metadata count it, and none is used twice. It belongs to the identity in the data directory, so a machine whose disk
was replaced becomes another broker. Written as ``b1`` in keys, commands and messages. Below 10**9.
"""

if TYPE_CHECKING:

    class Offset(int):
        """Numbers the messages of one plain topic or partition, in their order.

        The topic's broker counts them from 0 when it appends a batch: each record has the next one. Within the topic's
        durability none is used twice; a topic that is deleted and created again starts at 0 again. The end of a range
        (``end_offset``) is the offset behind its last message. Below 2**63.
        """

        def __add__(self, count: int, /) -> Offset: ...
        def __radd__(self, count: int, /) -> Offset: ...
        @overload
        def __sub__(self, other: Offset, /) -> int: ...  # type: ignore[overload-overlap]
        @overload
        def __sub__(self, count: int, /) -> Offset: ...
        def __sub__(self, other: int, /) -> int: ...
else:
    Offset = int

FIRST_OFFSET: Final = Offset(0)
"""The offset of a topic's first message, and the end of a topic without messages."""
