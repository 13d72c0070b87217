"""A network in memory: hosts, links with latency, and everything that goes wrong between them.

Connections are byte streams, as TCP gives them: nothing is lost or reordered *within* one, but bytes come late, in
pieces of any size, or not at all any more. What can happen to a link, or to a host:

* **cut**: nothing passes while it lasts. Bytes that were sent wait (as TCP would repeat them), new connections hang.
  Afterwards everything goes on, late, unless somebody's patience ended before.
* **reset**: the connections of a link break on both sides; what was on its way is lost.
* **stops reading**: a host takes no more bytes from its connections of a link, and goes on sending, as an application
  does that is stuck: what comes fills the window.
* **half-open**: something on the way forgets a connection. Both sides can send, and hear nothing, for ever.
* **crash** of a host: its connections are gone. After a kill the kernel says so to the peers; after a power loss nobody
  does, until the peer sends something to the host that has come back and knows nothing of it.

A stream's window bounds what is on its way, so that a reader that does not read stops its writer. Two faces are put on
the one :class:`Endpoint`: a Trio stream for the broker, an anyio stream for the client.
"""

from __future__ import annotations

import errno
import math
import os
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final

import anyio
import anyio.abc
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task

from danube.model.errors import ConfigurationError, ConnectionLostError, InternalError
from danube.testing.clock import SimulatedClock, simulated_clock, sleep
from danube.testing.simulation.trace import Trace
from danube.wire._transport import Transport

__all__ = ["ClientStream", "Endpoint", "Listener", "Network", "ServerStream"]

WINDOW_BYTES: Final = 256 * 1024
_BACKLOG: Final = 128


class Host:
    """A machine on the network."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.listeners: dict[int, Listener] = {}
        self.endpoints: dict[int, Endpoint] = {}
        """Open connections by number: a dict, because its order is that of their making."""


class Link:
    """The way between two hosts."""

    def __init__(self) -> None:
        self.cut = False
        self.latency_s = 0.0005


class Endpoint:
    """One side of a connection. ``receive`` and ``send`` raise ConnectionError when it is broken."""

    def __init__(self, network: Network, host: Host, link: Link, number: int) -> None:
        self.peer: Endpoint
        self.number = number
        self.host = host
        self._network = network
        self._link = link
        self._arriving: deque[tuple[float, bytes]] = deque()
        """What the peer has sent: (arrival, bytes); empty bytes are its end."""
        self._on_the_way = 0
        self._last_arrival = 0.0
        self._reset_at = math.inf
        self._closed = False
        self._deaf = False
        """The peer has forgotten this connection and has not said so."""
        self._blind = False
        """What is sent vanishes without an answer."""
        self._reads = True
        self._reader: Task | None = None
        self._writer: Task | None = None
        self._clock = network.clock

    # --- What the owner does

    async def receive(self, max_bytes: int) -> bytes:
        """Return some bytes; empty at the end. One task at a time."""
        waited = False
        while True:
            now = self._clock.now
            self._check(now)
            if self._arriving and self._reads and not self._link.cut and self._arriving[0][0] <= now:
                if not waited:
                    await trio.lowlevel.checkpoint()
                    waited = True
                    continue
                return self._take(self._arriving[0][1], max_bytes)
            waited = True
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._reader_gone)

    def _reader_gone(self, _raise_cancel: RaiseCancelT) -> Abort:
        self._reader = None
        return Abort.SUCCEEDED

    def _writer_gone(self, _raise_cancel: RaiseCancelT) -> Abort:
        self._writer = None
        return Abort.SUCCEEDED

    def _take(self, data: bytes, max_bytes: int) -> bytes:
        if not data:
            return b""  # the end stays
        arrival, _ = self._arriving.popleft()
        if len(data) > max_bytes or self._network.random.random() < self._network.short_reads:
            size = self._network.random.randint(1, min(len(data), max_bytes))
            if size < len(data):
                self._arriving.appendleft((arrival, data[size:]))
                data = data[:size]
        self._on_the_way -= len(data)
        self.peer._wake_writer()
        self._network.bytes_delivered += len(data)
        return data

    def send_now(self, data: bytes) -> int:
        """Send what fits into the window, as a socket does that must not wait; return how many bytes that was."""
        self._check(self._clock.now)
        room = WINDOW_BYTES - self.peer._on_the_way
        if room <= 0:
            return 0
        self._push(data if len(data) <= room else data[:room])
        return min(len(data), room)

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything; waits while the window is full. One task at a time."""
        await trio.lowlevel.checkpoint()
        left = bytes(data)
        while left:
            sent = self.send_now(left)
            left = left[sent:]
            if not sent:
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._writer_gone)

    def _push(self, data: bytes) -> None:
        peer = self.peer
        if self._blind:
            peer._on_the_way += len(data)
            return
        if peer._closed or self._deaf:
            # The peer knows nothing of this connection (any more): a reset comes back, if anybody is there to send it.
            # Behind a cut or a dead host the bytes vanish, and repeat themselves until somebody gives up.
            peer._on_the_way += len(data)
            if peer.host.up and not self._link.cut:
                self.break_at(self._clock.now + 2 * self._network.latency(self._link))
            return
        arrival = max(peer._last_arrival, self._clock.now + self._network.latency(self._link))
        peer._last_arrival = arrival
        peer._arriving.append((arrival, data))
        peer._on_the_way += len(data)
        self._clock.call_at(arrival, peer._wake_reader)

    def close(self) -> None:
        """Close both directions at once; what was sent is still delivered, as the kernel would."""
        if self._closed:
            return
        self._closed = True
        self.host.endpoints.pop(self.number, None)
        now = self._clock.now
        if now < self._reset_at and not (self._deaf or self._blind or self.peer._closed):
            if any(arrival <= now and data for arrival, data in self._arriving):
                # Unread bytes: the kernel says so with a reset, and what was on its way back is lost with it.
                self.peer.break_at(now + self._network.latency(self._link))
            else:
                self._push(b"")
        self._wake()

    def _check(self, now: float) -> None:
        if self._closed:
            raise ConnectionAbortedError(errno.ECONNABORTED, "closed on this side")
        if now >= self._reset_at:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def as_transport(self) -> Transport | None:
        """Return this as Danube sees a socket; None if it shall see a stream."""
        return _Socket(self) if self._network.like_sockets else None

    # --- What the network does

    def break_at(self, time_s: float) -> None:
        """Let this side notice, at a time, that the connection is reset."""
        if time_s < self._reset_at:
            self._reset_at = time_s
            self._clock.call_at(time_s, self._wake)

    def forget(self, *, silently: bool) -> None:
        """This side is gone with its host, or forgotten; the peer hears of it now, or when it sends, or never."""
        if self._closed:
            return
        self._closed = True
        self.host.endpoints.pop(self.number, None)
        if silently:
            self.peer._deaf = True
        elif not self.peer._closed:
            self.peer.break_at(self._clock.now + self._network.latency(self._link))
        self._wake()

    def _wake(self) -> None:
        self._wake_reader()
        self._wake_writer()

    def _wake_reader(self) -> None:
        task, self._reader = self._reader, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _wake_writer(self) -> None:
        task, self._writer = self._writer, None
        if task is not None:
            trio.lowlevel.reschedule(task)


class _Socket:
    """An endpoint as Danube uses real sockets: see :class:`danube.wire._transport.SocketTransport`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; empty at the end."""
        try:
            return await self._endpoint.receive(max_bytes)
        except ConnectionError as error:
            raise _lost(error) from error

    def send_now(self, data: bytes) -> int:
        """Send what the window takes."""
        try:
            return self._endpoint.send_now(data)
        except ConnectionError as error:
            raise _lost(error) from error

    async def send(self, data: memoryview) -> None:
        """Send all of ``data``."""
        try:
            await self._endpoint.send(data)
        except ConnectionError as error:
            raise _lost(error) from error

    async def close(self) -> None:
        """Close at once."""
        self._endpoint.close()


def _lost(error: ConnectionError) -> ConnectionLostError:
    return ConnectionLostError(f"the connection broke: {error}")


class Listener(trio.abc.Listener["ServerStream"]):
    """A port that is listened on."""

    def __init__(self, host: Host, port: int) -> None:
        self._host = host
        self._port = port
        self._send, self._receive = trio.open_memory_channel[Endpoint](_BACKLOG)
        self.closed = False

    def __str__(self) -> str:
        return f"{self._host.name}:{self._port}"

    def arrive(self, endpoint: Endpoint) -> None:
        """Network: a connection comes in."""
        try:
            self._send.send_nowait(endpoint)
        except trio.WouldBlock:
            endpoint.forget(silently=False)

    async def accept(self) -> ServerStream:
        """Return the next connection."""
        try:
            return ServerStream(await self._receive.receive())
        except trio.ClosedResourceError:
            raise trio.ClosedResourceError("the listener is closed") from None

    async def aclose(self) -> None:
        """Stop listening; connections that nobody has accepted are reset."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """The same, at once."""
        if self.closed:
            return
        self.closed = True
        self._host.listeners.pop(self._port, None)
        while True:
            try:
                self._receive.receive_nowait().forget(silently=False)
            except (trio.WouldBlock, trio.ClosedResourceError):
                break
        self._receive.close()


class Network:
    """Hosts and links, made as they are named.

    Args:
        random: the only source of chance.
        trace: gets faults and the life of connections.
    """

    def __init__(self, random: Random, trace: Trace) -> None:
        clock = simulated_clock()
        if clock is None:
            raise InternalError("a simulated network needs a run with a simulated clock")
        self.clock: SimulatedClock = clock
        self.random = random
        self.like_sockets = True
        """Whether Danube finds sockets here, which take what fits at once; else streams, as those of TLS are."""
        self.short_reads = 0.0
        """Probability that a read returns less than there is."""
        self.bytes_delivered = 0
        self._trace = trace
        self._hosts: dict[str, Host] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._number = 0

    def host(self, name: str) -> Host:
        """Return a host."""
        return self._hosts.setdefault(name, Host(name))

    def link(self, one: str, other: str) -> Link:
        """Return the way between two hosts."""
        return self._links.setdefault((min(one, other), max(one, other)), Link())

    def latency(self, link: Link) -> float:
        """Return how long the next bytes take."""
        return link.latency_s * (0.5 + self.random.random())

    # --- Connecting

    def listen(self, host: str, addresses: Sequence[str]) -> list[Listener]:
        """Listen on ports of a host; raises ConfigurationError if one is taken."""
        found: list[Listener] = []
        at = self.host(host)
        for address in addresses:
            port = int(address.rpartition(":")[2])
            if port in at.listeners:
                raise ConfigurationError(f"cannot listen on {address}: the port is taken")
            at.listeners[port] = listener = Listener(at, port)
            found.append(listener)
        return found

    async def connect(self, source: str, target: str, port: int) -> ClientStream:
        """Connect; hangs while the link is cut or the host is down, and raises OSError if nobody listens."""
        link, host = self.link(source, target), self.host(target)
        while True:
            await sleep(2 * self.latency(link))
            if not link.cut and host.up:
                break
            await sleep(0.2)  # as a SYN is repeated
        listener = host.listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._number += 1
        here = Endpoint(self, self.host(source), link, self._number)
        there = Endpoint(self, host, link, self._number)
        here.peer, there.peer = there, here
        here.host.endpoints[self._number] = here
        host.endpoints[self._number] = there
        self._trace("connect", source, target, self._number)
        listener.arrive(there)
        return ClientStream(here)

    # --- Faults

    def set_cut(self, one: str, other: str, cut: bool) -> None:
        """Cut a link, or mend it."""
        link = self.link(one, other)
        link.cut = cut
        self._trace("link-cut" if cut else "link-mended", one, other)
        for endpoint in self._between(one, other):
            endpoint._wake()
            endpoint.peer._wake()

    def reset(self, one: str, other: str) -> None:
        """Break the connections of a link; both sides notice at once."""
        for endpoint in self._between(one, other):
            self._trace("reset", one, other, endpoint.number)
            endpoint.break_at(self.clock.now)
            endpoint.peer.break_at(self.clock.now)

    def set_reading(self, reader: str, sender: str, reads: bool) -> None:
        """Let a host stop reading from the connections that it has with another one now, or go on."""
        for endpoint in self._between(reader, sender):
            self._trace("reads" if reads else "stops-reading", reader, sender, endpoint.number)
            endpoint._reads = reads
            endpoint._wake_reader()

    def half_open(self, one: str, other: str) -> None:
        """Let something on the way forget the connections of a link: whatever is sent on them vanishes, for ever."""
        for endpoint in self._between(one, other):
            self._trace("half-open", one, other, endpoint.number)
            endpoint._blind = endpoint.peer._blind = True

    def crash(self, name: str, *, silently: bool) -> None:
        """Take a host away with all its connections and ports; ``silently`` as after a power loss."""
        host = self.host(name)
        host.up = False
        for listener in list(host.listeners.values()):
            listener.close()
        for endpoint in list(host.endpoints.values()):
            endpoint.forget(silently=silently)
        if not silently:
            host.up = True  # the machine is there and refuses

    def power_on(self, name: str) -> None:
        """Bring a host back: it knows nothing of its former connections."""
        self.host(name).up = True

    def _between(self, one: str, other: str) -> list[Endpoint]:
        return [endpoint for endpoint in self.host(one).endpoints.values() if endpoint.peer.host.name == other]


class ServerStream(trio.abc.Stream):
    """The broker's face of an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def as_transport(self) -> Transport | None:
        """Return the endpoint as Danube sees a socket; None where it shall see a stream."""
        return self.endpoint.as_transport()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything."""
        try:
            await self.endpoint.send(data)
        except ConnectionAbortedError as error:
            raise trio.ClosedResourceError(str(error)) from None
        except ConnectionError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: ``send_all`` does the waiting."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes; empty at the end."""
        try:
            return await self.endpoint.receive(max_bytes or 65536)
        except ConnectionAbortedError as error:
            raise trio.ClosedResourceError(str(error)) from None
        except ConnectionError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def aclose(self) -> None:
        """Close at once."""
        self.endpoint.close()
        await trio.lowlevel.checkpoint()


class ClientStream(anyio.abc.ByteStream):
    """The client's face of an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def as_transport(self) -> Transport | None:
        """Return the endpoint as Danube sees a socket; None where it shall see a stream."""
        return self.endpoint.as_transport()

    async def send(self, item: bytes) -> None:
        """Send everything."""
        try:
            await self.endpoint.send(item)
        except ConnectionAbortedError:
            raise anyio.ClosedResourceError from None
        except ConnectionError as error:
            raise anyio.BrokenResourceError from error

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return some bytes."""
        try:
            data = await self.endpoint.receive(max_bytes)
        except ConnectionAbortedError:
            raise anyio.ClosedResourceError from None
        except ConnectionError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send_eof(self) -> None:
        """Close: neither side of Danube's protocol closes one direction alone."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close at once."""
        self.endpoint.close()
        await trio.lowlevel.checkpoint()
