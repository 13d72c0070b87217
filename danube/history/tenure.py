"""What history has to know of the cluster: which topics this broker owns, and the conditions of its changes. Pure.

The metadata assign each topic to one broker. History is told by a :class:`Tenure`, which the broker implements with its
membership in the cluster. Every change of a topic's history is conditional on the topic's assignment and on the session
of this broker, so a change that was sent before a topic got another owner is refused if it arrives afterwards.

:func:`owner_epoch` makes one number of the two that tell owners apart: how often the topic has changed hands, and which
life of its broker it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from danube.model.ids import OwnerEpoch, TopicId

if TYPE_CHECKING:
    from danube.metadata._contract import Condition

__all__ = ["Tenure", "assigned_epoch", "offset_life", "owner_epoch"]

_LIFE_BITS: Final = 24


def owner_epoch(assigned: int, life: int) -> OwnerEpoch:
    """Return the epoch of an owner in stamps, segments and manifests.

    It is higher with each owner of the topic, and with each life of the same owner: after a power loss a broker may
    give offsets of durability ``os`` to other messages, so its lives must be told apart.

    Args:
        assigned: the epoch of the topic's assignment, higher with each change of the owner.
        life: the number of the owner's start.
    """
    return OwnerEpoch(assigned << _LIFE_BITS | life % (1 << _LIFE_BITS))


def assigned_epoch(epoch: OwnerEpoch) -> int:
    """Return the epoch of the assignment that an owner's epoch was made from. A later assignment needs a higher one."""
    return epoch >> _LIFE_BITS


def offset_life(epoch: OwnerEpoch) -> int:
    """Return what distinguishes offsets given out in this epoch from those in another one, in 32 bits.

    It is shorter than the epoch, to have room for more beside it: 16 bits of the assignment's epoch, and 16 of the
    life.
    """
    return (assigned_epoch(epoch) & 0xFFFF) << 16 | epoch & 0xFFFF


class Tenure(Protocol):
    """What this broker owns. Implemented by the broker; all answers come from memory, as of the last change seen."""

    @property
    def broker(self) -> str:
        """The name of this broker: ``b1``. Keys and objects that are its own contain it."""
        ...

    @property
    def life(self) -> int:
        """The number of this broker's start: each has a higher one than those before."""
        ...

    def owns(self, topic_id: TopicId) -> bool:
        """Whether a topic or partition is assigned to this broker."""
        ...

    def epoch(self, topic_id: TopicId) -> OwnerEpoch:
        """Return the epoch under which this broker owns a topic; see :func:`owner_epoch`.

        Raises:
            NotOwnerError: the topic is not assigned to this broker.
        """
        ...

    def assigned_at(self, topic_id: TopicId) -> int:
        """Return the revision of the metadata at which a topic was assigned; 0: no row says so, or it has none."""
        ...

    def conditions(self, topic_id: TopicId) -> Sequence[Condition]:
        """Return the conditions of a change of a topic: its assignment, and the session of this broker.

        Raises:
            NotOwnerError: the topic is not assigned to this broker.
            UnavailableError: this broker has no session at the moment.
        """
        ...

    def session(self) -> Sequence[Condition]:
        """Return the conditions of a change that concerns no topic: the session of this broker.

        Raises:
            UnavailableError: this broker has no session at the moment.
        """
        ...

    async def raise_epoch(self, at_least: OwnerEpoch) -> None:
        """Ensure that topics which are restored from a bucket after this call get an epoch of at least this.

        Raises:
            OwnerFencedError: another process runs as this broker.
            DanubeError: the metadata cannot be written.
        """
        ...
