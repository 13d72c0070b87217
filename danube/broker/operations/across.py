"""Calls about topics that several brokers own: each owner carries out its part, and the answers are merged.

Such a call goes to any broker. About a plain topic or a partition of another broker, it is passed on to the owner, over
the links between brokers; if that fails, it is refused as :class:`NotOwnerError`, which names the owner. About a
partitioned topic, the owners of all partitions are asked, and the answer is for all of them. A list of topics is
gathered from all brokers.

Messages are msgpack arrays; new fields are added at the end and have a default.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import trio

from danube.broker.delivery.forwarding import SendLetters, publish_letters
from danube.broker.directory.directory import names_behind, not_owner
from danube.broker.operations.merging import MERGED, known_of, merge_topics
from danube.broker.security.caller import JudgedRight, passed_on, received
from danube.cluster.ownership import Elsewhere
from danube.cluster.records import broker_name
from danube.model import api
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    CallRefusedError,
    DanubeError,
    InvalidArgumentError,
    PermissionDeniedError,
    SubscriptionNotFoundError,
    from_wire,
    to_wire,
)
from danube.model.ids import BrokerId
from danube.model.names import split_partition
from danube.model.records import members

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.model.records import TopicRecord
    from danube.peers import Peer, Peers

__all__ = ["CALL_S", "CHANNEL", "Across", "Calls"]

_log = logging.getLogger("danube.broker")

CHANNEL: Final = "operations"
"""The channel of these calls between brokers."""
CALL_S: Final = 30.0
"""How long another broker may take to carry out a call: sealing may take seconds."""
LIST_S: Final = 2.0
"""How long another broker may take to list its topics."""
_LISTED: Final = "topics"
_LETTERS: Final = "letters"
_ROWS: Final = 1_000
"""Most topics of one answer."""

Operation = Callable[[Any], Awaitable[Any]]


class Calls(Protocol):
    """The part of the links between brokers that this needs."""

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """Call the handler of a channel at the broker with an address, and return its answer."""
        ...


class _Part(msgspec.Struct, array_like=True):
    """Asks a broker to carry out a call for some partitions that it owns."""

    path: str
    request: bytes
    topics: list[str]
    """To each of which the request is applied in its turn; for a list: the name after which it begins."""
    rights: list[JudgedRight] | msgspec.UnsetType | None = msgspec.UNSET
    """What the caller may do, as the broker judged that sends this; None: anything; UNSET: that is not said."""
    seen: int = 0
    """The revision of the metadata up to which that broker had seen all changes; see :func:`received`."""


class _Reply(msgspec.Struct, array_like=True):
    """The outcome for one partition."""

    answer: bytes = b""
    status: int = 0
    """0: it was carried out."""
    code: str = ""
    message: str = ""
    details: dict[str, str] = {}


_encode = msgspec.msgpack.encode
_PART: Final = msgspec.msgpack.Decoder(_Part)
_REPLIES: Final = msgspec.msgpack.Decoder(list[_Reply])
_LIST: Final = msgspec.msgpack.Decoder(api.ListTopics)
_OFFSET: Final = msgspec.msgpack.Decoder(int)
_INFO: Final = msgspec.msgpack.Decoder(api.TopicInfo)


class Across:
    """See the module.

    Args:
        directory: of the topics.
        describe: describes a plain topic, or one partition, that this broker serves.

    Attributes:
        first: by path, operations that do what is done once for a whole topic, and return the request for the owners of
            its partitions.
        calls: the links to the other brokers; None: there are none.
        is_serving: returns whether this broker serves its topics. While it recovers them, and once it drains, calls of
            other brokers are refused as retryable, like those at its port.
        security_known: returns the revision of the latest change of access control that this broker knows of; 0: none.
    """

    def __init__(self, directory: Directory, describe: Callable[[str], api.TopicInfo]) -> None:
        self._directory = directory
        self._describe = describe
        self.calls: Calls | None = None
        self.is_serving: Callable[[], bool] = lambda: True
        self.security_known: Callable[[], int] = lambda: 0
        self.first: dict[str, Operation] = {}
        self._operations: dict[str, tuple[Operation, type]] = {
            api.Method.DESCRIBE_TOPIC: (self._describe_one, api.DescribeTopic),
            _LETTERS: (self._publish_letters, SendLetters),
        }
        directory.forward_letters = self._forward_letters

    def begin(self, peers: Peers, is_serving: Callable[[], bool], security_known: Callable[[], int]) -> None:
        """Reach other brokers from now on, and answer them while this one serves."""
        self.calls, self.is_serving, self.security_known = peers, is_serving, security_known
        peers.on_call(CHANNEL, self.answer)

    def spread(self, path: str, operation: Operation, request_type: type) -> Operation:
        """Return an operation that is carried out by the owners of a topic, if the call is such a one.

        What concerns the topic as a whole is done before, by the operation of the path in :attr:`first`.
        """
        if path not in MERGED:
            return operation
        self._operations[path] = operation, request_type
        answer_type, merge = MERGED[path]
        decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(answer_type).decode

        async def handle(request: Any) -> Any:
            record = self._directory.catalogue.find(request.topic)
            if record is None and not self._directory.membership.is_alone and not split_partition(request.topic):
                await self._directory.refresh(request.topic)
                record = self._directory.catalogue.find(request.topic)
            away = self.owner_elsewhere(request.topic, record)
            if away is not None:
                return decode(await self.pass_on(away, path, request))
            if record is None or self._is_here(record):
                return await operation(request)
            first = self.first.get(path)
            if first is not None:
                self._check_owners(request.topic, record)
                request = await first(request)
            replies = await self._gather(path, _encode(request), names_behind(request.topic, record), record)
            answers = [decode(reply) for reply in replies if isinstance(reply, bytes)]
            failures = [reply for reply in replies if isinstance(reply, DanubeError)]
            for failure in failures:
                if not isinstance(failure, SubscriptionNotFoundError) or not answers:
                    raise failure  # partitions without the subscription do not count while others have it
            return merge(request, answers)

        return handle

    def owner_elsewhere(self, topic: str, record: TopicRecord | None) -> Elsewhere | None:
        """Return the other broker that owns a plain topic or a partition, if one does, and runs.

        Args:
            topic: its name.
            record: of the plain or partitioned topic of this name; None: there is none, or it is a partition.
        """
        membership = self._directory.membership
        if membership.is_alone or (record is not None and record.partitions):
            return None
        try:
            _, topic_id = self._directory.catalogue.locate(topic)
        except DanubeError:
            return None  # the operation says why
        owner = membership.owners.owner_of(topic_id)
        return owner if isinstance(owner, Elsewhere) else None

    async def pass_on(self, owner: Elsewhere, path: str, request: Any) -> bytes:
        """Have the owner of a plain topic or a partition carry out a call about it; return the encoded answer.

        Raises:
            PermissionDeniedError: the caller lacks a right that only the owner knows to be needed.
            NotOwnerError: the owner cannot be reached from here, or its version does not know the call.
            DanubeError: what the operation raised there.
        """
        try:
            (reply,) = await self._ask(owner.owner, _Part(path, _encode(request), [request.topic]))
        except PermissionDeniedError:
            raise
        except DanubeError as error:
            raise not_owner(request.topic, owner) from error
        if isinstance(reply, DanubeError):
            raise reply
        return reply

    def _check_owners(self, topic: str, record: TopicRecord) -> None:
        """Raise what says why a partition cannot be reached, if its owner is away."""
        membership = self._directory.membership
        running = {membership.me, *(broker for broker, _ in membership.owners.addresses())}
        for name, topic_id in members(topic, record):
            if membership.owner(topic_id) not in running:
                self._directory.find(name)

    def _is_here(self, record: TopicRecord) -> bool:
        """Whether a call about a topic needs no other broker: it is a plain one, or all partitions are here."""
        return not record.partitions or all(map(self._directory.membership.owns, record.topic_ids))

    async def _gather(
        self, path: str, request: bytes, names: Sequence[str], record: TopicRecord
    ) -> list[bytes | DanubeError]:
        """Have each owner carry out a call for its partitions; return the outcomes in the order of the partitions."""
        membership = self._directory.membership
        groups: dict[BrokerId | None, list[str]] = {}
        for name, topic_id in zip(names, record.topic_ids, strict=True):
            groups.setdefault(membership.owner(topic_id), []).append(name)
        found: dict[str, bytes | DanubeError] = {}

        async def ask(owner: BrokerId | None, group: list[str]) -> None:
            try:
                outcomes = await self._ask(owner, _Part(path, request, group))
            except DanubeError as error:
                found.update(dict.fromkeys(group, error))
            else:
                found.update(zip(group, outcomes, strict=True))

        async with trio.open_nursery() as nursery:
            for owner, group in groups.items():
                nursery.start_soon(ask, owner, group)
        return [found[name] for name in names]

    async def _ask(self, owner: BrokerId | None, part: _Part, timeout_s: float = CALL_S) -> list[bytes | DanubeError]:
        """Have a broker carry out its part, which may be this one.

        Raises:
            DanubeError: it does not answer.
        """
        if owner == self._directory.membership.me:
            return _outcomes(await self._carry_out(part))
        addresses = dict(self._directory.membership.owners.addresses())
        if owner is None or owner not in addresses:
            self._directory.find(part.topics[0])  # raises, and says why
        if owner is None or owner not in addresses or self.calls is None:
            raise CallRefusedError(f"topic {part.topics[0]!r} cannot be reached at the moment; try again")
        call, address = self.calls.call, addresses[owner]

        async def send(rights: Sequence[JudgedRight] | None, seen: int) -> list[bytes | DanubeError]:
            part.rights, part.seen = None if rights is None else list(rights), seen
            payload = await call(address, CHANNEL, _encode(part), timeout_s)
            try:
                outcomes = _outcomes(_REPLIES.decode(payload))
            except UNDECODABLE as error:
                raise InvalidArgumentError(f"broker b{owner} gives an answer that does not decode: {error}") from error
            for outcome in outcomes:
                if isinstance(outcome, PermissionDeniedError):
                    raise outcome
            return outcomes

        return await passed_on(send)

    # --- For other brokers ---

    async def answer(self, _peer: Peer, payload: bytes) -> bytes:
        """Carry out a part of another broker's call, of :data:`CHANNEL`.

        Raises:
            CallRefusedError: this broker starts or ends, or the other one does not know the latest rights.
            InvalidArgumentError: this version does not know it.
        """
        if not self.is_serving():
            raise CallRefusedError(f"broker {self._directory.broker} is starting or shutting down; try again")
        try:
            part = _PART.decode(payload)
        except UNDECODABLE as error:
            raise InvalidArgumentError(f"a call of another broker does not decode: {error}") from error
        with received(part.rights, part.seen, self.security_known()):
            return _encode(await self._carry_out(part))

    async def _carry_out(self, part: _Part) -> list[_Reply]:
        if part.path == _LISTED:
            return [_Reply(_encode(row)) for row in self._rows(_LIST.decode(part.request).namespace, part.topics[0])]
        known = self._operations.get(part.path)
        if known is None:
            raise InvalidArgumentError(f"this version of Danube does not carry out {part.path} for other brokers")
        operation, request_type = known
        try:
            request: Any = msgspec.msgpack.decode(part.request, type=request_type)
        except UNDECODABLE as error:
            raise InvalidArgumentError(f"{part.path}: a call of another broker does not decode: {error}") from error
        replies = []
        for name in part.topics:
            try:
                answer = await operation(msgspec.structs.replace(request, topic=name))
            except DanubeError as error:
                replies.append(_Reply(b"", *to_wire(error)))
            else:
                replies.append(_Reply(_encode(answer)))
        return replies

    async def _describe_one(self, request: api.DescribeTopic) -> api.TopicInfo:
        await trio.lowlevel.checkpoint()
        return self._describe(request.topic)

    # --- Dead letters ---

    async def _publish_letters(self, letters: SendLetters) -> int:
        return await publish_letters(self._directory.find(letters.topic), letters)

    async def _forward_letters(self, letters: SendLetters) -> int:
        """Have the owner of a topic publish dead letters; return the offset of the first one."""
        _, topic_id = self._directory.catalogue.locate(letters.topic)
        owner = self._directory.membership.owner(topic_id)
        (reply,) = await self._ask(owner, _Part(_LETTERS, _encode(letters), [letters.topic]))
        if isinstance(reply, DanubeError):
            raise reply
        return _OFFSET.decode(reply)

    # --- Lists ---

    def _rows(self, namespace: str, after: str) -> list[api.TopicInfo]:
        """Describe the topics and partitions that this broker serves, in the order of their names."""
        prefix = f"/{namespace}/" if namespace else "/"
        names = sorted(
            topic.name for topic in self._directory.topics() if topic.name > after and topic.name.startswith(prefix)
        )
        return [self._describe(name) for name in names[:_ROWS]]

    # --- Topics ---

    async def describe(self, name: str, record: TopicRecord) -> api.TopicInfo:
        """Describe a partitioned topic with several owners.

        Raises:
            DanubeError: an owner is away, or does not answer.
        """
        replies = await self._gather(
            api.Method.DESCRIBE_TOPIC, _encode(api.DescribeTopic(name)), names_behind(name, record), record
        )
        for reply in replies:
            if isinstance(reply, DanubeError):
                raise reply
        return merge_topics(name, record, [_INFO.decode(reply) for reply in replies if isinstance(reply, bytes)])

    async def describe_elsewhere(self, request: api.DescribeTopic, owner: Elsewhere) -> api.TopicInfo:
        """Describe a plain topic or a partition of another broker; raise as :meth:`pass_on`."""
        return _INFO.decode(await self.pass_on(owner, api.Method.DESCRIBE_TOPIC, request))

    async def list_topics(self, request: api.ListTopics) -> api.TopicList:
        """List topics of all brokers. Those of a broker that does not answer are shown as the catalogue knows them.

        Such topics, and those with such partitions, name it as ``silent``.
        """
        directory = self._directory
        rows: dict[str, api.TopicInfo] = {row.topic: row for row in self._rows_of_all_here(request.namespace)}

        async def ask(broker: BrokerId) -> None:
            after = ""
            try:
                while True:
                    part = _Part(_LISTED, _encode(request), [after])
                    found = await self._ask(broker, part, LIST_S)
                    infos = [_INFO.decode(each) for each in found if isinstance(each, bytes)]
                    rows.update((info.topic, info) for info in infos)
                    if len(infos) < _ROWS:
                        return
                    after = infos[-1].topic
            except DanubeError as error:
                _log.info("broker b%d does not list its topics: %s", broker, error)

        membership = directory.membership
        running = {broker for broker, _ in membership.owners.addresses()}
        async with trio.open_nursery() as nursery:
            for broker in running - {membership.me}:
                nursery.start_soon(ask, broker)
        topics = []
        for name, record in directory.catalogue.topics(request.namespace):
            named = members(name, record)
            if record.partitions:
                found = merge_topics(name, record, [rows[each] for each, _ in named if each in rows])
            else:
                found = rows[name] if name in rows else known_of(name, record)
            owners = {membership.owner(topic_id) for each, topic_id in named if each not in rows}
            found.silent = [broker_name(owner) for owner in sorted(owner for owner in owners if owner is not None)]
            topics.append(found)
        return api.TopicList(topics)

    def _rows_of_all_here(self, namespace: str) -> list[api.TopicInfo]:
        found: list[api.TopicInfo] = []
        after = ""
        while rows := self._rows(namespace, after):
            found += rows
            after = rows[-1].topic
        return found


def _outcomes(replies: Sequence[_Reply]) -> list[bytes | DanubeError]:
    return [
        reply.answer if not reply.status else from_wire(reply.status, reply.code, reply.message, reply.details)
        for reply in replies
    ]
