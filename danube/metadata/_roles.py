"""What a metadata engine must guarantee for what a broker does with it. Pure: no I/O, no clock.

===========================  =======================  ============  ======  ============
role                         durable                  linearizable  leases  watch replay
===========================  =======================  ============  ======  ============
a broker alone               yes, but ``memory``      yes           no      no
the brokers of a cluster     yes                      yes           yes     no
===========================  =======================  ============  ======  ============

* ``durable``: without the records of its topics, the messages in a journal are lost. ``memory`` loses everything at
  each stop, as it promises, and a journal that is tied to other metadata refuses it
  (``danube/broker/directory/bond.py``). An engine that usually keeps its data, and loses it in a power loss, would lose
  messages without a warning. ``raftos``, which is for demonstration, is excused like ``memory``: it is empty at each
  start, too.
* ``linearizable``: a change whose answer was lost is settled by reading (:mod:`danube.metadata.table`), and a reader
  that may miss an acknowledged change decides wrongly. That holds for a broker alone, too: its predecessor's requests
  may still be on their way. ``raftos`` is excused for a broker alone: its store has no predecessor, and reads the
  broker's own copy.
* ``leases``: a broker alone grants none. In a cluster, a lease decides when others may take a dead broker's topics.
* ``watch_replay``: nothing needs it. Without it a :class:`~danube.metadata.Table` lists after its watch has begun.
"""

from __future__ import annotations

import enum
from typing import Final

from danube.metadata._contract import Capabilities
from danube.model.errors import FailedPreconditionError

__all__ = ["Role", "require_role"]


class Role(enum.Enum):
    """Use of a metadata engine."""

    ALONE = "one broker"
    """One broker keeps its records in it."""
    CLUSTER = "a cluster"
    """Several brokers share it and decide by it which of them owns a topic."""


_NEEDS: Final = {
    Role.ALONE: ("durable", "linearizable"),
    Role.CLUSTER: ("durable", "linearizable", "leases"),
}
_EXCUSED: Final = {"memory": ("durable",), "raftos": ("durable", "linearizable")}
"""What the engines of a scheme may lack for a broker alone: each of them is empty at every start, and says so."""
_MEASURED: Final = {
    "raftos": "Measured with three processes that were killed and restarted: 41 to 62 % of the writes that raftos had"
    " acknowledged were lost",
}
"""What is known about the engines of a scheme beside what they declare, for those who are refused."""
_REASONS: Final = {
    "durable": "it is not durable: acknowledged changes may be lost in a power loss, and with the records of topics"
    " their messages",
    "linearizable": "it is not linearizable: a read may miss an acknowledged change, so a broker cannot tell whether a"
    " change whose answer was lost was applied, nor whether another broker has taken over",
    "leases": "its leases do not end when their owner is dead: the topics of a dead broker would never be taken over",
}


def require_role(role: Role, scheme: str, capabilities: Capabilities) -> None:
    """Check that an engine can be used in a role.

    Args:
        role: the use.
        scheme: of the engine's URL. ``memory`` need not be durable for a broker alone; ``raftos`` need not be
            linearizable either.
        capabilities: what the opened engine declares.

    Raises:
        FailedPreconditionError: it lacks something; the message says why that is needed.
    """
    missing = [need for need in _NEEDS[role] if not getattr(capabilities, need)]
    if role is Role.ALONE:
        missing = [need for need in missing if need not in _EXCUSED.get(scheme, ())]
    if missing:
        reasons = "; ".join(_REASONS[need] for need in missing)
        if scheme in _MEASURED:
            reasons += f". {_MEASURED[scheme]}"
        raise FailedPreconditionError(
            f"the metadata engine {scheme!r} cannot be used by {role.value}: {reasons}. Configure another engine, such"
            " as 'embedded' or 'etcd'"
        )
