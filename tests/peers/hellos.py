"""Brokers and hellos for the tests of links."""

from __future__ import annotations

from typing import Any

import msgspec

from danube.peers import Peer
from danube.peers.hello import NONCE_BYTES, Acceptor, Greeting, Initiator, Linked, Lives, Proof

SECRET = b"correct horse battery staple"
OTHER_SECRET = b"incorrect horse battery staple"

encode = msgspec.msgpack.encode


def broker(number: int = 1, **changed: Any) -> Peer:
    """Return a broker that is a member of the cluster ``orders``."""
    fields: dict[str, Any] = {
        "cluster": "orders",
        "identity": f"identity-{number}",
        "life": 3,
        "address": f"10.0.0.{number}:6650",
        "level": 2,
        "incarnation": 77,
        "required": 1,
        "broker": number,
        "member": 100 + number,
    }
    return Peer(**(fields | changed))


def nonce(number: int) -> bytes:
    return bytes([number]) * NONCE_BYTES


def lives() -> Lives:
    return Lives(100)


def initiator(own: Peer | None = None, secret: bytes | None = SECRET, number: int = 1) -> Initiator:
    return Initiator(own or broker(1), secret, nonce(number), "b:6650", lives())


def acceptor(
    own: Peer | None = None, secret: bytes | None = SECRET, number: int = 2, remote: str = "10.0.0.1"
) -> Acceptor:
    return Acceptor(own or broker(2), secret, nonce(number), remote, lives())


def exchange(one: Initiator, other: Acceptor) -> tuple[Linked, Linked]:
    """Carry a whole hello; return the results of the initiator and the acceptor."""
    answer, accepted = other.accept(one.prove(other.greet(one.greet())))
    return one.finish(answer), accepted


def greeting(**changed: Any) -> bytes:
    return encode(Greeting(**({"protocol": 1, "keyed": True, "nonce": nonce(9)} | changed)))


def changed_proof(message: bytes, **changed: Any) -> bytes:
    return encode(msgspec.structs.replace(msgspec.msgpack.decode(message, type=Proof), **changed))
