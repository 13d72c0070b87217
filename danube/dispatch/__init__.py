"""Subscription dispatch: decides which consumer gets which message, and tracks acknowledgements and redeliveries.

All modules are pure state machines: no clock, no files, no sockets. :mod:`danube.dispatch.machine` describes how to
drive one.

Offsets are plain ints here, not ``danube.model.ids.Offset``: they come from flat lists and ``range``, one for
each message, and become ints there anyway. No id of a topic or producer occurs that one could be mistaken for.
"""

from __future__ import annotations

from danube.dispatch.cursor import (
    Cursor,
    CursorDelta,
    CursorEntry,
    CursorReset,
    CursorSnapshot,
    decode_entry,
    encode_entry,
)
from danube.dispatch.exclusive import ExclusiveMachine
from danube.dispatch.failures import MOST_PAST, PastDelivery
from danube.dispatch.key_shared import KeySharedMachine
from danube.dispatch.lossy import LossyMachine
from danube.dispatch.machine import Machine
from danube.dispatch.reading import ReaderMachine
from danube.dispatch.shared import SharedMachine
from danube.dispatch.spans import (
    ConsumerState,
    Delivery,
    Description,
    Explanation,
    Gap,
    Poisoned,
    ReadRequest,
    Span,
)
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

__all__ = [
    "MOST_PAST",
    "PastDelivery",
    # Machines
    "Machine",
    "make_subscription",
    "ExclusiveMachine",
    "SharedMachine",
    "KeySharedMachine",
    "LossyMachine",
    "ReaderMachine",
    # Values
    "Span",
    "ReadRequest",
    "Delivery",
    "Gap",
    "Poisoned",
    "ConsumerState",
    "Description",
    "Explanation",
    # Cursors and their journal entries
    "Cursor",
    "CursorDelta",
    "CursorReset",
    "CursorSnapshot",
    "CursorEntry",
    "encode_entry",
    "decode_entry",
]


def make_subscription(
    kind: SubscriptionType,
    cursor: Cursor,
    limits: Limits,
    policy: SubscriptionPolicy | None = None,
    *,
    lossy: bool = False,
) -> Machine:
    """Build the machine for a subscription.

    Args:
        kind: its type.
        cursor: recovered or new; the machine owns it from now on. Give it ``max_ranges=Cursor.most_ranges(limits)``,
            so that its size has a hard bound.
        limits: the broker's limits.
        policy: of this subscription; None for the default.
        lossy: for a topic of durability ``none``: nothing is stored, nothing is delivered twice.
    """
    policy = policy or SubscriptionPolicy()
    if lossy:
        return LossyMachine(kind, cursor, limits, policy)
    match kind:
        case SubscriptionType.SHARED:
            return SharedMachine(cursor, limits, policy)
        case SubscriptionType.KEY_SHARED:
            return KeySharedMachine(cursor, limits, policy)
        case SubscriptionType.EXCLUSIVE | SubscriptionType.FAILOVER:
            return ExclusiveMachine(kind, cursor, limits, policy)
