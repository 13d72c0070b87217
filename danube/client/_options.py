"""Options of a client: timeouts, retry delays, and the seams that a simulation replaces."""

from __future__ import annotations

import random as _random
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from anyio.abc import ByteStream

from danube.client._checks import check_seconds
from danube.client._credentials import Credentials
from danube.client._instruments import Instruments
from danube.model.addresses import is_loopback
from danube.model.errors import ConfigurationError, InvalidArgumentError
from danube.model.limits import Limits, check_limits
from danube.wire.client import ClientTls

__all__ = ["Backoff", "ClientOptions", "Connect", "Environment"]

Connect: TypeAlias = Callable[[str, int], Awaitable[ByteStream]]
"""Opens a byte stream to ``(host, port)``."""


def _wall_clock_us() -> int:
    return time.time_ns() // 1000


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The external dependencies of a client: the seams that tests and simulations replace."""

    connect: Connect | None = None
    """Opens the connection; None opens a TCP connection."""
    clock_us: Callable[[], int] = _wall_clock_us
    """Wall clock for publish times, in microseconds since the epoch."""
    random: _random.Random = msgspec.field(default_factory=_random.SystemRandom)
    """For generated names and jitter."""

    def random_name(self, kind: str) -> str:
        """Return a unique name, such as ``producer-1f0c...`` (64 random bits)."""
        return f"{kind}-{self.random.getrandbits(64):016x}"


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a client; :func:`danube.connect` takes the same names as keyword arguments."""

    connect_timeout_s: float = 5.0
    """For one address: TCP connection and HTTP/2 handshake."""
    request_timeout_s: float = 30.0
    """For one unary call, with all its attempts, connecting included; and for opening a producer or consumer."""
    reconnect_initial_s: float = 0.1
    """Delay before the second attempt to reconnect; it doubles with each further one, and is jittered."""
    reconnect_max_s: float = 5.0
    """Longest delay between two attempts."""
    reconnect_timeout_s: float | None = 60.0
    """How long the client tries to restore a lost connection before its users see the loss; None: forever."""
    close_timeout_s: float = 10.0
    """How long leaving a producer waits for its messages, and leaving a consumer for its acknowledgements."""
    limits: Limits = Limits()
    """Sizes and keep-alive times of this side of the connection."""
    environment: Environment = msgspec.field(default_factory=Environment)
    """Seams for tests and simulations."""
    tls: ClientTls | None = None
    """Verifies brokers; None: connections are opened without TLS."""
    telemetry: Instruments | None = None
    """Traces and measures; None: nothing does."""
    credentials: Credentials | None = None
    """What the client proves itself with; None: nothing."""

    def __post_init__(self) -> None:
        try:
            for name in ("connect_timeout_s", "request_timeout_s", "reconnect_initial_s", "reconnect_max_s"):
                check_seconds(name, getattr(self, name))
            check_seconds("close_timeout_s", self.close_timeout_s, zero=True)
            if self.reconnect_timeout_s is not None:
                check_seconds("reconnect_timeout_s", self.reconnect_timeout_s, zero=True)
        except InvalidArgumentError as error:
            raise ConfigurationError(error.message) from None
        for name, kind in (("limits", Limits), ("environment", Environment)):
            if not isinstance(getattr(self, name), kind):
                raise ConfigurationError(f"{name} is a {kind.__name__}, not {type(getattr(self, name)).__name__}")
        if self.telemetry is not None and not isinstance(self.telemetry, Instruments):
            raise ConfigurationError(f"telemetry is a Telemetry, not {type(self.telemetry).__name__}")
        check_limits(self.limits)

    def may_prove(self, host: str) -> bool:
        """Return whether the client may send what credentials it has to a host: with TLS, or on this machine."""
        return not self.credentials or self.tls is not None or self.environment.connect is not None or is_loopback(host)

    def backoff(self) -> Backoff:
        """Return the delays of one series of attempts."""
        return Backoff(self.reconnect_initial_s, self.reconnect_max_s, self.environment.random)


class Backoff:
    """Delays between attempts: doubling up to a maximum, each shortened by up to half at random.

    The jitter keeps a thousand clients from reconnecting to a restarted broker at the same moment.
    """

    __slots__ = ("_initial_s", "_max_s", "_next_s", "_random")

    def __init__(self, initial_s: float, max_s: float, random: _random.Random) -> None:
        self._initial_s = self._next_s = initial_s
        self._max_s = max_s
        self._random = random

    def next_delay_s(self) -> float:
        """Return the delay before the next attempt."""
        delay_s = min(self._next_s, self._max_s)
        self._next_s = delay_s * 2
        return delay_s * (1 - self._random.random() / 2)

    def reset(self) -> None:
        """Start again from the first delay, after a success."""
        self._next_s = self._initial_s
