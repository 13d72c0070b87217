"""A simulated network in memory: hosts, links with latency, and faults of both.

Connections are byte streams, as in TCP: nothing is lost or reordered *within* one, but bytes arrive late, in
pieces of any size, or not at all any more. Faults of links and hosts:

* **cut**: nothing passes while it lasts, in both directions or in one. Sent bytes wait (as TCP would repeat them), new
  connections hang. Afterwards everything continues, late, unless a timeout has ended it.
* **reset**: the connections of a link break on both sides; bytes in flight are lost.
* **stops reading**: a host takes no more bytes from its connections of a link, and continues to send, like a stuck
  application: arriving bytes fill the window.
* **half-open**: an intermediary forgets a connection. Both sides can send, but never receive anything.
* **crash** of a host: its connections are gone. After a kill the kernel notifies the peers; after a power loss there is
  no notification, until the peer sends data to the restarted host, which does not know the connection.

A stream's window bounds the bytes in flight, so that a reader that does not read stops its writer. One
:class:`Endpoint` is wrapped in two ways: as a Trio stream for the broker, as an anyio stream for the client.
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
        """Open connections by number: a dict, because it keeps the order of creation."""


class Link:
    """The link between two hosts."""

    def __init__(self) -> None:
        self.cut = False
        self.cut_to: list[str] = []
        """Hosts that nothing reaches on this link, though they can send."""
        self.latency_s = 0.0005

    def cuts(self, host: str) -> bool:
        """Whether nothing reaches a host on this link."""
        return self.cut or host in self.cut_to


class Endpoint:
    """One side of a connection. ``receive`` and ``send`` raise ConnectionError when it is broken."""

    def __init__(self, network: Network, host: Host, link: Link, number: int) -> None:
        self.peer: Endpoint
        self.number = number
        self.host = host
        self._network = network
        self._link = link
        self._arriving: deque[tuple[float, bytes]] = deque()
        """Data from the peer: (arrival, bytes); empty bytes are its end."""
        self._on_the_way = 0
        self._last_arrival = 0.0
        self._reset_at = math.inf
        self._closed = False
        self._deaf = False
        """The peer has silently forgotten this connection."""
        self._blind = False
        """Sent data vanishes without an answer."""
        self._reads = True
        self._reader: Task | None = None
        self._writer: Task | None = None
        self._clock = network.clock

    # --- Called by the owner

    async def receive(self, max_bytes: int) -> bytes:
        """Return some bytes; empty at the end. One task at a time."""
        waited = False
        while True:
            now = self._clock.now
            self._check(now)
            arrived = self._arriving and self._arriving[0][0] <= now
            if arrived and self._reads and not self._link.cuts(self.host.name):
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
            return b""  # the end is permanent
        arrival, _ = self._arriving.popleft()
        if self._network.joins_reads:
            data = self._join(data, max_bytes)
        if len(data) > max_bytes or self._network.random.random() < self._network.short_reads:
            size = self._network.random.randint(1, min(len(data), max_bytes))
            if size < len(data):
                self._arriving.appendleft((arrival, data[size:]))
                data = data[:size]
        self._on_the_way -= len(data)
        self.peer._wake_writer()
        self._network.bytes_delivered += len(data)
        return data

    def _join(self, data: bytes, max_bytes: int) -> bytes:
        """Add to arrived data what has arrived behind it, up to ``max_bytes``; the rest stays."""
        now, size, pieces = self._clock.now, len(data), [data]
        while size < max_bytes and self._arriving and self._arriving[0][0] <= now and self._arriving[0][1]:
            pieces.append(self._arriving.popleft()[1])
            size += len(pieces[-1])
        data = b"".join(pieces)
        if size > max_bytes:
            self._arriving.appendleft((now, data[max_bytes:]))
        return data[:max_bytes]

    def send_now(self, data: bytes | memoryview) -> int:
        """Send the part that fits into the window, as a non-blocking socket does; return the number of bytes."""
        self._check(self._clock.now)
        room = WINDOW_BYTES - self.peer._on_the_way
        if room <= 0:
            return 0
        self._push(bytes(data[:room]))
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
            # The peer does not know this connection (any more): it answers with a reset, if it is reachable.
            # Behind a cut or a dead host the bytes vanish, and are repeated until a timeout.
            peer._on_the_way += len(data)
            if peer.host.up and not self._link.cut and not self._link.cut_to:
                self.break_at(self._clock.now + 2 * self._network.latency(self._link))
            return
        arrival = max(peer._last_arrival, self._clock.now + self._network.latency(self._link))
        peer._last_arrival = arrival
        peer._arriving.append((arrival, data))
        peer._on_the_way += len(data)
        self._clock.call_at(arrival, peer._wake_reader)

    def close(self) -> None:
        """Close both directions at once; sent bytes are still delivered, as by the kernel."""
        if self._closed:
            return
        self._closed = True
        self.host.endpoints.pop(self.number, None)
        now = self._clock.now
        if now < self._reset_at and not (self._deaf or self._blind or self.peer._closed):
            if any(arrival <= now and data for arrival, data in self._arriving):
                # Unread bytes: the kernel sends a reset, and data in flight to this side is lost with it.
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
        """Return this as a socket transport of Danube; None if a stream is to be used."""
        return _Socket(self) if self._network.like_sockets else None

    # --- Called by the network

    def break_at(self, time_s: float) -> None:
        """Reset the connection at this side at a given time."""
        if time_s < self._reset_at:
            self._reset_at = time_s
            self._clock.call_at(time_s, self._wake)

    def forget(self, *, silently: bool) -> None:
        """Drop this side with its host; the peer is notified now, or when it sends, or never."""
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
    """An endpoint in the form of a real socket: see :class:`danube.wire._transport.SocketTransport`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; empty at the end."""
        try:
            return await self._endpoint.receive(max_bytes)
        except ConnectionError as error:
            raise _lost(error) from error

    def send_now(self, data: bytes | memoryview) -> int:
        """Send the part that fits into the window."""
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
    """A listening port."""

    def __init__(self, host: Host, port: int) -> None:
        self._host = host
        self._port = port
        self._send, self._receive = trio.open_memory_channel[Endpoint](_BACKLOG)
        self.closed = False

    def __str__(self) -> str:
        return f"{self._host.name}:{self._port}"

    def arrive(self, endpoint: Endpoint) -> None:
        """Network: deliver an incoming connection."""
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
        """Stop listening; connections not yet accepted are reset."""
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
    """Hosts and links, created when they are first named.

    Args:
        random: the only source of randomness.
        trace: receives faults and the starts and ends of connections.
    """

    def __init__(self, random: Random, trace: Trace) -> None:
        clock = simulated_clock()
        if clock is None:
            raise InternalError("a simulated network needs a run with a simulated clock")
        self.clock: SimulatedClock = clock
        self.random = random
        self.like_sockets = True
        """Whether Danube sees sockets here, which accept what fits at once; otherwise streams, as with TLS."""
        self.short_reads = 0.0
        """Probability that a read returns less than is available."""
        self.joins_reads = False
        """Whether a read returns all that has arrived, as from a kernel; otherwise at most the bytes of one write."""
        self.bytes_delivered = 0
        self._trace = trace
        self._hosts: dict[str, Host] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._number = 0

    def host(self, name: str) -> Host:
        """Return a host."""
        return self._hosts.setdefault(name, Host(name))

    def link(self, one: str, other: str) -> Link:
        """Return the link between two hosts."""
        return self._links.setdefault((min(one, other), max(one, other)), Link())

    def latency(self, link: Link) -> float:
        """Return the delay of the next bytes."""
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
        """Connect; hangs while the link is cut in any direction or the host is down; OSError if the port is closed."""
        link, host = self.link(source, target), self.host(target)
        while True:
            await sleep(2 * self.latency(link))
            if not link.cut and not link.cut_to and host.up:
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
        """Cut a link, or restore it."""
        link = self.link(one, other)
        link.cut = cut
        self._trace("link-cut" if cut else "link-mended", one, other)
        for endpoint in self._between(one, other):
            endpoint._wake()
            endpoint.peer._wake()

    def set_one_way_cut(self, source: str, target: str, cut: bool) -> None:
        """Cut a link in one direction, or restore it: ``target`` receives nothing from ``source``."""
        cut_to = self.link(source, target).cut_to
        if cut and target not in cut_to:
            cut_to.append(target)
        elif not cut and target in cut_to:
            cut_to.remove(target)
        self._trace("one-way-cut" if cut else "one-way-mended", source, target)
        for endpoint in self._between(target, source):
            endpoint._wake()

    def mend(self, one: str, other: str) -> None:
        """Restore a link, whatever was cut; its latency stays."""
        link = self.link(one, other)
        if link.cut:
            self.set_cut(one, other, cut=False)
        for target in list(link.cut_to):
            self.set_one_way_cut(other if target == one else one, target, cut=False)

    def reset(self, one: str, other: str) -> None:
        """Break the connections of a link; both sides are notified at once."""
        for endpoint in self._between(one, other):
            self._trace("reset", one, other, endpoint.number)
            endpoint.break_at(self.clock.now)
            endpoint.peer.break_at(self.clock.now)

    def set_reading(self, reader: str, sender: str, reads: bool) -> None:
        """Stop or resume a host's reading from its present connections with another host."""
        for endpoint in self._between(reader, sender):
            self._trace("reads" if reads else "stops-reading", reader, sender, endpoint.number)
            endpoint._reads = reads
            endpoint._wake_reader()

    def half_open(self, one: str, other: str) -> None:
        """Make an intermediary forget the connections of a link: all data sent on them vanishes."""
        for endpoint in self._between(one, other):
            self._trace("half-open", one, other, endpoint.number)
            endpoint._blind = endpoint.peer._blind = True

    def crash(self, name: str, *, silently: bool) -> None:
        """Remove a host with all its connections and ports; ``silently`` as after a power loss."""
        host = self.host(name)
        host.up = False
        for listener in list(host.listeners.values()):
            listener.close()
        for endpoint in list(host.endpoints.values()):
            endpoint.forget(silently=silently)
        if not silently:
            host.up = True  # the machine is up and refuses

    def power_on(self, name: str) -> None:
        """Restart a host: it does not know its former connections."""
        self.host(name).up = True

    def _between(self, one: str, other: str) -> list[Endpoint]:
        return [endpoint for endpoint in self.host(one).endpoints.values() if endpoint.peer.host.name == other]


class ServerStream(trio.abc.Stream):
    """An endpoint as a Trio stream for the broker."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def as_transport(self) -> Transport | None:
        """Return the endpoint as a socket transport; None if a stream is to be used."""
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
    """An endpoint as an anyio stream for the client."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def as_transport(self) -> Transport | None:
        """Return the endpoint as a socket transport; None if a stream is to be used."""
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
