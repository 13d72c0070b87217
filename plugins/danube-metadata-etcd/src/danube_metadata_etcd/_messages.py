"""Translates between the metadata contract and etcd's messages. Pure: no I/O, no clock.

Keys are stored below the URL's prefix: ``/topics/a`` of ``etcd://host/danube`` is etcd's key ``/danube/topics/a``. A
range of etcd is a range of bytes, and a prefix of the contract covers whole segments::

    prefix "/a"   covers "/a" and ["/a/", "/a0")     listed: two ranges of one transaction, so one revision
                                                     watched: ["/a", "/a0"), events of "/a-b" and its like are dropped
    prefix "/a/"  covers ["/a/", "/a0")
    prefix "/"    covers ["/", "0")
"""

from __future__ import annotations

from collections.abc import Sequence

from danube.metadata import (
    Condition,
    Delete,
    DeleteEvent,
    Event,
    EventBatch,
    KeyValue,
    LeaseId,
    Put,
    PutEvent,
    TransactionResult,
    conflict,
    covers,
)
from danube.model.errors import (
    MetadataConflictError,
    PermissionDeniedError,
    ProtocolError,
    UnavailableError,
    WatchCompactedError,
)
from danube_metadata_etcd.proto import etcd_pb2 as pb

__all__ = ["KeySpace", "WatchReader", "compacted", "transaction", "transaction_result"]


class KeySpace:
    """Keys of the store and of etcd.

    Args:
        prefix: of etcd's keys; empty, or a valid key such as ``/danube``.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.encode()

    def stored(self, key: str) -> bytes:
        """Return etcd's key."""
        return self.prefix + key.encode()

    def below(self, prefix: str) -> tuple[bytes, bytes]:
        """Return etcd's half-open range of the keys below a prefix, without the prefix itself."""
        start = self.stored(prefix if prefix.endswith("/") else prefix + "/")
        return start, start[:-1] + b"0"  # "0" is the character after "/"

    def watched(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the smallest of etcd's ranges with all keys that a prefix covers."""
        return self.stored(prefix), self.below(prefix)[1]

    def key(self, stored: bytes) -> str:
        """Return the key of etcd's key."""
        try:
            return stored[len(self.prefix) :].decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(
                f"etcd has the key {stored!r}, which is not Danube's: another program writes below the prefix"
                f" {self.prefix.decode()!r}; give Danube a prefix of its own"
            ) from error

    def item(self, found: pb.KeyValue) -> KeyValue:
        """Return the item of etcd's."""
        return KeyValue(
            self.key(found.key),
            found.value,
            found.create_revision,
            found.mod_revision,
            found.version,
            LeaseId(found.lease) if found.lease else None,
        )


def transaction(keys: KeySpace, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> pb.TxnRequest:
    """Return the request of a transaction that passed the checks.

    If a condition does not hold, its answer has the revisions of all keys with a condition, as of the comparison. The
    item that an operation replaces is requested only if no condition tells its revision.
    """
    request = pb.TxnRequest()
    known = set()
    for condition in conditions:
        key = keys.stored(condition.key)
        known.add(condition.key)
        # A missing key compares as revision 0.
        request.compare.add(target=pb.Compare.MOD, key=key, mod_revision=condition.mod_revision)
        request.failure.add().request_range.MergeFrom(pb.RangeRequest(key=key, keys_only=True))
    for operation in operations:
        added = request.success.add()
        if isinstance(operation, Put):
            put = added.request_put
            put.key, put.value, put.lease = keys.stored(operation.key), operation.value, operation.lease or 0
            put.prev_kv = operation.key not in known
        else:
            delete = added.request_delete_range
            delete.key, delete.prev_kv = keys.stored(operation.key), operation.key not in known
    return request


def transaction_result(
    answer: pb.TxnResponse, conditions: Sequence[Condition], operations: Sequence[Put | Delete]
) -> TransactionResult:
    """Return the result of an answered transaction.

    Raises:
        MetadataConflictError: a condition did not hold; it names the first one.
        ProtocolError: the answer does not belong to the transaction.
    """
    if len(answer.responses) != len(operations if answer.succeeded else conditions):
        raise ProtocolError(f"etcd has answered {len(answer.responses)} parts of a transaction that has others")
    if not answer.succeeded:
        for condition, part in zip(conditions, answer.responses, strict=True):
            found = part.response_range.kvs
            present = found[0].mod_revision if found else 0
            if present != condition.mod_revision:
                raise MetadataConflictError(conflict(condition.key, condition.mod_revision, present))
        raise ProtocolError("etcd has refused a transaction although all of its conditions hold")
    known = {condition.key: condition.mod_revision for condition in conditions}
    replaced = []
    for operation, part in zip(operations, answer.responses, strict=True):
        if operation.key in known:
            replaced.append(known[operation.key])
        elif isinstance(operation, Put):
            replaced.append(part.response_put.prev_kv.mod_revision)  # 0 without one
        else:
            deleted = part.response_delete_range.prev_kvs
            replaced.append(deleted[0].mod_revision if deleted else 0)
    return TransactionResult(answer.header.revision, tuple(replaced))


def compacted(prefix: str, revision: int, why: str) -> WatchCompactedError:
    """Return the error for a watch whose next revision is not in etcd's history."""
    return WatchCompactedError(
        f"the metadata watch of {prefix!r} needs revision {revision}, which etcd does not have ({why});"
        " list again and watch from the revision after the list's"
    )


class WatchReader:
    """Makes event batches of the messages of a watch; a position in the history of one prefix.

    etcd sends the events in the order of their revisions, and a revision in one message, or in several that are marked
    as fragments. So the last revision of a fragment may continue in the next message; all others are complete.

    Args:
        keys: names of keys.
        prefix: what is watched.
        position: the last revision before the watch.
    """

    def __init__(self, keys: KeySpace, prefix: str, position: int) -> None:
        self.position = position
        """Last revision of which every event has been returned."""
        self._keys = keys
        self._prefix = prefix
        self._open_revision = 0
        self._open: list[Event] = []

    def request(self) -> pb.WatchRequest:
        """Begin at the position: return the first message of a watch, and forget an incomplete revision."""
        self._open_revision = 0
        self._open = []
        start, end = self._keys.watched(self._prefix)
        return pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=start,
                range_end=end,
                start_revision=self.position + 1,
                prev_kv=True,
                fragment=True,
                progress_notify=True,
            )
        )

    def read(self, answer: pb.WatchResponse) -> list[EventBatch]:
        """Return the batches that a message completes.

        Raises:
            WatchCompactedError: the position has fallen out of the history.
            PermissionDeniedError: the user may not read the prefix.
            UnavailableError: etcd has ended the watch; begin again at the position.
        """
        if answer.canceled:
            if answer.compact_revision:
                raise compacted(
                    self._prefix, self.position + 1, f"it was compacted at revision {answer.compact_revision}"
                )
            reason = answer.cancel_reason or "without a reason"
            kind = PermissionDeniedError if "permission denied" in reason else UnavailableError
            raise kind(f"etcd has ended the metadata watch of {self._prefix!r}: {reason}")
        batches: list[EventBatch] = []
        begun = bool(self._open_revision)
        for event in answer.events:
            revision = event.kv.mod_revision
            if revision <= self.position:
                continue
            if revision != self._open_revision:
                self._complete(batches)
                self._open_revision = revision
            key = self._keys.key(event.kv.key)
            if covers(self._prefix, key):
                self._open.append(self._event(key, event))
        if not answer.fragment:
            self._complete(batches)
            if not (answer.events or answer.created or begun):
                # A progress notification: sent to a watch that has everything up to this revision. Revisions in the
                # headers of other messages may be ahead of events that are still to come.
                self.position = max(self.position, answer.header.revision)
        return batches

    def _complete(self, batches: list[EventBatch]) -> None:
        if self._open_revision:
            if self._open:
                batches.append(EventBatch(self._open_revision, tuple(self._open)))
            self.position = self._open_revision
            self._open_revision = 0
            self._open = []

    def _event(self, key: str, event: pb.Event) -> Event:
        revision = event.kv.mod_revision
        previous = event.prev_kv.mod_revision  # 0 without one
        deleted = event.type == pb.Event.DELETE
        if not previous and (deleted or event.kv.version > 1):
            # etcd looks the previous item up while it sends the event, and leaves it out if it has been compacted.
            raise compacted(self._prefix, revision, f"what it replaced at {key!r} was compacted")
        if deleted:
            return DeleteEvent(key, revision, previous)
        return PutEvent(self._keys.item(event.kv), previous)
