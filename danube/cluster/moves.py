"""Planned moves of topics between brokers: what each side does next. Pure.

A move is ordered by a row in the metadata (:class:`~danube.cluster.records.MoveRecord`), which is also its token: the
change of the owner is conditional on the row's revision and deletes it. The owner carries the order out
(:class:`Departure`)::

    reserve     the target checks that it can take the topic, and begins an empty copy in its journal
    copy        batches are sent while the topic is served, in rounds, until little is missing
    freeze      publishers and acknowledgements wait, everything on its way settles
    complete    the last batches and the state of the topic are sent; the target answers when all is synced
                (durability ``remote``: instead of batches only the state is sent; what is in commits only is sealed
                into the storage that both reach, before the freeze and once more, in a moment, behind it)
    switch      one transaction: the assignment names the target and the move, the row is deleted
    settle      only if the outcome of the switch is unknown: the row is deleted under its revision. If that succeeds
                the switch can never be applied any more; if the row is gone the assignment tells what has happened

Until the switch is sent the owner may go on at any time. Afterwards it stays frozen until the outcome is certain;
reading alone does not make it certain, because the switch may still be on its way.

What the target has copied is *pending* until the assignment repeats the id of the move (:func:`fate_of_copy`). So
there is one owner at any time, and it has every message that was acknowledged. What a journal holds of a topic at the
start of a broker is judged by :func:`fate_at_recovery`.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from danube.cluster.records import Assignment, Reason
from danube.model.ids import BrokerId

__all__ = [
    "Action",
    "Complete",
    "Copied",
    "Copy",
    "Departure",
    "Done",
    "Doubt",
    "Event",
    "Fate",
    "Freeze",
    "Left",
    "Look",
    "Refused",
    "Reserve",
    "Seen",
    "Stayed",
    "Switch",
    "Withdraw",
    "Withdrawn",
    "fate_at_recovery",
    "fate_of_copy",
]

MOST_ROUNDS: Final = 5
"""Rounds of copying; if publishers are faster than the copy, the topic is frozen after the last one all the same."""


class Reserve(NamedTuple):
    """Have the target begin a copy. Answered by Done or Refused."""


class Copy(NamedTuple):
    """Send the batches up to the present end. Answered by Done, with the bytes that were sent, or Refused."""


class Freeze(NamedTuple):
    """Freeze the topic, and let everything settle. Answered by Done or Refused."""


class Complete(NamedTuple):
    """Send the rest and the state; the target syncs them. Answered by Done or Refused."""


class Switch(NamedTuple):
    """Change the owner. Answered by Done, Refused (certainly not changed) or Doubt."""


class Withdraw(NamedTuple):
    """Delete the order under its revision. Answered by Withdrawn or Doubt; after Doubt it is repeated."""

    thaw: bool
    """Whether the topic goes on before that: no switch was sent, or it was certainly refused."""


class Look(NamedTuple):
    """Read the assignment, linearizably. Answered by Seen or Doubt; after Doubt it is repeated."""


class Left(NamedTuple):
    """The end: the target owns the topic. It ends here."""


class Stayed(NamedTuple):
    """The end: the topic stays, and goes on."""

    reason: str


Action = Reserve | Copy | Freeze | Complete | Switch | Withdraw | Look | Left | Stayed


class Done(NamedTuple):
    """An action was carried out."""

    sent_bytes: int = 0


class Refused(NamedTuple):
    """An action was not carried out, and never will be."""

    reason: str


class Doubt(NamedTuple):
    """It is unknown whether an action was carried out, or will be."""

    reason: str


class Withdrawn(NamedTuple):
    """The order does not exist any more."""

    existed: bool
    """Whether it was this that has deleted it."""


class Seen(NamedTuple):
    """What the assignment says."""

    move: int


Event = Done | Refused | Doubt | Withdrawn | Seen


class Departure:
    """The owner's side of one move; see the module.

    Args:
        move: its id.
        little_bytes: a round that has sent at most this is the last one.
        stored: whether the topic stores messages. One that does not is frozen and switched: there is nothing to copy.

    Attributes:
        action: what is to be done now. Its outcome is passed to :meth:`next`, which returns the next one. The last one
            is Left or Stayed.
    """

    def __init__(self, move: int, little_bytes: int, *, stored: bool) -> None:
        self._move = move
        self._little_bytes = little_bytes
        self._rounds = 0
        self._reason = ""
        self._switched = False
        """Whether a switch was sent whose outcome is not certain."""
        self._stored = stored
        self.action: Action = Reserve() if stored else Freeze()

    @property
    def may_have_left(self) -> bool:
        """Whether the topic may have its new owner: a switch was sent, and it is not certain that it was refused."""
        return isinstance(self.action, Switch | Look | Left) or (isinstance(self.action, Withdraw) and self._switched)

    def next(self, event: Event) -> Action:
        """Return what is to be done after the outcome of the present action."""
        self.action = self._after(self.action, event)
        return self.action

    def _after(self, action: Action, event: Event) -> Action:
        if isinstance(action, Withdraw):
            return self._withdrawn(action, event)
        if isinstance(action, Look):
            if not isinstance(event, Seen):
                return action
            return Left() if event.move == self._move else Stayed(self._reason)
        if isinstance(event, Refused | Doubt):
            self._reason = event.reason
            self._switched = isinstance(action, Switch) and isinstance(event, Doubt)
            return Withdraw(thaw=not self._switched)
        assert isinstance(event, Done), f"{event} does not answer {action}"
        if isinstance(action, Reserve):
            return Copy()
        if isinstance(action, Copy):
            self._rounds += 1
            is_last = event.sent_bytes <= self._little_bytes or self._rounds >= MOST_ROUNDS
            return Freeze() if is_last else Copy()
        if isinstance(action, Freeze):
            return Complete() if self._stored else Switch()
        if isinstance(action, Complete):
            return Switch()
        assert isinstance(action, Switch), f"{action} is the end"
        return Left()

    def _withdrawn(self, action: Withdraw, event: Event) -> Action:
        if not isinstance(event, Withdrawn):
            return action
        if self._switched and not event.existed:
            return Look()
        return Stayed(self._reason)


class Fate(enum.Enum):
    """What becomes of the entries of a topic in a journal."""

    SERVE = "serve"
    """They are the topic."""
    WAIT = "wait"
    """The move is neither confirmed nor abandoned."""
    BURY = "bury"
    """They count for nothing: the move was abandoned, or the topic is complete elsewhere."""
    KEEP = "keep"
    """They are not served, and nobody may have a copy of them."""
    MISSING = "missing"
    """The topic belongs to this broker, and these are not its entries: they are lost."""


class Copied(NamedTuple):
    """What the journal of a broker says of the origin of its entries of a topic."""

    move: int = 0
    """The move that has brought them; 0: the topic was not moved to this broker."""
    epoch: int = 0
    """The epoch of that move."""
    pending: bool = False
    """Whether the journal does not show that the move was confirmed."""


def fate_of_copy(me: BrokerId, move: int, ordered: int | None, assignment: Assignment | None) -> Fate:
    """Return what becomes of the copy that the target of a move has.

    Args:
        me: the target.
        move: the id of the move.
        ordered: the move that the row orders, as read before the assignment; None: there is no row.
        assignment: of the topic, as read linearizably.
    """
    if assignment is not None and assignment.owner == me and assignment.move == move:
        return Fate.SERVE
    return Fate.WAIT if ordered == move else Fate.BURY


def fate_at_recovery(me: BrokerId, assignment: Assignment | None, copied: Copied) -> Fate:
    """Return what becomes of the entries of a topic that a broker finds in its journal at its start.

    The broker has opened its new session before it has read the assignment. A switch is conditional on the former one,
    so none can be applied any more.

    Args:
        me: the broker.
        assignment: of the topic, as read linearizably; None: it has none.
        copied: where the entries come from, according to the journal.
    """
    if assignment is None:
        return Fate.KEEP
    if assignment.owner == me:
        if assignment.move == copied.move:
            # Behind a declared gap it begins with a state that is not pending. Until that is there, it has not begun:
            # the cursors that its storage has told are not in the journal yet.
            return Fate.BURY if copied.pending and assignment.reason is Reason.FORGOTTEN else Fate.SERVE
        if assignment.move == 0 and copied.pending:
            return Fate.BURY  # it got the topic for another reason: a copy of an abandoned move is not the topic
        if assignment.reason is Reason.FORGOTTEN:
            return Fate.BURY  # it begins behind a declared gap, and has not begun: these are of an earlier time
        return Fate.MISSING
    if copied.pending:
        return Fate.BURY
    return Fate.BURY if assignment.move and assignment.epoch > copied.epoch else Fate.KEEP
