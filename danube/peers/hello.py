"""How two brokers recognise each other when a link is opened. Pure.

The broker that connects is the *initiator*, the other one the *acceptor*. They exchange four messages::

    initiator                                                            acceptor
       | -- Greeting(protocol, keyed, nonce) ------------------------------> |
       | <------------------------------ Greeting(protocol, keyed, nonce) -- |
       | -- Proof(introduction, mac) --------------------------------------> |  verifies, then judges
       | <---------------------------------------- Proof(introduction, mac)  |
       verifies, then judges

Each mac is an HMAC-SHA256, with the cluster's secret as its key, over a label for the role and all bytes exchanged so
far, the sender's introduction included: both nonces, and the addresses and identities of both. So

* the secret is never sent, and a change of any field on the way is detected;
* a recorded proof is useless, because the other side's nonce is new;
* a proof that is sent back to its author, or used in the other role, is refused because of its label;
* the acceptor, which anything on the network can reach, neither proves nor introduces itself before the initiator has
  proven that it has the secret.

The result is a token that only these two know. The initiator sends it with each further call on the same connection.
Without a secret there are no macs, and links are limited to one machine (:func:`~danube.model.addresses.is_loopback`).

A hello does not protect the bytes after it: an attacker that can *change* packets between brokers can take over a link
that is up. Only TLS excludes that.

Each refusal is a :class:`~danube.model.errors.PeerRefusedError` whose text is understood on both sides: it names
brokers by their addresses, never "this broker".
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, NamedTuple, TypeVar

import msgspec

from danube.model.addresses import is_loopback, parse_address
from danube.model.decoding import UNDECODABLE
from danube.model.errors import ConfigurationError, PeerRefusedError
from danube.model.tls import PeerCertificate, certified_broker
from danube.peers._contract import Peer

__all__ = [
    "MAX_HELLO_BYTES",
    "NONCE_BYTES",
    "PROTOCOL",
    "Acceptor",
    "Greeting",
    "Initiator",
    "Linked",
    "Lives",
    "Proof",
    "judge",
    "judge_certificate",
    "may_connect",
]

PROTOCOL: Final = 1
"""Version of the hello and of the frames after it (:mod:`danube.peers.frames`)."""
NONCE_BYTES: Final = 32
MAX_HELLO_BYTES: Final = 4096
"""Largest message of a hello."""
MAX_TEXT_CHARS: Final = 255
"""Longest name, identity and address of a broker."""

_SAME_FILE: Final = "start all brokers of the cluster with the same --cluster-secret FILE"

T = TypeVar("T")


class Greeting(msgspec.Struct, frozen=True, array_like=True):
    """The first message of either side."""

    protocol: int
    keyed: bool
    """Whether its sender has a secret."""
    nonce: bytes


class Proof(msgspec.Struct, frozen=True, array_like=True):
    """The second message of either side."""

    introduction: bytes
    """An encoded :class:`danube.peers.Peer`."""
    mac: bytes
    """Empty without a secret."""


class Linked(NamedTuple):
    """The result of a hello."""

    peer: Peer
    """The other broker."""
    token: str
    """Known to both brokers only: names the link in further calls."""


_encode = msgspec.msgpack.Encoder().encode
_greeting = msgspec.msgpack.Decoder(Greeting)
_proof = msgspec.msgpack.Decoder(Proof)
_peer = msgspec.msgpack.Decoder(Peer)


class Initiator:
    """The hello of the broker that connects: :meth:`greet`, :meth:`prove` and :meth:`finish`, once each, in this order.

    Args:
        own: this broker.
        secret: of the cluster; None if it has none.
        nonce: ``NONCE_BYTES`` unpredictable bytes, used for nothing else.
        dialled: the address to which it connects, for error messages.
        lives: the starts of other brokers, as far as they are known.
    """

    def __init__(self, own: Peer, secret: bytes | None, nonce: bytes, dialled: str, lives: Lives) -> None:
        self._own = own
        self._secret = secret
        self._dialled = f"the broker at {dialled}"
        self._lives = lives
        self._nonce = nonce
        self._said: list[bytes] = []

    def greet(self) -> bytes:
        """Return the first message."""
        self._said.append(_encode(Greeting(PROTOCOL, self._secret is not None, self._nonce)))
        return self._said[-1]

    def prove(self, answer: bytes) -> bytes:
        """Take the acceptor's greeting, and return the second message."""
        _check_greeting(answer, self._dialled, f"the broker at {self._own.address}", keyed=self._secret is not None)
        introduction = _encode(self._own)
        self._said += (answer, introduction)
        mac = _mac(self._secret, "initiator", self._said)
        self._said.append(mac)
        return _encode(Proof(introduction, mac))

    def finish(self, answer: bytes) -> Linked:
        """Take the acceptor's proof, and return the link."""
        proof = _decoded(_proof, answer, self._dialled)
        self._said.append(proof.introduction)
        if not hmac.compare_digest(_mac(self._secret, "acceptor", self._said), proof.mac):
            raise PeerRefusedError(
                f"{self._dialled} has another cluster secret than the broker at {self._own.address}; {_SAME_FILE}"
            )
        peer = _introduced(proof.introduction, self._dialled)
        _admit(self._own, peer, self._lives)
        return Linked(peer, _token(self._secret, self._said))


class Acceptor:
    """The hello of the broker to which another one connects: :meth:`greet` and :meth:`accept`, once each.

    Args:
        own: this broker.
        secret: of the cluster; None if it has none.
        nonce: ``NONCE_BYTES`` unpredictable bytes, used for nothing else.
        remote: the host from which the other broker connects; the only thing known about it until it has proven the
            rest.
        lives: the starts of other brokers, as far as they are known.
    """

    def __init__(self, own: Peer, secret: bytes | None, nonce: bytes, remote: str, lives: Lives) -> None:
        self._own = own
        self._secret = secret
        self._remote = f"a broker on {remote}"
        self._here = f"the broker at {own.address}"
        self._lives = lives
        self._nonce = nonce
        self._said: list[bytes] = []
        self._host = remote

    def greet(self, greeting: bytes) -> bytes:
        """Take the initiator's greeting, and return the first message."""
        _check_greeting(greeting, self._remote, self._here, keyed=self._secret is not None)
        if self._secret is None and not is_loopback(self._host):
            raise PeerRefusedError(
                f"{self._here} has no cluster secret, so it takes links from its own machine only, and not from"
                f" {self._host}; {_SAME_FILE}"
            )
        self._said = [greeting, _encode(Greeting(PROTOCOL, self._secret is not None, self._nonce))]
        return self._said[-1]

    def accept(self, message: bytes) -> tuple[bytes, Linked]:
        """Take the initiator's proof; return the second message and the link."""
        proof = _decoded(_proof, message, self._remote)
        self._said.append(proof.introduction)
        mac = _mac(self._secret, "initiator", self._said)
        if not hmac.compare_digest(mac, proof.mac):
            raise PeerRefusedError(f"{self._remote} has another cluster secret than {self._here}; {_SAME_FILE}")
        peer = _introduced(proof.introduction, self._remote)
        _admit(self._own, peer, self._lives)
        introduction = _encode(self._own)
        self._said += (mac, introduction)
        answer = Proof(introduction, _mac(self._secret, "acceptor", self._said))
        return _encode(answer), Linked(peer, _token(self._secret, self._said))


class Lives:
    """The latest start of each broker that this process has linked to, to detect copies of data directories.

    Args:
        most: number of brokers remembered; the one that was seen first is forgotten for another one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: dict[str, tuple[int, str]] = {}

    def examine(self, peer: Peer) -> str:
        """Return why a broker is refused because of its life; empty if it is not. Remembers it in that case."""
        life, address = self._seen.get(peer.identity, (0, ""))
        if peer.life < life:
            return (
                f"{peer.name} says that this is its start number {peer.life}, but start number {life} was seen at"
                f" {address}: its data directory is a copy or was set back; stop it and give it an empty data directory"
            )
        if peer.life == life and peer.address != address:
            return (
                f"{peer.name} has the data directory of the broker at {address}, or a copy of it; stop one of the two,"
                " and give it an empty data directory"
            )
        if peer.identity not in self._seen and len(self._seen) >= self._most:
            del self._seen[next(iter(self._seen))]
        self._seen[peer.identity] = (peer.life, peer.address)
        return ""


def judge(own: Peer, peer: Peer) -> str:
    """Return why two brokers do not belong together, in words that are true on both sides; empty if they do."""
    if peer.cluster != own.cluster:
        return (
            f"{peer.name} belongs to the cluster {peer.cluster!r}, and {own.name} to {own.cluster!r}; correct --cluster"
            " or --peers"
        )
    if peer.identity == own.identity:
        return (
            f"{peer.name} and {own.name} are the same broker, or one has a copy of the other's data directory; list"
            " each broker once, and start each with a data directory of its own"
        )
    if peer.incarnation and own.incarnation and peer.incarnation != own.incarnation:
        return (
            f"{peer.name} belongs to incarnation {peer.incarnation:016x} of the cluster {peer.cluster!r}, and"
            f" {own.name} to incarnation {own.incarnation:016x}: they were formed separately, or the metadata of one"
            " were restored or recovered. The broker that is to become a member of the other's cluster has to give up"
            " its own metadata: stop it, remove the directory 'metadata' and the files 'group-*' from its data"
            " directory, and nothing else (the rest holds its messages), and start it with --join"
        )
    for newer, older in ((own, peer), (peer, own)):
        if older.level < newer.required:
            return (
                f"{older.name} supports feature level {older.level}, and the cluster of {newer.name} needs"
                f" {newer.required}; install a newer version of Danube on the former"
            )
    return ""


def judge_certificate(peer: Peer, certificate: PeerCertificate | None) -> str:
    """Return why a broker is not the one that its certificate names; empty if it is.

    A certificate without the name of a broker (``danube://CLUSTER/broker/ID``) says only that it is one of them.
    """
    named = None if certificate is None else certified_broker(certificate.names)
    if named is None or named == (peer.cluster, peer.broker):
        return ""
    said = f"b{peer.broker} of the cluster" if peer.broker else "a broker without a number in the cluster"
    return (
        f"the broker at {peer.address} says that it is {said} {peer.cluster!r}, and has the certificate of"
        f" b{named.number} of the cluster {named.cluster!r}; give each broker the certificate of its own number"
        " (danube security init --broker), and start it again"
    )


def may_connect(own: Peer, secret: bytes | None, to: str) -> None:
    """Raise PeerRefusedError unless a broker may open a link to an address.

    Without a secret anything that answers at the address would be believed, so it must be on this machine.
    """
    if secret is None and not is_loopback(parse_address(to)[0]):
        raise PeerRefusedError(
            f"the broker at {own.address} has no cluster secret, so it opens links to its own machine only, and not to"
            f" {to}; {_SAME_FILE}, or list addresses like 127.0.0.1:6650"
        )


def _check_greeting(message: bytes, other: str, own: str, *, keyed: bool) -> None:
    greeting = _decoded(_greeting, message, other)
    if greeting.protocol != PROTOCOL:
        raise PeerRefusedError(
            f"{other} speaks version {greeting.protocol} of the protocol between brokers, and {own} version"
            f" {PROTOCOL}; install the same version of Danube on both"
        )
    if greeting.keyed != keyed:
        has, lacks = (other, own) if greeting.keyed else (own, other)
        raise PeerRefusedError(f"{has} has a cluster secret, and {lacks} has none; {_SAME_FILE}")
    if len(greeting.nonce) != NONCE_BYTES:
        raise PeerRefusedError(f"{other} sent an invalid hello: its nonce has {len(greeting.nonce)} bytes")


def _introduced(introduction: bytes, other: str) -> Peer:
    peer = _decoded(_peer, introduction, other)
    if not peer.identity or max(map(len, (peer.cluster, peer.identity, peer.address))) > MAX_TEXT_CHARS:
        raise PeerRefusedError(f"{other} sent an invalid hello: a name is empty or too long")
    numbers = (peer.life, peer.level, peer.required, peer.incarnation, peer.broker, peer.member or 0)
    if min(numbers) < 0 or not peer.address.isprintable():
        raise PeerRefusedError(f"{other} sent an invalid hello: a field is out of range")
    try:
        parse_address(peer.address)
    except ConfigurationError as error:
        raise PeerRefusedError(f"{other} sent an invalid hello: {error}") from error
    return peer


def _admit(own: Peer, peer: Peer, lives: Lives) -> None:
    refusal = judge(own, peer) or lives.examine(peer)
    if refusal:
        raise PeerRefusedError(refusal)


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes, other: str) -> T:
    try:
        return decoder.decode(data)
    except UNDECODABLE as error:
        raise PeerRefusedError(f"{other} sent an invalid hello: {error}") from error


def _mac(secret: bytes | None, label: str, said: list[bytes]) -> bytes:
    if secret is None:
        return b""
    return hmac.digest(secret, _encode([label, *said]), hashlib.sha256)


def _token(secret: bytes | None, said: list[bytes]) -> str:
    return hmac.digest(secret or b"-", _encode(["token", *said]), hashlib.sha256).hex()
