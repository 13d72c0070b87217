"""The metadata store in etcd.

etcd's own concepts are those of the contract: its revision is the store's, ``mod_revision`` is compared, its leases and
its history are used as they are. So several brokers, and other programs, can use one etcd at the same time; revisions
that others use up are missing between those of the store.

No call is repeated: a change whose answer is lost raises :class:`UnavailableError` and may have been applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Self

import trio

from danube.metadata import (
    Capabilities,
    Condition,
    Delete,
    KeyValue,
    LeaseId,
    MetadataStore,
    Put,
    RequestChecks,
    TransactionResult,
    Watch,
    lease_ended,
)
from danube.model.cluster_api import MetadataStanding
from danube.model.errors import (
    ClosedError,
    FailedPreconditionError,
    LimitExceededError,
    NotFoundError,
    UnavailableError,
    WatchCompactedError,
)
from danube.model.limits import KIB, Limits
from danube_metadata_etcd._errors import FUTURE
from danube_metadata_etcd._keepalive import KeepAlives
from danube_metadata_etcd._link import Link
from danube_metadata_etcd._messages import KeySpace, compacted, transaction, transaction_result
from danube_metadata_etcd._watch import EtcdWatch
from danube_metadata_etcd.proto import etcd_pb2 as pb

__all__ = ["EtcdStore"]

_RANGE: Final = "/etcdserverpb.KV/Range"
_PUT: Final = "/etcdserverpb.KV/Put"
_DELETE: Final = "/etcdserverpb.KV/DeleteRange"
_TXN: Final = "/etcdserverpb.KV/Txn"
_GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
_REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"
_TIME_TO_LIVE: Final = "/etcdserverpb.Lease/LeaseTimeToLive"

_FIRST_PAGE: Final = 128
"""Keys in the first page of a list: 96 MiB if all values are of the largest size."""
_MOST_PER_PAGE: Final = 8192
_PAGE_BYTES: Final = 512 * KIB
"""Bytes of a page below which the next one has twice as many keys."""
_LARGE_PAGE_BYTES: Final = 4 * _PAGE_BYTES
"""Bytes of a page above which the next one has half as many keys."""
_LIST_ATTEMPTS: Final = 3
"""Attempts to list before its snapshot is compacted away."""
_MAX_LEASE: Final = 2**63 - 1


class EtcdStore(MetadataStore):
    """A metadata store below a prefix of etcd's keys.

    Entering it connects, and reads once, so that wrong credentials are reported at a start.

    Args:
        link: to etcd; this store closes it.
        prefix: of the keys in etcd: empty, or a valid key such as ``/danube``.
        limits: of requests.
    """

    def __init__(self, link: Link, prefix: str, *, limits: Limits | None = None) -> None:
        self.link = link
        self.keys = KeySpace(prefix)
        self._checks = RequestChecks(limits if limits is not None else Limits())
        self._opened = False
        self._closed = False
        self._keep_alives: KeepAlives
        self._nursery: trio.Nursery | None = None
        self._nursery_manager: AbstractAsyncContextManager[trio.Nursery] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """All guarantees of the contract."""
        return Capabilities(durable=True, linearizable=True, watch_replay=True, leases=True)

    def standing(self) -> MetadataStanding:
        """The metadata are kept by etcd, whose own tools tell about its members."""
        return MetadataStanding(engine="etcd", kept_by=f"etcd at {', '.join(map(str, self.link.endpoints))}")

    # Life

    def check_open(self) -> None:
        """Raise an error unless the store is open."""
        if self._closed:
            raise ClosedError("the metadata store is closed; open it again")
        if not self._opened:
            raise FailedPreconditionError("the metadata store is not open; use it inside `async with`")

    async def __aenter__(self) -> Self:
        if self._opened or self._closed:
            raise FailedPreconditionError("a metadata store can be entered only once; create a new one")
        manager = trio.open_nursery()
        nursery = await manager.__aenter__()
        try:
            nursery.start_soon(self.link.run, name="etcd connections")
            self._keep_alives = KeepAlives(self.link, nursery)
            await self.check_position("/", None)
        except BaseException:
            nursery.cancel_scope.cancel()
            await manager.__aexit__(None, None, None)
            raise
        self._nursery, self._nursery_manager = nursery, manager
        self._opened = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
        if self._nursery is not None and self._nursery_manager is not None:
            self._nursery.cancel_scope.cancel()
            # The body's exception must not pass through the nursery, which would wrap it in a group.
            await self._nursery_manager.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """See :meth:`MetadataStore.aclose`. Leases are not revoked."""
        self._closed = True
        self.link.close()
        await trio.lowlevel.cancel_shielded_checkpoint()

    # Keys

    async def get(self, key: str) -> KeyValue | None:
        """See :meth:`MetadataStore.get`."""
        self.check_open()
        self._checks.check_key(key)
        answer = await self.link.call(
            _RANGE, pb.RangeRequest(key=self.keys.stored(key)), pb.RangeResponse, f"get of {key!r}"
        )
        return self.keys.item(answer.kvs[0]) if answer.kvs else None

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        """See :meth:`MetadataStore.list`. Read in pages, all of the revision of the first one."""
        self.check_open()
        self._checks.check_prefix(prefix)
        for _ in range(_LIST_ATTEMPTS):
            try:
                return await self._list(prefix)
            except WatchCompactedError:
                continue
        raise UnavailableError(
            f"etcd: list of {prefix!r}: etcd was compacted {_LIST_ATTEMPTS} times while it was read; keep more of its"
            " history (--auto-compaction-retention), or try again"
        )

    async def _list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        what = f"list of {prefix!r}"
        start, end = self.keys.below(prefix)
        items: list[KeyValue] = []
        revision = 0
        limit = _FIRST_PAGE
        while True:
            page = pb.RangeRequest(key=start, range_end=end, limit=limit, revision=revision)
            try:
                if revision or prefix.endswith("/"):
                    answer = await self.link.call(_RANGE, page, pb.RangeResponse, what)
                    revision = revision or answer.header.revision
                else:
                    request = pb.TxnRequest()
                    request.success.add().request_range.MergeFrom(pb.RangeRequest(key=self.keys.stored(prefix)))
                    request.success.add().request_range.MergeFrom(page)
                    both = await self.link.call(_TXN, request, pb.TxnResponse, what)
                    own, answer = (part.response_range for part in both.responses)
                    items += [self.keys.item(found) for found in own.kvs]
                    revision = both.header.revision
            except LimitExceededError:
                if limit == 1:
                    raise
                limit = max(1, limit // 8)
                continue
            items += [self.keys.item(found) for found in answer.kvs]
            if not answer.more:
                return items, revision
            start = answer.kvs[-1].key + b"\0"
            size = sum(len(found.value) for found in answer.kvs)
            if size < _PAGE_BYTES:
                limit = min(2 * limit, _MOST_PER_PAGE)
            elif size > _LARGE_PAGE_BYTES:
                limit = max(1, limit // 2)

    async def put(
        self, key: str, value: bytes, *, expected_revision: int | None = None, lease: LeaseId | None = None
    ) -> int:
        """See :meth:`MetadataStore.put`."""
        operation = Put(key, value, lease)
        if expected_revision is not None:
            return (await self.transact((Condition(key, expected_revision),), (operation,))).revision
        self.check_open()
        self._checks.check_transaction((), (operation,))
        _check_leases((operation,))
        request = pb.PutRequest(key=self.keys.stored(key), value=value, lease=lease or 0)
        try:
            answer = await self.link.call(_PUT, request, pb.PutResponse, f"put of {key!r}", changes=True)
        except NotFoundError as error:
            raise _ended((operation,)) from error
        return answer.header.revision

    async def delete(self, key: str, *, expected_revision: int | None = None) -> int | None:
        """See :meth:`MetadataStore.delete`."""
        if expected_revision is not None:
            result = await self.transact((Condition(key, expected_revision),), (Delete(key),))
            return result.revision if result.replaced[0] else None
        self.check_open()
        self._checks.check_key(key)
        request = pb.DeleteRangeRequest(key=self.keys.stored(key))
        answer = await self.link.call(_DELETE, request, pb.DeleteRangeResponse, f"delete of {key!r}", changes=True)
        return answer.header.revision if answer.deleted else None

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        """See :meth:`MetadataStore.transact`."""
        self.check_open()
        conditions, operations = tuple(conditions), tuple(operations)  # the caller may change its lists during the wait
        self._checks.check_transaction(conditions, operations)
        _check_leases(operations)
        request = transaction(self.keys, conditions, operations)
        try:
            answer = await self.link.call(_TXN, request, pb.TxnResponse, "transaction", changes=bool(operations))
        except NotFoundError as error:
            raise _ended(operations) from error
        return transaction_result(answer, conditions, operations)

    # Leases

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        """See :meth:`MetadataStore.grant_lease`. Whole seconds, rounded up; etcd has a minimum, usually 2 s."""
        self.check_open()
        self._checks.check_ttl(ttl_s)
        request = pb.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        answer = await self.link.call(_GRANT, request, pb.LeaseGrantResponse, "grant of a lease", changes=True)
        return LeaseId(answer.ID)

    async def keep_alive(self, lease: LeaseId) -> None:
        """See :meth:`MetadataStore.keep_alive`."""
        self.check_open()
        if not 0 < lease <= _MAX_LEASE:
            raise lease_ended(lease)
        await self._keep_alives.renew(lease)

    async def revoke(self, lease: LeaseId) -> int | None:
        """See :meth:`MetadataStore.revoke`.

        etcd does not tell whether it has deleted keys, so they are queried first: the answer may be wrong if another
        client puts the first key, or deletes the last one, at the same time.
        """
        self.check_open()
        if not 0 < lease <= _MAX_LEASE:
            return None
        what = f"revocation of lease {lease}"
        found = await self.link.call(
            _TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=lease, keys=True), pb.LeaseTimeToLiveResponse, what
        )
        try:
            answer = await self.link.call(
                _REVOKE, pb.LeaseRevokeRequest(ID=lease), pb.LeaseRevokeResponse, what, changes=True
            )
        except NotFoundError:
            return None
        return answer.header.revision if found.keys else None

    # Watches

    def watch(self, prefix: str, start_revision: int | None = None) -> Watch:
        """See :meth:`MetadataStore.watch`."""
        self._checks.check_prefix(prefix)
        self._checks.check_start(start_revision)
        return EtcdWatch(self, prefix, start_revision)

    async def check_position(self, prefix: str, position: int | None) -> int:
        """Return a position in the history, after a check that everything after it is there.

        Args:
            prefix: what is to be watched.
            position: the last revision before the watch; None for the present one.

        Raises:
            WatchCompactedError: the next revision is not in the history, or not the next one of this history.
            DanubeError: etcd cannot be asked.
        """
        # Reading at a revision fails exactly if the next one is compacted, or in the future. Any key will do.
        key, end = self.keys.below(prefix)
        request = pb.RangeRequest(key=key, range_end=end, limit=1, keys_only=True, revision=max(position or 1, 1))
        if position is None:
            request.revision = 0
        try:
            answer = await self.link.call(_RANGE, request, pb.RangeResponse, f"watch of {prefix!r}")
        except WatchCompactedError as error:
            why = "the revision comes from another history" if FUTURE in error.message else "it was compacted"
            raise compacted(prefix, (position or 0) + 1, why) from error
        return answer.header.revision if position is None else position


def _check_leases(operations: Sequence[Put | Delete]) -> None:
    for operation in operations:
        if isinstance(operation, Put) and operation.lease is not None and not 0 < operation.lease <= _MAX_LEASE:
            raise lease_ended(operation.lease)


def _ended(operations: Sequence[Put | Delete]) -> NotFoundError:
    """Return the error for a change that etcd has refused because of a lease; etcd does not say which."""
    leases = sorted({part.lease for part in operations if isinstance(part, Put) and part.lease is not None})
    if len(leases) == 1:
        return lease_ended(leases[0])
    return NotFoundError(f"one of the metadata leases {', '.join(map(str, leases))} has ended; grant a new one")
