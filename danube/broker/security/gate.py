"""The gate: each method of both ports is served through it when security is on.

::

    headers ──▶ who calls? ──▶ request decoded ──▶ row of the path ──▶ operation ──▶ list filtered ──▶ answer
                 │ UNAUTHENTICATED                   │ PERMISSION_DENIED, NOT_FOUND
                 ▼ after a pause if throttled        ▼

A caller that uses more than its quota gets RESOURCE_EXHAUSTED, before its call is judged.

A method cannot be served without a row, nor without its list being filtered: :meth:`Gate.guarded` raises. Of a stream
the first message is judged, before its handler sees it; it must arrive within ``first_message_s``. A stream is watched
from the proof of its caller on: it ends with that proof, and with the rights that its first message needed.

The links between brokers are not judged by roles: their hello proves that the peer has the cluster's secret, and
without a secret there are none. If the port asks for certificates and knows the authority of the brokers', a link needs
the certificate of a broker as well.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import trio

from danube.broker.security.auditing import Audit, proof_of
from danube.broker.security.caller import calling
from danube.broker.security.lists import LISTS, filtered
from danube.broker.security.metered import MeteredStream, until_paid
from danube.broker.security.replica import Replica
from danube.metadata import MetadataStore
from danube.model import api
from danube.model.addresses import is_loopback
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    CallRefusedError,
    ConfigurationError,
    DanubeError,
    DeadlineExceededError,
    InvalidArgumentError,
    PeerBlockedError,
    PeerRefusedError,
    PermissionDeniedError,
)
from danube.model.query_api import QueryMethod
from danube.model.stage_api import StageMethod
from danube.model.tls import PeerCertificate
from danube.security.audit import is_change, is_opening
from danube.security.certificates import CertificateRules, certificate_identity
from danube.security.claims import Identity
from danube.security.endings import CHECK_S, Need, error_of
from danube.security.evaluate import Rights
from danube.security.flaws import BadProofError, UncheckedProofError
from danube.security.guard import Guard
from danube.security.permissions import Permission
from danube.security.quotas import Flow, PrincipalUsage
from danube.security.resources import Book, resources_of
from danube.security.rights import RULES, Access, Condition, Named, Port, Refusal, Rule, check_served
from danube.security.roles import PrincipalType
from danube.security.scopes import Resource, ScopeKind, scope_of
from danube.security.verdicts import UnknownConsumerError, Verdict, judge_condition
from danube.wire import Context, Message, Method, Server, ServerStream, Service, UnaryCall

__all__ = ["Gate", "Links"]

_CERTIFICATES: Final = 1_000
"""Client certificates whose identity is remembered."""
_CONNECTIONS: Final = 4_096
"""Peers of connections whose place is remembered."""
UNKNOWN_PAUSE_S: Final = 0.25
"""Delay before a consumer is called unknown: the official Python client tries again without a pause."""
_WAITS: Final = frozenset({QueryMethod.STATE})
"""Unary calls that wait for news, and are watched as streams are."""
_SENDS: Final = "/danube.ProducerService/SendMessage"
_PUBLISHES: Final = frozenset({api.Method.PUBLISH, StageMethod.STAGE})
_CONSUMES: Final = frozenset({api.Method.CONSUME, "/danube.ConsumerService/ReceiveMessages"})
"""Streams of messages, which count against the quotas of bytes."""
_BY_NUMBER: Final = (Named.CLUSTER, Named.ANYTHING)
"""What requirements name without fields of the request."""


class Links(Enum):
    """What the link of another broker needs."""

    NONE = "there are none"
    SECRET = "the cluster secret"
    CERTIFICATE = "the cluster secret and the certificate of a broker"


class _Caller:
    """The caller of one call that was allowed; a :class:`danube.broker.security.caller.Caller`."""

    __slots__ = ("_audit", "_context", "_identity", "_rights", "_rule", "principal", "seen")

    def __init__(
        self, identity: Identity, rule: Rule, rights: Rights, audit: Audit, context: Context, seen: int
    ) -> None:
        self.principal = identity.principal
        self.seen = seen
        self._identity = identity
        self._rule = rule
        self._rights = rights
        self._audit = audit
        self._context = context

    @property
    def proof(self) -> str:
        """Kind and id of its credential."""
        return proof_of(self._identity)

    @property
    def proof_ends_s(self) -> float:
        """When its credential ends, by the wall clock; infinite: never."""
        return self._identity.expires_at_s

    def note_session(self, outcome: str) -> None:
        """Enter in the audit log that a session of a browser has begun or ended."""
        self._audit.session(self._context, self._identity, outcome)

    def require_creation(self, topic: str) -> None:
        """Judge that the call creates a topic, beside what it is made for."""
        resource = Resource.topic(topic)
        self._require(Condition.CREATES_TOPIC, resource)
        self._audit.changed(self._context, self._identity, str(scope_of(resource)), None, "created on demand")

    def require_dead_letters(self, topic: str) -> None:
        """Judge that the call decides that dead letters go to a topic."""
        self._require(Condition.SETS_DEAD_LETTERS, Resource.topic(topic))

    def require_schema(self, subject: str) -> None:
        """Judge that the call gives a topic a subject of the schema registry."""
        self._require(Condition.NAMES_SCHEMA, Resource.schema(subject))

    def may_describe(self, topic: str) -> bool:
        """Whether the caller may see the settings of a topic."""
        return self._rights.allows(self.principal, Permission.DESCRIBE, Resource.topic(topic))

    def _require(self, condition: Condition, resource: Resource) -> None:
        if judge_condition(self._rule, condition, self.principal, self._rights, resource) is not Verdict.ALLOWED:
            needs = (each.permission.title for each in self._rule.requirements if each.condition is condition)
            why = f"when it {condition.value}: that requires {' and '.join(needs)} on {resource}"
            self._audit.denied(self._context, self._identity, str(scope_of(resource)), why)
            raise PermissionDeniedError(f"{self.principal} may not call {self._rule.path} {why}")

    def may_produce(self, topic: str) -> bool:
        """Whether the caller may produce to a topic."""
        return self._rights.allows(self.principal, Permission.PRODUCE, Resource.topic(topic))

    def may_consume(self, topic: str, subscription: str) -> bool:
        """Whether the caller may consume from a subscription."""
        return self._rights.allows(self.principal, Permission.CONSUME, Resource.subscription(topic, subscription))

    def may_read_schema(self, subject: str) -> bool:
        """Whether the caller may read the schemas of a subject."""
        return self._rights.allows(self.principal, Permission.READ_SCHEMA, Resource.schema(subject))

    def may_see(self, permission: Permission, resource: Resource) -> bool:
        """Whether a list contains a resource for the caller: of namespaces, those in which it may see something."""
        rights, principal = self._rights, self.principal
        return rights.allows(principal, permission, resource) or (
            resource.kind is ScopeKind.NAMESPACE and rights.touches(principal, permission, resource)
        )


class _Ending(Protocol):
    """A stream, or something else that lasts."""

    def abandon(self, failure: DanubeError | None, /) -> None:
        """End it with an error."""
        ...


class _Waiting:
    """A unary call that waits for news."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.failure: DanubeError | None = None

    def abandon(self, failure: DanubeError | None) -> None:
        """Cancel it; it fails with this error."""
        self.failure = failure
        self.scope.cancel()


class _Open(NamedTuple):
    stream: _Ending
    needs: tuple[Need, ...]


class Gate:
    """The gate of one broker.

    Args:
        guard: decides.
        book: of the objects that requests name by numbers.
        wall_s: returns the Unix time in seconds.
        names: which names in client certificates count.
        links: what the links of other brokers need.
        audit: notes what is refused, denied, changed and opened.
    """

    def __init__(
        self,
        guard: Guard,
        book: Book,
        wall_s: Callable[[], float],
        names: CertificateRules,
        links: Links,
        audit: Audit,
    ) -> None:
        self._guard = guard
        self._book = book
        self._wall_s = wall_s
        self._names = names
        self._links = links
        self.audit = audit
        """What has happened at this gate."""
        self._usage = PrincipalUsage(guard.book.quotas)
        self._certified: Callable[[PeerCertificate], Identity] = lru_cache(_CERTIFICATES)(self._of_certificate)
        self._replica: Replica | None = None
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._nursery: trio.Nursery | None = None

    # --- Methods

    def guarded(self, service: Service) -> Service:
        """Return the methods of a service, each judged before it is served.

        Raises:
            ConfigurationError: a path has no row, or one that cannot be judged.
        """
        return {path: self._guarded(method) for path, method in service.items()}

    def _guarded(self, method: Method) -> Method:
        rule = RULES.get(method.path)
        if rule is None:
            raise ConfigurationError(
                f"path {method.path} has no row in the table of rights (danube/security/rights.py); add it"
            )
        if rule.access is Access.PUBLIC:
            return method
        if any(each.permission is Permission.BROKER_INTERNAL for each in rule.requirements):
            return self._guarded_link(method)
        if rule.refusal is Refusal.FILTERED and (rule.path not in LISTS or method.handler is None):
            raise ConfigurationError(
                f"the list of {rule.path} is not filtered; add it to danube/broker/security/lists.py"
            )
        if method.start is not None:
            return msgspec.structs.replace(method, start=self._guarded_start(method, rule))
        if method.kind == "unary":
            return msgspec.structs.replace(method, handler=self._guarded_unary(method, rule))
        reads = any(each.named not in _BY_NUMBER for each in rule.requirements)
        if reads and method.opening is None:
            raise ConfigurationError(f"the first message of {rule.path} cannot be judged: its method has no 'opening'")
        return msgspec.structs.replace(method, handler=self._guarded_stream(method, rule))

    def _guarded_unary(self, method: Method, rule: Rule) -> Callable[[Any, Context], Any]:
        handle: Any = method.handler
        changes = is_change(rule)

        async def handler(request: Any, context: Context) -> Any:
            identity = await self._identified(context)
            self._usage.call(identity.principal, trio.current_time())
            caller = self._judged(rule, identity, request, context)
            with calling(caller):
                if rule.path in _WAITS:
                    needs = self._needs(rule, request)
                    return await self._waited(handle(request, context), identity, needs)
                if changes:
                    return await self._audited(handle(request, context), rule, identity, request, context)
                answer = await handle(request, context)
            if rule.refusal is not Refusal.FILTERED:
                return answer
            permission = rule.requirements[0].permission
            return filtered(rule.path, request, answer, lambda resource: caller.may_see(permission, resource))

        return handler

    def _guarded_start(self, method: Method, rule: Rule) -> Callable[[Any, UnaryCall], None]:
        serve: Any = method.start

        def start(request: Any, call: UnaryCall) -> None:
            try:
                identity = self._identify(call.context)
            except UncheckedProofError as error:
                if self._nursery is None:
                    raise
                self._nursery.start_soon(self._fail_later, call, error)
                return
            now = trio.current_time()
            self._usage.call(identity.principal, now)
            caller = self._judged(rule, identity, request, call.context)
            if rule.path == _SENDS and self._nursery is not None:
                flow = self._usage.publishing(identity.principal)
                if flow.pause_s(now) > 0:
                    self._nursery.start_soon(self._serve_later, serve, request, call, caller, flow)
                    return
                flow.take(len(request.payload), now)
            with calling(caller):
                serve(request, call)

        return start

    async def _serve_later(self, serve: Any, request: Any, call: UnaryCall, caller: _Caller, flow: Flow) -> None:
        """Serve a message of an official client when its principal may publish again."""
        await until_paid(flow)
        if call.gone:
            call.drop(None)
            return
        flow.take(len(request.payload), trio.current_time())
        try:
            with calling(caller):
                serve(request, call)
        except Exception as error:  # noqa: BLE001 - as of one that is served at once
            call.fail(error)

    def _guarded_stream(self, method: Method, rule: Rule) -> Callable[[ServerStream, Context], Any]:
        handle: Any = method.handler
        opening = method.opening

        async def handler(stream: ServerStream, context: Context) -> None:
            identity = await self._identified(context)
            # Watched from the proof on: it may end while the stream waits for its first message.
            with self._usage.stream(identity.principal), self._watched(stream, identity) as number:
                request = None
                if opening is not None:
                    first = await self._first(stream, rule.path)
                    request = _decoded(opening, first.data, stream, rule.path)
                try:
                    caller = self._judged(rule, identity, request, context)
                except UnknownConsumerError:
                    await trio.sleep(UNKNOWN_PAUSE_S)
                    raise
                self._watch_also(number, self._needs(rule, request))
                with calling(caller), self._metered(stream, rule, identity) as metered:
                    await handle(metered, context)

        return handler

    @contextmanager
    def _metered(self, stream: ServerStream, rule: Rule, identity: Identity) -> Iterator[ServerStream]:
        """Count the bytes of a stream that publishes or consumes."""
        incoming = self._usage.publishing(identity.principal) if rule.path in _PUBLISHES else None
        outgoing = self._usage.consuming(identity.principal) if rule.path in _CONSUMES else None
        if self._nursery is None or (incoming is None and outgoing is None):
            yield stream
            return
        metered = MeteredStream(stream, incoming, outgoing, self._nursery)
        try:
            yield metered
        finally:
            metered.close()

    async def _first(self, stream: ServerStream, path: str) -> Message:
        """Return the first message of a stream, which its handler receives again.

        Raises:
            InvalidArgumentError: the stream has ended without one.
            DeadlineExceededError: none has arrived within ``first_message_s``.
        """
        limit_s = self._guard.limits.first_message_s
        with trio.move_on_after(limit_s) as waiting:
            first = await stream.peek()
            await trio.lowlevel.checkpoint_if_cancelled()  # the proof may have ended before it was received
        if waiting.cancelled_caught:
            raise DeadlineExceededError(
                f"no message of {path} has arrived within first_message_s = {limit_s:g} s; send the first one with the"
                " call"
            )
        if first is None:
            raise InvalidArgumentError(f"the call of {path} ended before its first message")
        return first

    def _guarded_link(self, method: Method) -> Method:
        handle: Any = method.handler

        async def handler(stream: ServerStream, context: Context) -> None:
            if self._links is Links.NONE:
                await trio.lowlevel.checkpoint()
                self.audit.denied(context, None, "cluster", "a link, and this broker has no cluster secret")
                raise CallRefusedError(
                    "this broker has no cluster secret, so with security on it has no links to others"
                )
            certificate = context.peer_certificate
            needs_certificate = self._links is Links.CERTIFICATE
            if needs_certificate and (certificate is None or not self._is_of_broker(certificate)):
                await trio.lowlevel.checkpoint()
                self.audit.denied(context, None, "cluster", "a link without the certificate of a broker")
                raise PermissionDeniedError(
                    f"a link to this broker needs the certificate of a broker of cluster {self._names.cluster!r}, with"
                    f" the name danube://{self._names.cluster}/broker/ID"
                )
            try:
                await handle(stream, context)
            except PeerRefusedError as error:
                self.audit.denied(context, None, "cluster", f"a link: {error.message}")
                raise

        return msgspec.structs.replace(method, handler=handler)

    def is_blocked(self, peer: str) -> bool:
        """Whether an address gets no connections now; see :mod:`danube.security.throttle`."""
        return self._guard.is_blocked(peer, trio.current_time())

    def _is_of_broker(self, certificate: PeerCertificate) -> bool:
        try:
            return self._certified(certificate).principal.type is PrincipalType.BROKER
        except BadProofError:
            return False

    def check_served(self, client: Server, admin: Server | None, *, native_only: bool) -> None:
        """Check that the ports serve what the table of rights has rows for, and nothing else.

        Args:
            client: of the client port, which is open.
            admin: of the admin port; None: there is none.
            native_only: whether no face has services of another protocol.

        Raises:
            ConfigurationError: otherwise.
        """
        check_served(Port.CLIENT, client.methods, native_only=native_only)
        if admin is not None:
            check_served(Port.ADMIN, admin.methods, native_only=native_only)

    # --- Who calls, and what they may

    def _identify(self, context: Context, authorization: str | None = None) -> Identity:
        """Return who calls, by the header of this name unless another value is given.

        Raises:
            BadProofError: there is no valid proof.
            UnavailableError: the metadata are not reachable.
            CallRefusedError: the broker has not read the records of access control yet.
        """
        if self._replica is None or not self._replica.loaded:
            raise CallRefusedError("the broker is starting: it reads the records of access control; try again")
        if authorization is None:
            authorization = context.metadata.get("authorization")
        try:
            certificate = None
            if authorization is None and context.peer_certificate is not None:
                certificate = self._certified(context.peer_certificate)
            identity = self._guard.identify(
                authorization,
                certificate,
                context.peer,
                trio.current_time(),
                self._wall_s(),
                is_private=context.secure or _is_local(context.peer),
            )
        except BadProofError as error:
            self.audit.refused(context, error.flaw.value)
            raise
        except UncheckedProofError:
            self.audit.refused(context, "not looked at, because too many wrong ones came before")
            raise
        except PeerBlockedError:
            self.audit.refused(context, "its connection is closed, because too many wrong ones came before")
            raise
        context.on_proven(identity.principal)
        return identity

    def _of_certificate(self, certificate: PeerCertificate) -> Identity:
        """Return the identity in a certificate, whose chain TLS has verified.

        Raises:
            BadProofError: it has no name that counts, or contradictory ones.
        """
        return certificate_identity(
            certificate.names,
            hashlib.sha256(certificate.der).hexdigest(),
            certificate.expires_at_s,
            self._names,
            of_broker_ca=certificate.of_broker_ca,
            limits=self._guard.limits,
        )

    async def prove(self, context: Context) -> None:
        """Check the credential of a call that this broker passes on without judging it.

        Raises:
            BadProofError, UncheckedProofError, UnavailableError: as :meth:`identify_key`.
        """
        await self._identified(context)

    async def identify_key(self, api_key: str, context: Context) -> Identity:
        """Return who has sent an API key in a request, where it counts as in the header of any other call.

        Raises:
            BadProofError: it proves nothing.
            UncheckedProofError: it was not looked at; raised after a pause.
            UnavailableError: the metadata are not reachable.
        """
        return await self._identified(context, f"Bearer {api_key}")

    async def _identified(self, context: Context, authorization: str | None = None) -> Identity:
        """As :meth:`_identify`; pauses before it refuses a throttled proof."""
        try:
            return self._identify(context, authorization)
        except UncheckedProofError:
            await trio.sleep(self._guard.limits.refused_proof_pause_s)
            raise

    async def _fail_later(self, call: UnaryCall, error: DanubeError) -> None:
        await trio.sleep(self._guard.limits.refused_proof_pause_s)
        call.fail(error)

    def _judged(self, rule: Rule, identity: Identity, request: Any, context: Context) -> _Caller:
        verdict = self._guard.judge(rule.path, identity, request, self._book)
        if verdict is not Verdict.ALLOWED and verdict is not Verdict.FILTERED:
            refusal = self._guard.refusal(rule.path, identity, verdict, request, self._book)
            assert refusal is not None
            self.audit.denied(context, identity, self._named(rule, request), refusal.message)
            raise refusal
        if is_opening(rule):
            self.audit.opened(context, identity, self._named(rule, request))

        return _Caller(identity, rule, self._guard.book.rights, self.audit, context, self.replica.seen)

    def _named(self, rule: Rule, request: Any) -> str:
        """Return what a call is about, for the audit log."""
        found: dict[str, None] = {}
        for each in rule.requirements:
            if each.condition is Condition.ALWAYS and each.named is not Named.ANYTHING:
                with suppress(InvalidArgumentError):  # of a suspended principal: the names were not looked at
                    found.update(
                        (str(scope_of(resource)), None) for resource in resources_of(each, request, self._book)
                    )
        return ",".join(found)

    async def _audited(
        self, answer: Awaitable[Any], rule: Rule, identity: Identity, request: Any, context: Context
    ) -> Any:
        """Carry out a change, and note how it has ended."""
        resource, outcome = self._named(rule, request), "unknown: it was cancelled, or has failed"
        try:
            found = await answer
            outcome = "done"
            return found
        except DanubeError as error:
            outcome = error.code
            raise
        finally:
            self.audit.changed(context, identity, resource, request, outcome)

    async def _waited(self, answer: Awaitable[Any], identity: Identity, needs: tuple[Need, ...]) -> Any:
        """Return an answer for which the caller may wait long, unless its proof or right ends meanwhile."""
        waiting = _Waiting()
        with self._watched(waiting, identity, needs), waiting.scope:
            return await answer
        assert waiting.failure is not None
        raise waiting.failure

    # --- Open streams

    def _needs(self, rule: Rule, request: Any) -> tuple[Need, ...]:
        return tuple(
            Need(each.permission, resource)
            for each in rule.requirements
            if each.condition is Condition.ALWAYS and each.named is not Named.ANYTHING
            for resource in resources_of(each, request, self._book)
        )

    @contextmanager
    def _watched(self, stream: _Ending, identity: Identity, needs: tuple[Need, ...] = ()) -> Iterator[int]:
        """End a stream with its proof and with what it needs; the value is its number."""
        number = next(self._numbers)
        self._open[number] = _Open(stream, needs)
        self._guard.watch(number, identity, needs)
        try:
            yield number
        finally:
            del self._open[number]
            self._guard.streams.closed(number)

    def _watch_also(self, number: int, needs: tuple[Need, ...]) -> None:
        """End a stream that is watched with these rights, too, which its caller has now."""
        self._open[number] = self._open[number]._replace(needs=needs)
        for need in needs:
            self._guard.streams.needs_also(number, need)

    def follow(self, store: MetadataStore) -> None:
        """Use the records in these metadata, which :meth:`run` follows."""
        self._replica = Replica(store, self._guard)

    @property
    def replica(self) -> Replica:
        """The replica of the records, after :meth:`follow`."""
        assert self._replica is not None
        return self._replica

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the records, and end streams whose proof or right has ended, until cancelled.

        Started once the records are loaded; calls are refused as retryable before.

        Raises:
            DanubeError: the metadata failed for good, or have refused the first query.
        """
        replica = self.replica
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(replica.run)
            task_status.started()
            while True:
                changed = replica.changed
                await self._check()
                with trio.move_on_after(CHECK_S):
                    await changed.wait()

    async def _check(self) -> None:
        more = True
        while more:
            ends, more = self._guard.check(trio.current_time(), self._wall_s())
            for number, why in ends:
                found = self._open.get(number)
                if found is not None:
                    found.stream.abandon(error_of(why, found.needs))
            await trio.lowlevel.checkpoint()


@lru_cache(_CONNECTIONS)
def _is_local(peer: str) -> bool:
    """Whether a peer, as the server names it, is on this machine, so that no other one can read its credentials."""
    host, colon, _ = peer.rpartition(":")
    if not colon:
        return peer != "(gone)"  # a Unix socket, or a stream within this process
    return is_loopback(host)


def _decoded(kind: Any, data: bytes, stream: ServerStream, path: str) -> Any:
    """Decode the first message as the handler of its stream does: native ones always speak msgpack."""
    if not issubclass(kind, msgspec.Struct):
        return stream.decode(kind, data)
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNDECODABLE as error:
        raise InvalidArgumentError(f"the first message of {path} is no {kind.__name__}: {error}") from error
