"""An attacker who carries all messages between brokers, and knows everything but the secret.

It starts hellos between any brokers, in any number at a time, delivers, repeats, reflects, truncates and changes any
message that was ever sent, and makes its own. Whatever it does:

* a broker believes in a link only to a broker that has just taken part in the same hello: what one side has sent is
  what the other one has received, and each hello is believed at most once;
* neither the secret nor a token is ever sent.

An attacker that only carries messages unchanged is a cable, and allowed.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hellos import OTHER_SECRET, SECRET, broker, encode
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from danube.model.errors import PeerRefusedError
from danube.peers import hello
from danube.peers.hello import NONCE_BYTES, Acceptor, Greeting, Initiator, Linked, Lives, Proof

BROKERS: Final = (1, 2, 3)
few = st.integers(0, 5)
many = st.integers(0, 500)


class Session:
    """One side of one hello, the messages that it has sent and received, and what it came to believe."""

    def __init__(self, side: Initiator | Acceptor, own: int) -> None:
        self.side = side
        self.own = own
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.linked: Linked | None = None
        self.over = False

    @property
    def expects(self) -> type[Greeting | Proof]:
        """What it can take next."""
        return Greeting if len(self.sent) == isinstance(self.side, Initiator) else Proof

    def take(self, message: bytes) -> None:
        """Deliver a message."""
        self.received.append(message)
        try:
            if isinstance(self.side, Initiator):
                if len(self.sent) == 1:
                    self.sent.append(self.side.prove(message))
                else:
                    self.linked = self.side.finish(message)
            elif not self.sent:
                self.sent.append(self.side.greet(message))
            else:
                answer, self.linked = self.side.accept(message)
                self.sent.append(answer)
        except PeerRefusedError:
            self.over = True
        self.over = self.over or self.linked is not None


class Attacks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Session] = []
        self.known: dict[type[Greeting | Proof], list[bytes]] = {Greeting: [], Proof: []}
        """All messages that were ever sent."""
        self.nonces = 0

    def nonce(self) -> bytes:
        self.nonces += 1
        return self.nonces.to_bytes(NONCE_BYTES, "big")

    def start(self, own: int, *, connects: bool) -> Session:
        side = Initiator if connects else Acceptor
        session = Session(side(broker(own), SECRET, self.nonce(), "somewhere:1", Lives(9)), own)
        self.sessions.append(session)
        if isinstance(session.side, Initiator):
            session.sent.append(session.side.greet())
            self.known[Greeting].append(session.sent[0])
        return session

    def deliver(self, session: Session, message: bytes) -> None:
        before = len(session.sent)
        session.take(message)
        for sent in session.sent[before:]:
            self.known[Proof if session.sent[0] is not sent else Greeting].append(sent)

    def relay(self, initiator: int, acceptor: int, steps: int) -> None:
        one, other = self.start(initiator, connects=True), self.start(acceptor, connects=False)
        for source, target in ((one, other), (other, one), (one, other), (other, one))[:steps]:
            if not target.over:
                self.deliver(target, source.sent[-1])

    @initialize()
    def record(self) -> None:
        """Carry one hello, so that there is something to repeat."""
        self.relay(1, 2, 4)
        assert all(session.linked is not None for session in self.sessions)

    @precondition(lambda self: len(self.sessions) < 20)
    @rule(initiator=st.sampled_from(BROKERS), acceptor=st.sampled_from(BROKERS), steps=st.integers(1, 4))
    def begin(self, initiator: int, acceptor: int, steps: int) -> None:
        """Carry the first messages of a hello between two brokers, or between two ends of the same one."""
        self.relay(initiator, acceptor, steps)

    def opened(self, number: int, *kinds: type[Greeting | Proof]) -> Session:
        """Return a hello in progress that expects a message of these kinds; the attacker begins one if need be."""
        found = [session for session in self.sessions if not session.over and session.expects in kinds]
        if not found:
            self.relay(1 + number % 3, 1 + (number + 1) % 3, 2 if Proof in kinds else 1)
            found = [session for session in self.sessions[-2:] if session.expects in kinds]
        return found[-1 - number % len(found)]

    def sent(self, kind: type[Greeting | Proof], number: int) -> bytes:
        """Return a message of a kind; 0 is the last one."""
        found = self.known[kind]
        return found[-1 - number % len(found)]

    @precondition(lambda self: len(self.sessions) < 20)
    @rule(own=st.sampled_from(BROKERS), connects=st.booleans())
    def start_hello(self, own: int, connects: bool) -> None:
        self.start(own, connects=connects)

    @rule(to=few, message=few)
    def repeat(self, to: int, message: int) -> None:
        """Deliver a message of either side of any hello, perhaps its own."""
        session = self.opened(to, Greeting, Proof)
        self.deliver(session, self.sent(session.expects, message))

    @rule(to=few, message=few)
    def misplace(self, to: int, message: int) -> None:
        session = self.opened(to, Greeting, Proof)
        self.deliver(session, self.sent(Greeting if session.expects is Proof else Proof, message))

    @rule(to=few, message=few, at=many, value=st.integers(1, 255))
    def change_byte(self, to: int, message: int, at: int, value: int) -> None:
        session = self.opened(to, Greeting, Proof)
        data = bytearray(self.sent(session.expects, message))
        data[at % len(data)] ^= value
        self.deliver(session, bytes(data))

    @rule(to=few, message=few, length=many)
    def truncate(self, to: int, message: int, length: int) -> None:
        session = self.opened(to, Greeting, Proof)
        data = self.sent(session.expects, message)
        self.deliver(session, data[: length % len(data)])

    @rule(to=few, nonce=many, keyed=st.booleans())
    def change_greeting(self, to: int, nonce: int, keyed: bool) -> None:
        """Deliver a greeting with a nonce of the past or the future, or one that claims to have no secret."""
        session = self.opened(to, Greeting)
        changed = Greeting(1, keyed, (nonce % (self.nonces + 2)).to_bytes(NONCE_BYTES, "big"))
        self.deliver(session, encode(changed))

    @rule(to=few, message=few, own=st.sampled_from(BROKERS), life=st.sampled_from((3, 4)))
    def change_introduction(self, to: int, message: int, own: int, life: int) -> None:
        """Deliver a proof with another introduction."""
        session = self.opened(to, Proof)
        proof = msgspec.msgpack.decode(self.sent(Proof, message), type=Proof)
        self.deliver(session, encode(Proof(encode(broker(own, life=life)), proof.mac)))

    @rule(to=few, message=few, other=few, kind=st.sampled_from(("other", "empty", "zeros")))
    def change_mac(self, to: int, message: int, other: int, kind: str) -> None:
        """Deliver a proof with the mac of another one, or with none."""
        session = self.opened(to, Proof)
        proof, foreign = (msgspec.msgpack.decode(self.sent(Proof, each), type=Proof) for each in (message, other))
        mac = {"other": foreign.mac, "empty": b"", "zeros": bytes(32)}[kind]
        self.deliver(session, encode(Proof(proof.introduction, mac)))

    @rule(to=few, own=st.sampled_from(BROKERS))
    def guess(self, to: int, own: int) -> None:
        """Prove correctly, with another secret."""
        session = self.opened(to, Proof)
        if isinstance(session.side, Acceptor) and session.sent:
            pretender = Initiator(broker(own), OTHER_SECRET, bytes(NONCE_BYTES), "x:1", Lives(9))
            pretender._said = [session.received[0]]
            self.deliver(session, pretender.prove(session.sent[0]))

    @invariant()
    def every_link_is_agreed_upon(self) -> None:
        for session in self.sessions:
            if session.linked is None:
                continue
            agreed = 2 if isinstance(session.side, Initiator) else 1
            twins = [
                other
                for other in self.sessions
                if type(other.side) is not type(session.side)
                and other.own == session.linked.peer.broker
                and other.sent == session.received
                # The last message of an initiator's own hello may not have arrived yet, or be another one.
                and other.received[:agreed] == session.sent[:agreed]
            ]
            assert len(twins) == 1, f"{session.linked.peer.name} did not take part"
            assert twins[0].own != session.own
            if twins[0].linked is not None:
                assert twins[0].linked.token == session.linked.token
        tokens = [(session.linked.token, type(session.side)) for session in self.sessions if session.linked is not None]
        assert len(tokens) == len(set(tokens)), "one hello was believed twice"

    @invariant()
    def nothing_secret_was_sent(self) -> None:
        sent = b"|".join(self.known[Greeting] + self.known[Proof])
        assert SECRET not in sent
        for session in self.sessions:
            if session.linked is not None:
                assert session.linked.token.encode() not in sent
                assert bytes.fromhex(session.linked.token) not in sent


TestAttacks = Attacks.TestCase
TestAttacks.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def fixed_nonce(self: Attacks) -> bytes:
    return bytes(NONCE_BYTES)


def any_mac(one: bytes, other: bytes) -> bool:
    return len(one) == len(other)


def without_label(secret: bytes, label: str, said: list[bytes]) -> bytes:
    return b"" if secret is None else hello.hmac.digest(secret, encode(said[:2]), "sha256")


def without_introductions(secret: bytes, label: str, said: list[bytes]) -> bytes:
    return b"" if secret is None else hello.hmac.digest(secret, encode([label, *said[:2]]), "sha256")


def without_the_acceptors_nonce(secret: bytes, label: str, said: list[bytes]) -> bytes:
    kept = [each for number, each in enumerate(said) if number != 1]
    return b"" if secret is None else hello.hmac.digest(secret, encode([label, *kept]), "sha256")


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "the same nonce again": (Attacks, "nonce", fixed_nonce),
    "macs are not compared": (hello.hmac, "compare_digest", any_mac),
    "macs without label": (hello, "_mac", without_label),
    "macs without the introductions": (hello, "_mac", without_introductions),
    "macs without the acceptor's nonce": (hello, "_mac", without_the_acceptors_nonce),
    "a broker may link to itself": (hello, "judge", lambda own, peer: ""),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_the_attacker_finds_planted_mistakes(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[planted])
    # The hardest one takes 250 examples on average; which ones are drawn depends on the modules that are imported.
    chosen = settings(
        max_examples=5_000,
        stateful_step_count=20,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(Attacks, settings=chosen)
