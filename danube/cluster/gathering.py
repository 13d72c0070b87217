"""The shell of forming: asks the listed brokers for their standing until the rules decide, and answers theirs.

A broker registers its answer before it asks, and keeps answering as a member: brokers of the list that start late, or
with a new disk, ask it then. What it answers changes only once its founding is stored in the data directory: after a
crash it must not form anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import msgspec
import trio

from danube.cluster.forming import Founding, Join, Standing, Wait, decide
from danube.model.decoding import UNDECODABLE
from danube.model.errors import ConfigurationError, DanubeError
from danube.model.log_events import log_event

__all__ = ["CHANNEL", "Calls", "Gathering"]

_log = logging.getLogger("danube.cluster")

CHANNEL: Final = "forming"
"""The channel of these calls between brokers. An answer is an encoded :class:`~danube.cluster.forming.Standing`."""
ASK_S: Final = 0.5
"""Pause between two rounds of questions."""
ANSWER_S: Final = 2.0
"""How long a broker may take to answer."""
REPORT_S: Final = 10.0
"""How often a broker that waits logs for which others."""

_encode = msgspec.msgpack.Encoder().encode
_STANDING: Final = msgspec.msgpack.Decoder(Standing)


class Calls(Protocol):
    """The part of the links between brokers that forming needs."""

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """Call the handler of a channel at the broker with an address, and return its answer."""
        ...


class Gathering:
    """This broker's standing, and its questions to others.

    Args:
        calls: links to the other brokers.
        own: this broker's entry in the list.
        standing: its own; with a founding if it was a member before it was started.
    """

    def __init__(self, calls: Calls, own: str, standing: Standing) -> None:
        self._calls = calls
        self._own = own
        self._answers: dict[str, Standing] = {}
        self._reasons: dict[str, str] = {}
        self.standing = standing

    async def answer(self, payload: bytes) -> bytes:
        """Answer another broker's question, of :data:`CHANNEL`."""
        await trio.lowlevel.checkpoint()
        return _encode(self.standing)

    async def decide(self, store: Callable[[Founding], Awaitable[None]]) -> Founding | Join:
        """Ask until the rules decide, and return the decision.

        Args:
            store: stores a founding in the data directory, synced. Others learn of it only afterwards.

        Raises:
            ConfigurationError: the lists, names or directories of the brokers do not fit together.
            DanubeError: the founding cannot be stored.
        """
        reported_at = -REPORT_S
        while True:
            await self._ask()
            decision = decide(self._own, self.standing, self._answers)
            if isinstance(decision, Founding):
                await store(decision)
                self.become(decision, decision.incarnation)
                _log.info("the cluster %r is formed by %s", decision.cluster, ", ".join(decision.addresses))
                return decision
            if isinstance(decision, Join):
                return decision
            if trio.current_time() - reported_at >= REPORT_S:
                reported_at = trio.current_time()
                _log.warning(
                    "waiting for the brokers of --peers that have not answered: %s",
                    self._missing(decision),
                    extra=log_event("cluster.brokers_missing"),
                )
            await trio.sleep(ASK_S)

    def become(self, founding: Founding | None, incarnation: int) -> None:
        """Answer as a member of a cluster from now on."""
        self.standing = msgspec.structs.replace(self.standing, founding=founding, incarnation=incarnation)

    def _missing(self, wait: Wait) -> str:
        return "; ".join(f"{address} ({self._reasons.get(address, 'no answer yet')})" for address in wait.missing)

    async def _ask(self) -> None:
        """Ask all other brokers at once. What they answered before is replaced, or stays if they do not answer."""
        async with trio.open_nursery() as nursery:
            for address in self.standing.peers:
                if address != self._own:
                    nursery.start_soon(self._ask_one, address)

    async def _ask_one(self, address: str) -> None:
        try:
            answer = _STANDING.decode(await self._calls.call(address, CHANNEL, b"", ANSWER_S))
        except ConfigurationError:
            raise
        except UNDECODABLE as error:
            raise ConfigurationError(
                f"the broker at {address} answers with something that this version does not understand ({error});"
                " install the same version of Danube on all brokers"
            ) from error
        except DanubeError as error:
            self._reasons[address] = str(error)
        else:
            self._answers[address] = answer

    @property
    def answers(self) -> Mapping[str, Standing]:
        """What the others have answered so far."""
        return self._answers
