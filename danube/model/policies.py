"""The choices that a topic or a subscription is created with."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

__all__ = ["EARLIEST", "LATEST", "Durability", "ProducerAccess", "Retention", "SubscriptionType"]


class Durability(enum.StrEnum):
    """When a publish is acknowledged, fixed for the life of a topic."""

    NONE = "none"
    """Handed to the subscriptions in memory. Survives nothing; slow consumers drop."""
    OS = "os"
    """Written to the journal file. Survives ``kill -9`` of the broker."""
    DISK = "disk"
    """The journal was synced (fdatasync). Survives power loss."""
    REMOTE = "remote"
    """In the storage backend. Survives the loss of the machine."""


class SubscriptionType(enum.StrEnum):
    """How the consumers of one subscription share its messages."""

    EXCLUSIVE = "exclusive"
    """One consumer; another one is refused."""
    FAILOVER = "failover"
    """One active consumer; the others stand by."""
    SHARED = "shared"
    """All consumers, in turn by their credit. No order."""
    KEY_SHARED = "key_shared"
    """All consumers; each key has one owner at a time and keeps its order."""


class ProducerAccess(enum.StrEnum):
    """Whether a producer wants a topic for itself."""

    SHARED = "shared"
    """Any number of producers at the same time."""
    EXCLUSIVE = "exclusive"
    """The only producer; opening it fences every older one, and shared producers are refused meanwhile."""


class Retention(msgspec.Struct, frozen=True, array_like=True):
    """How long a topic keeps messages. Each rule that is set takes away on its own; the default keeps everything."""

    max_age_s: float = 0.0
    """What was appended longer ago goes, whether it was acknowledged or not; 0: no such rule."""
    max_bytes: int = 0
    """The oldest sealed parts go as long as this much is left without them, acknowledged or not; 0: no such rule."""
    acknowledged: bool = False
    """What all subscriptions have acknowledged goes at once. Without a subscription nothing does."""

    def __bool__(self) -> bool:
        return self.max_age_s > 0 or self.max_bytes > 0 or self.acknowledged


EARLIEST: Final = "earliest"
LATEST: Final = "latest"
