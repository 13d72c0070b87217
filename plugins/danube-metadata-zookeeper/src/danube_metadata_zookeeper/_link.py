"""The connection to ZooKeeper: kazoo's client, in its own threads, behind calls of Trio.

kazoo connects, pings, and follows from server to server by itself. Requests are sent only while there is a connection:
otherwise a request whose caller has given up could wait in a queue and be executed much later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio
from kazoo import exceptions as errors
from kazoo.client import KazooClient, TransactionRequest
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from danube.model.errors import ClosedError, DanubeError, PermissionDeniedError, UnavailableError
from danube_metadata_zookeeper._nodes import (
    ANY,
    CheckNode,
    CreateNode,
    DeleteNode,
    Node,
    NodeOperation,
    Refusal,
    RefusedError,
    SetNode,
)

__all__ = ["Link", "Security"]

_log: Final = logging.getLogger("danube.metadata.zookeeper")
_STOP_S: Final = 2.0
"""How long the end waits for kazoo to say goodbye to a server; its threads are daemons and end with the process."""
_AT_ONCE: Final = 64
"""Reads that are under way at the same time."""
_REFUSALS: Final = {
    errors.NodeExistsError: Refusal.EXISTS,
    errors.NoNodeError: Refusal.MISSING,
    errors.BadVersionError: Refusal.VERSION,
}


class Security:
    """How servers and client prove who they are.

    Args:
        username: of digest authentication; empty: none, and the nodes are open to everyone.
        password: of the user.
        tls: whether to use TLS.
        ca_file, cert_file, key_file: PEM files; empty: the system's authorities, no certificate.
        check_hostname: whether the server's certificate must name its host.
    """

    def __init__(
        self,
        username: str = "",
        password: str = "",
        *,
        tls: bool = False,
        ca_file: str = "",
        cert_file: str = "",
        key_file: str = "",
        check_hostname: bool = True,
    ) -> None:
        self.username = username
        self.password = password
        self.tls = tls
        self.ca_file = ca_file
        self.cert_file = cert_file
        self.key_file = key_file
        self.check_hostname = check_hostname

    def __repr__(self) -> str:
        return f"<user {self.username!r}>"


class _Reasons(logging.Handler):
    """Keeps the last thing of which kazoo warned: why there is no connection. kazoo tells it in no other way."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = "no server answers"

    def emit(self, record: logging.LogRecord) -> None:
        """Take a message."""
        text = record.getMessage().replace("socket connection error: ", "")
        if text != "Transition to CONNECTING":
            self.last = text
        _log.debug("kazoo: %s", text)


class Link:
    """Implements :class:`~danube_metadata_zookeeper._nodes.Nodes` with kazoo.

    Args:
        hosts: ``host:port`` of the servers, separated by commas.
        security: how to authenticate.
        session_timeout_s: how long a server may be silent before another one is tried.
        request_timeout_s: of one call, waiting for a connection included.
    """

    def __init__(self, hosts: str, security: Security, *, session_timeout_s: float, request_timeout_s: float) -> None:
        self.connections = 0
        self.request_timeout_s = request_timeout_s
        self._hosts = hosts
        self._closed = False
        self._closing = trio.Event()
        self._refused = False
        self._state_changed = trio.Event()
        self._connected = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._reasons = _Reasons()
        logger = logging.Logger("danube.metadata.zookeeper.kazoo", logging.WARNING)  # one of its own, without parents
        logger.addHandler(self._reasons)
        self._client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            default_acl=CREATOR_ALL_ACL if security.username else OPEN_ACL_UNSAFE,
            auth_data=[("digest", f"{security.username}:{security.password}")] if security.username else None,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, ignore_expire=True),
            logger=logger,
            use_ssl=security.tls,
            ca=security.ca_file or None,
            certfile=security.cert_file or None,
            keyfile=security.key_file or security.cert_file or None,
            check_hostname=security.tls and security.check_hostname,
        )

    @property
    def place(self) -> str:
        """The servers, for messages."""
        return self._hosts

    async def run(self) -> None:
        """Task: keep a connection. Cancelling it ends kazoo's threads."""
        self._token = trio.lowlevel.current_trio_token()
        self._client.add_listener(self._listen)
        self._client.start_async()
        try:
            await trio.sleep_forever()
        finally:
            self.close()
            with trio.move_on_after(_STOP_S, shield=True):
                await trio.to_thread.run_sync(self._stop, abandon_on_cancel=True)

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:  # noqa: BLE001 - kazoo's, and there is nothing left to be saved
            _log.debug("kazoo could not be stopped: %s", error)

    def close(self) -> None:
        """Let calls fail with ClosedError."""
        self._closed = True
        self._closing.set()
        self._change()

    # kazoo's threads

    def _listen(self, state: str) -> None:
        connected = state == KazooState.CONNECTED
        refused = self._client.client_state == KeeperState.AUTH_FAILED
        self._enter(lambda: self._take(connected, refused))

    def _enter(self, work: Callable[[], None]) -> None:
        """Run something between two steps of Trio's tasks, if Trio still runs."""
        assert self._token is not None
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            _log.debug("kazoo has told something after the end")

    # Trio's thread

    def _take(self, connected: bool, refused: bool) -> None:
        if connected and not self._connected:
            self.connections += 1
        self._connected, self._refused = connected, refused
        self._change()

    def _change(self) -> None:
        self._state_changed.set()
        self._state_changed = trio.Event()

    async def _await_connection(self, what: str) -> None:
        while not self._connected:
            self._check(what)
            await self._state_changed.wait()
        self._check(what)

    def _check(self, what: str) -> None:
        if self._closed:
            raise ClosedError("the metadata store is closed; open it again")
        if self._refused:
            raise PermissionDeniedError(
                f"ZooKeeper at {self.place}: {what}: authentication failed; correct username and password in the"
                " options of [metadata]"
            )

    async def _call(self, send: Callable[[], Any], what: str, *, changes: bool) -> Any:
        """Send a request, and return kazoo's result or exception.

        Raises:
            DanubeError: there is no connection, or no answer.
        """
        sent = False
        with trio.move_on_after(self.request_timeout_s):
            await self._await_connection(what)
            answered = trio.Event()
            result = send()
            sent = True
            result.rawlink(lambda _: self._enter(answered.set))
            await self._first(answered)
            if answered.is_set():
                return result.exception if result.exception is not None else result.value
            self._check(what)
        lost = "it may have been applied" if changes and sent else "try again"
        within = f"within {self.request_timeout_s:g} s"
        why = f"no answer {within}" if sent else f"no connection {within} ({self._reasons.last})"
        raise UnavailableError(f"ZooKeeper at {self.place}: {what}: {why}; {lost}")

    async def _first(self, answered: trio.Event) -> None:
        """Wait for an answer, or for the end of the link."""
        async with trio.open_nursery() as nursery:

            async def closing() -> None:
                await self._closing.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(closing)
            await answered.wait()
            nursery.cancel_scope.cancel()

    def _explain(self, error: BaseException, what: str, *, changes: bool) -> DanubeError:
        text = f"ZooKeeper at {self.place}: {what}"
        if self._closed:
            return ClosedError("the metadata store is closed; open it again")
        if isinstance(error, errors.NoAuthError):
            return PermissionDeniedError(
                f"{text}: the user may not do that; give it all rights on the nodes below the prefix (setAcl)"
            )
        if isinstance(error, errors.AuthFailedError):
            return PermissionDeniedError(
                f"{text}: authentication failed; correct username and password in the options of [metadata]"
            )
        if isinstance(error, errors.InvalidACLError):
            return PermissionDeniedError(f"{text}: the server does not accept the access list of the user")
        told = f"{type(error).__name__} {error}".rstrip()
        return UnavailableError(f"{text}: {told}; {'it may have been applied' if changes else 'try again'}")

    # Calls

    async def read(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        """See :meth:`Nodes.read`."""
        watch = None if changed is None else lambda _event: self._enter(changed)
        return self._node(
            await self._call(lambda: self._client.get_async(path, watch=watch), f"read of {path}", changes=False), path
        )

    def _node(self, answer: Any, path: str) -> Node | None:
        if isinstance(answer, errors.NoNodeError):
            return None
        if isinstance(answer, BaseException):
            raise self._explain(answer, f"read of {path}", changes=False) from answer
        data, stat = answer
        return Node(data if data is not None else b"", stat.version)

    async def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        """See :meth:`Nodes.read_many`. Many are under way at once; ZooKeeper answers in their order."""
        found: list[Node | None] = [None] * len(paths)
        failures: list[DanubeError] = []

        async def read(number: int, nursery: trio.Nursery) -> None:
            try:
                found[number] = await self.read(paths[number])
            except DanubeError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        for first in range(0, len(paths), _AT_ONCE):
            async with trio.open_nursery() as nursery:
                for number in range(first, min(first + _AT_ONCE, len(paths))):
                    nursery.start_soon(read, number, nursery)
            if failures:
                raise failures[0]
        return found

    async def children(self, path: str) -> list[str]:
        """See :meth:`Nodes.children`."""
        what = f"list of {path}"
        answer = await self._call(lambda: self._client.get_children_async(path), what, changes=False)
        if isinstance(answer, BaseException):
            raise self._explain(answer, what, changes=False) from answer
        return [str(name) for name in answer]

    async def commit(self, operations: Sequence[NodeOperation], what: str) -> list[int]:
        """See :meth:`Nodes.commit`."""
        answer = await self._call(lambda: self._request(operations).commit_async(), what, changes=True)
        if isinstance(answer, BaseException):
            raise self._explain(answer, what, changes=True) from answer
        for index, result in enumerate(answer):
            for kind, why in _REFUSALS.items():
                if isinstance(result, kind):
                    raise RefusedError(index, why)
        for result in answer:
            # Beside the one that was refused, the others are "rolled back" or "inconsistent".
            if isinstance(result, BaseException) and not isinstance(
                result, errors.RolledBackError | errors.RuntimeInconsistency
            ):
                raise self._explain(result, what, changes=False) from result
        versions = [getattr(result, "version", ANY) for result in answer]
        if any(isinstance(result, BaseException) for result in answer):
            raise UnavailableError(f"ZooKeeper at {self.place}: {what}: it was rolled back; try again")
        return versions

    def _request(self, operations: Sequence[NodeOperation]) -> TransactionRequest:
        request = self._client.transaction()
        for operation in operations:
            match operation:
                case CreateNode(path, data):
                    request.create(path, data)
                case SetNode(path, data, version):
                    request.set_data(path, data, version)
                case DeleteNode(path, version):
                    request.delete(path, version)
                case CheckNode(path, version):
                    request.check(path, version)
        return request
