"""TLS over any transport: bytes of one are read, decrypted and passed on; and encrypted, and written.

OpenSSL works in memory here (:class:`ssl.MemoryBIO`), and this class moves what it reads and writes. So one system call
moves many records, one turn decrypts at most as many bytes as were read, and nothing that OpenSSL wants to write
meanwhile (answers to key updates, alerts) stops the reading. Over a socket all of it happens without waiting, by the
server's poller. After each read everything that has arrived is decrypted: nothing stays behind that the kernel does not
report.

Records that carry no data are counted: OpenSSL accepts updates of keys without end, and each costs it and the answer
as much as several small calls. Input is decrypted a few records at a time, so that no large read is full of them.

A record that the peer does not accept at once counts as not sent, like bytes that a socket does not accept. The next
bytes to be sent must be the same ones, as with any transport; those are not encrypted again.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from danube.model.errors import ConnectionLostError, PeerFloodError
from danube.model.limits import Limits
from danube.wire._abuse import Allowance
from danube.wire._tls_records import Records
from danube.wire._transport import PolledTransport

if TYPE_CHECKING:
    from danube.wire._transport import Transport

__all__ = ["TlsSocketTransport", "TlsTransport", "secured", "tls_over"]

RECORD_BYTES: Final = 16 * 1024
"""Most bytes of data in one record."""
PIECE_BYTES: Final = 4 * RECORD_BYTES
"""Bytes that are encrypted before they are written. A rest is kept if the peer does not accept it."""
MIN_READ_BYTES: Final = 16 * 1024
MAX_READ_BYTES: Final = 256 * 1024
MAX_UNSENT_BYTES: Final = 64 * 1024
"""Most bytes of the protocol itself (no data) that wait for a peer which does not read."""
IDLE_RECORDS: Final = Limits().max_tls_idle_records_per_minute
RECORDS_AT_ONCE: Final = 64
"""Records that are decrypted before those without data are counted."""
CLOSING_TIMEOUT_S: Final = 0.5
"""Time limit for telling the peer that the connection ends."""


class TlsTransport:
    """TLS over another transport, which it owns.

    Args:
        inner: carries the records.
        context: of this side.
        server_name: the host that the peer's certificate must name; None: this is the server.
        idle_records: how many records without data the peer may send in a minute
            (``max_tls_idle_records_per_minute``).
    """

    __slots__ = (
        "_busy",
        "_closed",
        "_ended",
        "_first",
        "_idle",
        "_idle_allowance",
        "_idle_records",
        "_incoming",
        "_inner",
        "_outgoing",
        "_owed",
        "_read_size",
        "_records",
        "_sealed",
        "_tls",
    )

    def __init__(
        self,
        inner: Transport,
        context: ssl.SSLContext,
        server_name: str | None,
        idle_records: int = IDLE_RECORDS,
    ) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._sealed: memoryview | bytes = b""
        """Encrypted bytes that the inner transport has not accepted."""
        self._owed = 0
        """Bytes of the application in them: they were not reported as sent, and come again."""
        self._read_size = MIN_READ_BYTES
        self._records = Records()
        self._idle_records = idle_records
        self._idle_allowance: Allowance | None = None
        self._idle = 0
        """Records that have begun, without those that brought data: one may be incomplete, the others count."""
        self._busy = False
        """Whether :meth:`send` is passing on encrypted bytes, so that others must not be written meanwhile."""
        self._first = b""
        self._ended = False
        self._closed = False

    @property
    def tls(self) -> ssl.SSLObject:
        """The state of TLS: version, cipher, certificate of the peer."""
        return self._tls

    # -- handshake

    async def handshake(self, received: bytes = b"") -> bytes:
        """Negotiate, and return the first bytes of data that arrived with the end of the negotiation.

        Args:
            received: what the inner transport has received already.

        Raises:
            ssl.SSLError: the sides do not agree, or a certificate is refused; the peer was told.
            PeerFloodError: records without data come behind the handshake.
            ConnectionLostError: the connection was lost.
        """
        self._incoming.write(received)
        while True:
            done = True
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError:
                await self._send_last()
                raise
            if self._outgoing.pending:
                await self._inner.send(memoryview(self._outgoing.read()))
            if done:
                # OpenSSL reads record by record, so another one begins here.
                return self._open(self._incoming.read())
            data = await self._inner.receive(MIN_READ_BYTES)
            if not data:
                raise ConnectionLostError("the connection was closed during the TLS handshake")
            self._incoming.write(data)

    # -- data

    def unread(self, data: bytes) -> None:
        """Let ``data`` be received before anything else."""
        self._first = data

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; empty at the end. They are all that one read has brought."""
        if self._first:
            first, self._first = self._first, b""
            return first
        while not self._ended:
            sealed = await self._inner.receive(self._read_size)
            if not sealed:
                self._ended = True
                break
            data = self._take(sealed)
            if data:
                return data
        return b""

    def send_now(self, data: bytes | memoryview) -> int:
        """Send as much as possible without waiting; return the number of bytes."""
        if self._sealed and not self._push():
            return 0
        sent, self._owed = self._owed, 0
        while sent < len(data):
            piece = memoryview(data)[sent : sent + PIECE_BYTES]
            self._encrypt(piece)
            if not self._push():
                self._owed = len(piece)
                break
            sent += len(piece)
        return sent

    async def send(self, data: memoryview) -> None:
        """Send all of ``data``. After a cancellation the connection can only be closed."""
        while True:
            sent = self.send_now(data)
            data = data[sent:]
            if not data:
                return
            # A piece that was encrypted waits for the peer; a stream always gets here.
            self._busy = True
            try:
                await self._inner.send(memoryview(self._sealed))
            finally:
                self._busy = False
            self._sealed = b""
            data, self._owed = data[self._owed :], 0

    async def close(self) -> None:
        """Close at once; the peer is told so if it accepts that without delay."""
        if not self._closed:
            self._closed = True
            if not self._sealed:
                # It does not wait for the peer's farewell; and there is none before the end of the handshake.
                with suppress(ssl.SSLError, ValueError):
                    self._tls.unwrap()
                await self._send_last()
        await self._inner.close()

    # -- records

    def _take(self, sealed: bytes) -> bytes:
        """Decrypt what was read."""
        length, size = len(sealed), self._read_size
        if length == size:
            if size < MAX_READ_BYTES:
                self._read_size = size * 4
        elif length * 16 < size and size > MIN_READ_BYTES:
            self._read_size = size // 4
        return self._open(sealed)

    def _open(self, sealed: bytes) -> bytes:
        """Decrypt the next bytes.

        Raises:
            PeerFloodError: too many of their records carry no data.
        """
        parts: list[bytes] = []
        records, incoming = self._records, self._incoming
        begin, size = 0, len(sealed)
        while begin < size and not self._ended:
            end, begun = records.cut(sealed, begin, RECORDS_AT_ONCE)
            incoming.write(sealed if end - begin == size else memoryview(sealed)[begin:end])
            begin, before = end, len(parts)
            self._decrypt(parts)
            if (idle := self._idle + begun - len(parts) + before) > 1:
                idle = self._count_idle(idle)
            self._idle = idle
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _count_idle(self, idle: int) -> int:
        """Charge all but one of the records without data, which may be incomplete; return how many are left."""
        now = anyio.current_time()
        if self._idle_allowance is None:
            self._idle_allowance = Allowance("max_tls_idle_records_per_minute", self._idle_records, 60.0, now)
        if not self._idle_allowance.take(idle - 1, now):
            raise PeerFloodError(
                f"the peer sends TLS records without data, such as updates of keys: more than"
                f" {self._idle_allowance.name} = {self._idle_records}"
            )
        return 1

    def _decrypt(self, parts: list[bytes]) -> None:
        """Append what the records of the input carry: one part for each of them that carries data."""
        tls, incoming = self._tls, self._incoming
        try:
            while incoming.pending or tls.pending():
                part = tls.read(RECORD_BYTES)
                if not part:
                    self._ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still to come
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        except ssl.SSLError as error:
            if not parts:
                self._push()
                raise _lost(error) from error
            self._ended = True  # what came before it counts
        if self._outgoing.pending and not self._sealed:
            self._push()
        if self._outgoing.pending > MAX_UNSENT_BYTES:
            raise ConnectionLostError("the connection broke: the peer does not read the answers of TLS itself")

    def _encrypt(self, piece: memoryview) -> None:
        try:
            done = self._tls.write(piece)
        except ssl.SSLError as error:
            raise _lost(error) from error
        if done != len(piece):  # OpenSSL writes all of it, in memory
            raise ConnectionLostError(f"the connection broke: TLS took {done} of {len(piece)} bytes")

    def _push(self) -> bool:
        """Write encrypted bytes without waiting; return whether none are left."""
        if self._busy:
            return False
        while True:
            if not self._sealed:
                if not self._outgoing.pending:
                    return True
                self._sealed = self._outgoing.read()
            sent = self._inner.send_now(self._sealed)
            if sent < len(self._sealed):
                self._sealed = memoryview(self._sealed)[sent:]
                return False
            self._sealed = b""

    async def _send_last(self) -> None:
        """Write what OpenSSL has to say at the end, if that is possible without delay."""
        try:
            if not self._push() and not isinstance(self, TlsSocketTransport):
                with anyio.move_on_after(CLOSING_TIMEOUT_S, shield=True):
                    await self._inner.send(memoryview(self._sealed))
        except ConnectionLostError:
            pass  # the peer does not need to be told


class TlsSocketTransport(TlsTransport, PolledTransport):
    """TLS over a socket, which a poller reads."""

    __slots__ = ()
    _inner: PolledTransport

    @property
    def fd(self) -> int:
        """The descriptor of the socket."""
        return self._inner.fd

    def receive_now(self, max_bytes: int) -> bytes | None:
        """Return the next bytes, empty at the end; None if there are none now."""
        if self._first:
            first, self._first = self._first, b""
            return first
        if self._ended:
            return b""
        sealed = self._inner.receive_now(self._read_size)
        if sealed is None:
            return None
        if not sealed:
            self._ended = True
            return b""
        data = self._take(sealed)
        return data if data or self.is_over else None

    @property
    def is_over(self) -> bool:
        """Whether the peer has ended TLS, with or without the connection that carries it."""
        return self._ended


def tls_over(
    inner: Transport,
    context: ssl.SSLContext,
    server_name: str | None = None,
    *,
    idle_records: int = IDLE_RECORDS,
) -> TlsTransport:
    """Return TLS over a transport, which it then owns; call :meth:`TlsTransport.handshake` first.

    Args:
        inner: carries the records.
        context: of this side.
        server_name: the host that the peer's certificate must name; None: this is the server.
        idle_records: see :class:`TlsTransport`.
    """
    if isinstance(inner, PolledTransport):
        return TlsSocketTransport(inner, context, server_name, idle_records)
    return TlsTransport(inner, context, server_name, idle_records)


async def secured(inner: Transport, context: ssl.SSLContext, server_name: str) -> TlsTransport:
    """Negotiate with a server over a new connection, which is closed if that fails or is cancelled.

    Args:
        inner: the connection; it is owned from now on.
        context: of the client.
        server_name: the host that the server's certificate must name.

    Raises:
        ssl.SSLError: see :meth:`TlsTransport.handshake`.
        ConnectionLostError: the connection was lost.
    """
    try:
        outer = tls_over(inner, context, server_name)
        outer.unread(await outer.handshake())
    except BaseException:
        with anyio.CancelScope(shield=True):
            await inner.close()
        raise
    return outer


def _lost(error: ssl.SSLError) -> ConnectionLostError:
    from danube.wire.tls import tls_problem

    return ConnectionLostError(f"the connection broke: {tls_problem(error)}")
