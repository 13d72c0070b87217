"""Requests that are committed together. Pure: no I/O, no clock.

One commit is under way at a time. What is asked meanwhile waits, and is tried on a draft of the present state, one
request after the other. What the draft has changed becomes one entry of the log. The commit is conditional on the
version of the node ``revision``, so if it succeeds, the state was the present one, and all answers are right: those of
reads, and those of requests that were refused, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from danube.metadata import Condition, Delete, LeaseId, Put, StoreMachine, TransactionResult
from danube.model.errors import DanubeError, InvalidArgumentError, LimitExceededError
from danube.model.limits import KIB, Limits
from danube_metadata_zookeeper._mirror import Draft, Mirror
from danube_metadata_zookeeper._nodes import ANY, CheckNode, CreateNode, DeleteNode, NodeOperation, SetNode
from danube_metadata_zookeeper._records import LEASE_BYTES, Entry, Head, Paths, encode, entry_of, event_bytes

__all__ = ["MOST_TOGETHER", "Group", "Request", "check_size", "end_lease", "form_group", "grant", "transact"]

MOST_TOGETHER: Final = 256
"""Most requests in one commit."""


def _unheard() -> None:
    """Wake the caller of a request that has none yet."""


class Request:
    """Something that is asked of the store.

    Args:
        work: what to do with a machine; raises DanubeError if it is refused, and has changed nothing then.
        is_read: whether it changes nothing. Reads are answered from the state after the commit.
        size: how many bytes of an entry the work may need.
        renewals: for the end of a lease: only if its node has this version; None: in any case.
    """

    __slots__ = (
        "error",
        "is_answered",
        "is_read",
        "is_sent",
        "is_withdrawn",
        "on_answer",
        "renewals",
        "result",
        "size",
        "work",
    )

    def __init__(
        self,
        work: Callable[[StoreMachine], Any],
        *,
        is_read: bool = False,
        size: Callable[[StoreMachine], int] = lambda _machine: 0,
        renewals: int | None = None,
    ) -> None:
        self.work = work
        self.is_read = is_read
        self.size = size
        self.renewals = renewals
        self.result: Any = None
        self.error: DanubeError | None = None
        self.is_answered = False
        self.is_sent = False
        """Whether it may have been applied."""
        self.is_withdrawn = False
        """Whether its caller has stopped waiting."""
        self.on_answer: Callable[[], None] = _unheard

    def answer(self, outcome: Any) -> None:
        """Answer with a result, or the error to be raised; the first answer counts."""
        if self.is_answered:
            return
        if isinstance(outcome, DanubeError):
            self.error = outcome
        else:
            self.result = outcome
        self.is_answered = True
        self.on_answer()


class Group(msgspec.Struct):
    """Requests that were tried together."""

    taken: list[Request]
    outcomes: list[Any]
    """Of the taken ones: results, or errors. None for reads."""
    left: list[Request]
    """Those that do not fit, in their order."""
    operations: list[NodeOperation]
    """To be committed. The first one is about the node ``revision``."""
    entry: Entry | None
    """None: nothing changes."""
    size: int
    """Bytes of the entry."""
    ends: dict[int, tuple[LeaseId, Request | None]]
    """The operations that delete the nodes of leases; and the request that did so conditionally."""


def form_group(
    mirror: Mirror,
    head: Head,
    version: int,
    requests: Sequence[Request],
    *,
    paths: Paths,
    limits: Limits,
    most_bytes: int,
    missing: frozenset[LeaseId],
) -> Group:
    """Try requests on the present state.

    Args:
        mirror: the state.
        head: the value of ``revision`` that belongs to it.
        version: of that node.
        requests: in their order.
        paths: of the nodes.
        limits: ``metadata_*`` are used.
        most_bytes: of an entry.
        missing: leases whose nodes were deleted by another program.
    """
    machine = StoreMachine(Draft(mirror.table), limits)
    taken: list[Request] = []
    outcomes: list[Any] = []
    conditional: dict[LeaseId, Request] = {}
    total = 0
    count = 0
    for count, request in enumerate(requests, 1):
        if request.is_withdrawn and not request.is_sent:
            continue
        outcome: Any = None
        if not request.is_read:
            size = request.size(machine)
            if total and total + size > most_bytes:
                count -= 1
                break
            total += size
            ended = len(machine.effects.revoked)
            try:
                outcome = request.work(machine)
            except DanubeError as error:
                outcome = error
            if request.renewals is not None and len(machine.effects.revoked) > ended:
                conditional[machine.effects.revoked[-1]] = request
        taken.append(request)
        outcomes.append(outcome)
    effects = machine.take_effects()
    group = Group(taken, outcomes, list(requests[count:]), [], None, 0, {})
    if not (effects.batches or effects.granted or effects.revoked):
        group.operations.append(CheckNode(paths.revision, version))
        return group
    group.entry = entry_of(effects.granted, effects.batches, effects.revoked)
    data = encode(group.entry)
    group.size = len(data)
    position = mirror.position + 1
    after = Head(head.format, head.store, position, machine.table.revision)
    group.operations += [
        SetNode(paths.revision, encode(after), version),
        CreateNode(paths.entry(position), data),
        *(CreateNode(paths.lease(lease)) for lease, _ in effects.granted),
    ]
    for lease in effects.revoked:
        if lease not in missing:
            asker = conditional.get(lease)
            group.ends[len(group.operations)] = (lease, asker)
            renewals = asker.renewals if asker is not None else None
            group.operations.append(DeleteNode(paths.lease(lease), ANY if renewals is None else renewals))
    return group


def check_size(operations: Sequence[Put | Delete], most_bytes: int) -> int:
    """Return the bytes that a transaction needs in an entry.

    Raises:
        InvalidArgumentError: they are more than a packet of ZooKeeper may have.
    """
    size = sum(event_bytes(part.key, part.value if isinstance(part, Put) else b"") for part in operations)
    if size > most_bytes:
        raise InvalidArgumentError(
            f"a metadata transaction needs {size} bytes in a packet of ZooKeeper, and at most {most_bytes} are left by"
            " max_packet_bytes; split it, or raise jute.maxbuffer of the servers and the option max_packet_bytes"
        )
    return size


def transact(
    machine: StoreMachine, conditions: Sequence[Condition], operations: Sequence[Put | Delete], most_bytes: int
) -> TransactionResult:
    """Apply a transaction, unless a lease would have more keys than can be deleted together.

    Raises:
        LimitExceededError: a lease would have too many keys.
        DanubeError: as :meth:`StoreMachine.transact`.
    """
    for lease in {part.lease for part in operations if isinstance(part, Put) and part.lease is not None}:
        keys = set(_keys_of(machine, lease))
        keys |= {part.key for part in operations if isinstance(part, Put) and part.lease == lease}
        size = sum(event_bytes(key) for key in keys)
        if size > most_bytes:
            raise LimitExceededError(
                f"metadata lease {lease} would have {len(keys)} keys, whose deletion needs {size} bytes in a packet of"
                f" ZooKeeper; at most {most_bytes} are left by max_packet_bytes: use several leases"
            )
    return machine.transact(conditions, operations)


def grant(machine: StoreMachine, ttl_s: float, most_bytes: int) -> LeaseId:
    """Create a lease, unless a snapshot could not hold it.

    Raises:
        LimitExceededError: there are too many.
    """
    most = most_bytes // 2 // LEASE_BYTES
    if machine.table.lease_count >= most:
        raise LimitExceededError(
            f"there are {machine.table.lease_count} metadata leases, as many as a packet of ZooKeeper can hold; revoke"
            " some, or raise jute.maxbuffer of the servers and the option max_packet_bytes"
        )
    return machine.grant(ttl_s)


def end_lease(lease: LeaseId, renewals: int | None = None) -> Request:
    """Return a request to end a lease. Answered with the revision, or None if nothing was attached.

    Args:
        lease: the lease.
        renewals: only if its node has this version; else the answer is None, too, and the lease has not ended.
    """
    return Request(
        lambda machine: machine.revoke(lease),
        size=lambda machine: KIB + sum(map(event_bytes, _keys_of(machine, lease))),
        renewals=renewals,
    )


def _keys_of(machine: StoreMachine, lease: LeaseId) -> list[str]:
    return machine.table.keys_of(lease) if machine.table.has_lease(lease) else []
