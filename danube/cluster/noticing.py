"""Notices brokers that were killed, before their sessions' time to live is over; see :mod:`danube.cluster.suspects`.

Every broker runs :meth:`Noticing.run`. The coordinator keeps links to all brokers that have a session, and all others
keep one to the coordinator: whose link breaks, and whose port then refuses connections, may be dead. Before a session
is ended, other brokers are asked whether they reach its broker (channel :data:`CHANNEL`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import trio

from danube.cluster.membership import Membership
from danube.cluster.records import SESSIONS, BrokerState, SessionRecord, broker_name, parse_broker
from danube.cluster.suspects import Session, Suspect, Suspects, Verdict, verdict, witnesses
from danube.metadata import MetadataStore, may_pass
from danube.metadata.table import decode_record
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    UnavailableError,
)
from danube.model.ids import BrokerId
from danube.model.log_events import log_event
from danube.peers import Lost, Peer, Peers

__all__ = ["CHANNEL", "Noticing"]

_log = logging.getLogger("danube.cluster")

CHANNEL: Final = "reaching"
"""The channel of calls that ask a broker whether it reaches another one; an empty one asks whether it is there."""
REACH_S: Final = 0.15
"""How long a broker that is asked about another one waits for it."""
ANSWER_S: Final = 0.3
"""How long the answers of other brokers are waited for."""
RETRY_S: Final = 0.1
"""Pause before what could not be decided or done is tried again."""


class _Question(msgspec.Struct, array_like=True):
    """Whether the broker that is asked reaches a start of another one. The answer is a bool."""

    name: str
    life: int


_encode = msgspec.msgpack.Encoder().encode
_QUESTION: Final = msgspec.msgpack.Decoder(_Question)
_ANSWER: Final = msgspec.msgpack.Decoder(bool)
_SESSION: Final = msgspec.msgpack.Decoder(SessionRecord)


class Noticing:
    """One broker's part in noticing dead ones.

    Args:
        store: the metadata.
        membership: of this broker; joined, and running while this runs.
        peers: its links.
        coordinator: returns the broker that coordinates, as far as this one knows. Call :meth:`look_again` when that
            has changed.
    """

    def __init__(
        self, store: MetadataStore, membership: Membership, peers: Peers, coordinator: Callable[[], BrokerId | None]
    ) -> None:
        self._store = store
        self._membership = membership
        self._peers = peers
        self._coordinator = coordinator
        self._suspects = Suspects()
        self._linked: dict[str, str] = {}
        """By broker: the address to which this one keeps a link."""
        self._news = trio.Event()
        peers.on_lost(self._lost)
        peers.on_call(CHANNEL, self._answer)

    def look_again(self) -> None:
        """Look at the sessions and the coordinator: something has changed."""
        self._news.set()

    async def run(self) -> None:
        """Task: end the sessions of brokers that are dead.

        Raises:
            DataLossError: the record of a session does not decode.
            DanubeError: the metadata store failed for good, for example because it was closed.
        """
        self._membership.on_change.append(self.look_again)
        while True:
            self._news = trio.Event()
            self._keep_links()
            for suspect in self._due():
                await self._judge(suspect)
            if self._suspects.names:
                with trio.move_on_after(RETRY_S):
                    await self._news.wait()
            else:
                await self._news.wait()

    # --- Links

    def _sessions(self) -> dict[str, Session]:
        table = self._membership.sessions
        return {name: Session(record.life, table.revision(name)) for name, record in table.values.items()}

    def _keep_links(self) -> None:
        """Keep a link to the coordinator, or as the coordinator to all brokers."""
        coordinator, me = self._coordinator(), self._membership.me
        self._drop_links()
        for name, record in list(self._membership.sessions.values.items()):
            broker = parse_broker(name)
            if broker == me or coordinator not in (me, broker):
                continue
            linked = self._linked.get(name)
            if linked == record.address:
                continue
            if linked is not None and list(self._linked.values()).count(linked) == 1:
                self._peers.unlink(linked)
            self._linked[name] = record.address
            try:
                self._peers.link(record.address)
            except (LimitExceededError, ConfigurationError) as error:
                _log.warning(
                    "if broker %s is killed this broker does not notice it at once: %s",
                    name,
                    error,
                    extra=log_event("cluster.kill_unnoticed", broker=name),
                )

    def _drop_links(self) -> None:
        """Close the links to brokers that were removed from the cluster. Those of others that are away are kept."""
        sessions, brokers = self._membership.sessions.values, self._membership.brokers.values
        for name in [each for each in self._linked if each not in sessions]:
            record = brokers.get(name)
            if record is not None and record.state is not BrokerState.GONE:
                continue
            address = self._linked.pop(name)
            if address not in self._linked.values():  # else another broker has started there
                self._peers.unlink(address)

    # --- Hints

    def _lost(self, lost: Lost) -> None:
        brokers = self._membership.brokers.values
        name = next((each for each, record in brokers.items() if record.identity == lost.peer.identity), "")
        if self._suspects.hint(name, lost.peer.life, self._sessions(), trio.current_time()):
            self._news.set()

    def _due(self) -> Sequence[Suspect]:
        member, now = self._membership, trio.current_time()
        self._suspects.see(self._sessions(), member.brokers.values.keys(), now)
        if not self._suspects.names or not member.is_certain():
            return ()
        coordinator = self._coordinator()
        return self._suspects.due(member.broker, None if coordinator is None else broker_name(coordinator), now)

    async def _judge(self, suspect: Suspect) -> None:
        """End the session of a broker, unless another one reaches it."""
        sessions = self._membership.sessions.values
        record = sessions.get(suspect.name)
        if record is None:
            return
        if self._is_linked(record.address, suspect.session.life):
            self._suspects.acquit(suspect.name)
            return
        asked = witnesses(self._membership.broker, suspect.name, sessions, self._suspects.names)
        answers = await self._ask([sessions[name].address for name in asked], suspect)
        found = verdict(answers)
        if found is Verdict.ACQUITTED:
            _log.warning(
                "broker %s refuses connections of this one, and others reach it: check the network between the two",
                suspect.name,
                extra=log_event("cluster.unreachable", broker=suspect.name),
            )
            self._suspects.acquit(suspect.name)
        elif found is Verdict.DEAD:
            try:
                await self._end(suspect)
            except DanubeError as error:
                if not may_pass(error):
                    raise
                _log.info("the session of broker %s cannot be ended yet: %s", suspect.name, error)

    async def _end(self, suspect: Suspect) -> None:
        item = await self._store.get(SESSIONS + suspect.name)
        if item is not None and item.mod_revision == suspect.session.revision and item.lease is not None:
            assert decode_record(item, _SESSION.decode).life == suspect.session.life
            with suppress(NotFoundError):
                await self._store.revoke(item.lease)
            _log.warning(
                "the session of broker %s was ended: its links broke, and its port refuses connections",
                suspect.name,
                extra=log_event("cluster.session_ended", broker=suspect.name),
            )
        self._suspects.acquit(suspect.name)

    # --- Asking others

    def _is_linked(self, address: str, life: int) -> bool:
        peer = self._peers.peer(address)
        return peer is not None and peer.life == life

    async def _ask(self, addresses: Sequence[str], suspect: Suspect) -> list[bool]:
        """Ask brokers whether they reach another one; return the answers that came in time."""
        question = _encode(_Question(suspect.name, suspect.session.life))
        answers: list[bool] = []

        async def ask(address: str) -> None:
            try:
                answers.append(_ANSWER.decode(await self._peers.call(address, CHANNEL, question, ANSWER_S)))
            except (DanubeError, *UNDECODABLE) as error:
                _log.info("%s was asked about broker %s, and has not answered: %s", address, suspect.name, error)

        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(ask, address)
        return answers

    async def _answer(self, peer: Peer, payload: bytes) -> bytes:
        if not payload:
            return b""
        try:
            question = _QUESTION.decode(payload)
        except UNDECODABLE as error:
            raise InvalidArgumentError(f"this version of Danube does not know what was asked ({error})") from error
        record = self._membership.sessions.values.get(question.name)
        if record is None or record.life != question.life:
            # It may be newer than what this broker has seen, which says nothing about whether it runs.
            raise UnavailableError(f"this broker knows no session of {question.name!r} of start {question.life}")
        with suppress(DanubeError):  # what counts is whether the link is up afterwards
            await self._peers.call(record.address, CHANNEL, b"", REACH_S)
        return _encode(self._is_linked(record.address, question.life))
