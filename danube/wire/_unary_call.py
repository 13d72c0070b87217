"""A unary call served by a plain function: one object, without a task or a cancel scope, until it is answered. Pure.

Its life cycle::

    headers --> message and end of the request --> start(request, call) --> reply() or fail(), now or later --> gone

The work that ``start`` began continues after a reset, a deadline or the end of the connection, so the call's slot stays
occupied until the call is answered. That makes resetting streams ineffective as an attack. If the caller is gone, the
answer is dropped and the slot freed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from danube.model.errors import (
    DanubeError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PeerBlockedError,
    Status,
    to_wire,
)
from danube.model.log_events import log_event
from danube.wire._context import Context

if TYPE_CHECKING:
    from danube.model.tls import PeerCertificate
    from danube.wire._events import RequestReceived
    from danube.wire.codec import Codec
    from danube.wire.connection import GrpcConnection
    from danube.wire.service import Method

__all__ = ["UnaryCall"]

_log = logging.getLogger("danube.wire")


class Answering(Protocol):
    """The part of a connection that its unary calls use."""

    protocol: GrpcConnection
    connection_id: int
    peer: str
    secure: bool
    peer_certificate: PeerCertificate | None

    def broken(self, what: str, /) -> None:
        """Log the current exception, and end the connection."""
        ...

    def end(self, reason: str, /) -> None:
        """End the connection, because of what the peer does."""
        ...

    def call_answered(self, stream_id: int, /) -> None:
        """Forget a call, which was answered or dropped."""
        ...

    def prove(self, caller: object = None) -> None:
        """Note that a call has proven who the peer is; ``str(caller)`` names it."""
        ...

    def wake_writer(self) -> None:
        """Schedule queued data to be sent in the next turn of the loop."""
        ...


class UnaryCall:
    """One call of a method with a ``start`` function; it must be answered once, by any task of the same event loop.

    The bytes of the request count against its connection until then. Handlers are not cancelled: when the caller is
    gone, or its deadline has passed, :attr:`gone` becomes true and the answer is dropped.
    """

    __slots__ = (
        "_codec",
        "_connection",
        "_context",
        "_data",
        "_method",
        "_request",
        "answered",
        "began",
        "deadline",
        "gone",
        "started",
        "status",
    )

    def __init__(
        self,
        connection: Answering,
        request: RequestReceived,
        method: Method,
        codec: Codec,
        deadline: float,
        began: float = 0.0,
    ) -> None:
        self._connection = connection
        self._request = request
        self._method = method
        self._codec = codec
        self._context: Context | None = None
        self._data: bytes | None = None
        self.started = False
        """Whether it was passed to ``start``, which must answer it."""
        self.deadline = deadline
        """Deadline of the caller on Trio's clock; infinity if there is none."""
        self.gone = False
        """Whether the caller no longer waits for the answer."""
        self.began = began
        """When its request arrived, on Trio's clock."""
        self.status = Status.OK
        """How it has ended; OK while it has not."""
        self.answered = False
        """Whether the call was answered or dropped."""

    def __repr__(self) -> str:
        return f"<UnaryCall {self._request.stream_id} {self._request.path} of {self._connection.peer}>"

    @property
    def path(self) -> str:
        """The path of its method."""
        return self._request.path

    @property
    def context(self) -> Context:
        """The context of the call; created on first access."""
        context = self._context
        if context is None:
            connection, request = self._connection, self._request
            context = self._context = Context(
                request.path,
                connection.peer,
                connection.connection_id,
                request.metadata,
                self.deadline,
                self._codec,
                request.authority,
                secure=connection.secure,
                peer_certificate=connection.peer_certificate,
                on_proven=connection.prove,
            )
        return context

    def reply(self, value: Any) -> None:
        """Answer with ``value``, encoded by the call's codec. Later answers to the same call do nothing.

        A value that cannot be encoded becomes the call's error.
        """
        if self.answered:
            return
        if self.gone:
            self._finish()
            return
        try:
            data = self._codec.encode(value)
        except Exception as error:  # noqa: BLE001 - a bug in one call must not end those that are answered together with it
            self.fail(error)
            return
        request = self._request
        try:
            self._connection.protocol.answer(request.stream_id, request.content_type, data)
        except Exception:  # noqa: BLE001 - it is logged there; other calls are answered nevertheless
            self._connection.broken(f"an answer to {request.path} could not be sent")
        self._finish()

    def fail(self, error: Exception) -> None:
        """Answer with the status of ``error``; an exception other than a DanubeError is logged and becomes INTERNAL."""
        if self.answered:
            return
        if not isinstance(error, DanubeError):
            _log.error(
                "the call %r failed",
                self,
                exc_info=error,
                extra=log_event("call.failed", repeating=True, method=self._request.path),
            )
            error = InternalError(to_wire(error).message)
        if not self.gone:
            self._send_error(error)
        self._finish()

    def _send_error(self, error: DanubeError) -> None:
        status, code, message, details = to_wire(error)
        self.status = status
        request = self._request
        connection = self._connection
        try:
            connection.protocol.send_trailers(
                request.stream_id, status, message, code, content_type=request.content_type, details=details
            )
        except Exception:  # noqa: BLE001 - it is logged there; other calls are answered nevertheless
            connection.broken(f"the end of {request.path} could not be sent")
        if isinstance(error, PeerBlockedError):
            connection.end(error.message)
        connection.wake_writer()

    def _finish(self) -> None:
        self.answered = True
        self._connection.call_answered(self._request.stream_id)

    # -- called by the connection

    def deliver(self, data: bytes) -> None:
        """Connection: deliver a message of the request."""
        if self._data is None:
            self._data = data
        else:
            self.fail(
                InvalidArgumentError(f"a call of {self._request.path} requires one request message, but has more")
            )

    def deliver_end(self, now: float) -> None:
        """Connection: the request is complete; serve it."""
        data = self._data
        if data is None:
            self.fail(
                InvalidArgumentError(f"a call of {self._request.path} requires one request message, but has none")
            )
            return
        if self.deadline <= now:
            self.fail(self._late())
            return
        method = self._method
        assert method.start is not None
        self.started = True
        try:
            method.start(self._codec.decode(method.request_type, data), self)
        except Exception as error:  # noqa: BLE001 - a bug in one call costs that call, not the connection
            self.fail(error)

    def abandon(self, error: DanubeError | None) -> None:
        """Connection: the caller no longer waits. ``error`` is sent to it; None if it is gone."""
        if error is not None and not self.gone:
            self._send_error(error)
        elif self.status is Status.OK:
            self.status = Status.CANCELLED
        self.gone = True
        if not self.started:
            self._finish()

    def drop(self, error: DanubeError | None) -> None:
        """Connection: like :meth:`abandon`, but free the slot without waiting for the answer."""
        self.abandon(error)
        if not self.answered:
            self._finish()

    def expire(self) -> None:
        """Connection: the deadline has passed."""
        self.abandon(self._late())

    def _late(self) -> DanubeError:
        return DeadlineExceededError(
            f"{self._request.path} was not answered within the caller's deadline; try again with a longer one"
        )
