"""The hello: who is linked, and who is refused with which words."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hellos import (
    OTHER_SECRET,
    SECRET,
    acceptor,
    broker,
    changed_proof,
    encode,
    exchange,
    greeting,
    initiator,
    lives,
    nonce,
)

from danube.model.addresses import is_loopback
from danube.model.errors import PeerRefusedError, exit_code
from danube.peers import Peer, hello
from danube.peers.hello import MAX_HELLO_BYTES, Lives, Proof, judge, may_connect


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(PeerRefusedError) as caught:
        work()
    assert exit_code(caught.value) == 78
    return str(caught.value)


@pytest.mark.parametrize("secret", [SECRET, None])
def test_both_sides_know_each_other_and_share_a_token(secret: bytes | None) -> None:
    at_initiator, at_acceptor = exchange(initiator(secret=secret), acceptor(secret=secret, remote="127.0.0.1"))
    assert at_initiator.peer == broker(2)
    assert at_acceptor.peer == broker(1)
    assert at_initiator.token == at_acceptor.token
    assert len(at_initiator.token) == 64


def test_tokens_of_two_hellos_differ() -> None:
    tokens = {exchange(initiator(number=one), acceptor(number=other))[0].token for one in (1, 3) for other in (2, 4)}
    assert len(tokens) == 4


def test_the_token_depends_on_the_secret() -> None:
    tokens = {exchange(initiator(secret=each), acceptor(secret=each))[0].token for each in (SECRET, OTHER_SECRET)}
    assert len(tokens) == 2


def test_the_token_is_no_function_of_what_was_sent() -> None:
    said = [b"a", b"b", b"c"]
    assert len({hello._token(secret, said) for secret in (SECRET, OTHER_SECRET, None)}) == 3


def test_neither_secret_nor_token_is_sent() -> None:
    one, other = initiator(), acceptor()
    said = [one.greet()]
    said.append(other.greet(said[0]))
    said.append(one.prove(said[1]))
    answer, linked = other.accept(said[2])
    said.append(answer)
    everything = b"".join(said)
    assert SECRET not in everything
    assert linked.token.encode() not in everything
    assert bytes.fromhex(linked.token) not in everything
    assert max(map(len, said)) <= MAX_HELLO_BYTES


def test_the_acceptor_says_nothing_about_itself_before_the_initiator_has_proven_the_secret() -> None:
    one, other = initiator(), acceptor()
    answer = other.greet(one.greet())
    assert len(answer) < 50
    own = broker(2)
    for secret in (own.cluster, own.identity, own.address):
        assert secret.encode() not in answer


# -- the secret


def test_an_initiator_with_another_secret_is_refused() -> None:
    assert refusal(lambda: exchange(initiator(secret=OTHER_SECRET), acceptor())) == (
        "a broker on 10.0.0.1 has another cluster secret than the broker at 10.0.0.2:6650; start all brokers of the"
        " cluster with the same --cluster-secret FILE"
    )


def test_an_acceptor_with_another_secret_is_refused() -> None:
    one, honest, other = initiator(), acceptor(), acceptor(secret=OTHER_SECRET)
    greeted = one.greet()
    answer = other.greet(greeted)
    one.prove(answer)
    # What an acceptor without the secret can say: a proof of its own, for an initiator of its own.
    stranger = initiator(secret=OTHER_SECRET)
    stranger.greet()
    forged, _ = other.accept(stranger.prove(answer))
    assert refusal(lambda: one.finish(forged)) == (
        "the broker at b:6650 has another cluster secret than the broker at 10.0.0.1:6650; start all brokers of the"
        " cluster with the same --cluster-secret FILE"
    )
    assert honest is not other


def test_a_broker_without_a_secret_is_refused_by_one_with_a_secret_and_the_other_way_round() -> None:
    assert refusal(lambda: exchange(initiator(secret=None), acceptor())) == (
        "the broker at 10.0.0.2:6650 has a cluster secret, and a broker on 10.0.0.1 has none; start all brokers of the"
        " cluster with the same --cluster-secret FILE"
    )
    assert refusal(lambda: exchange(initiator(), acceptor(secret=None, remote="127.0.0.1"))) == (
        "a broker on 127.0.0.1 has a cluster secret, and the broker at 10.0.0.2:6650 has none; start all brokers of the"
        " cluster with the same --cluster-secret FILE"
    )
    one = initiator()
    one.greet()
    assert refusal(lambda: one.prove(greeting(keyed=False))) == (
        "the broker at 10.0.0.1:6650 has a cluster secret, and the broker at b:6650 has none; start all brokers of the"
        " cluster with the same --cluster-secret FILE"
    )


def test_without_a_secret_links_come_from_the_same_machine_only() -> None:
    other = acceptor(secret=None, remote="10.0.0.1")
    assert refusal(lambda: other.greet(greeting(keyed=False))) == (
        "the broker at 10.0.0.2:6650 has no cluster secret, so it takes links from its own machine only, and not from"
        " 10.0.0.1; start all brokers of the cluster with the same --cluster-secret FILE"
    )
    acceptor(secret=None, remote="::1").greet(greeting(keyed=False))


def test_without_a_secret_links_lead_to_the_same_machine_only() -> None:
    assert refusal(lambda: may_connect(broker(1), None, "10.0.0.2:6650")) == (
        "the broker at 10.0.0.1:6650 has no cluster secret, so it opens links to its own machine only, and not to"
        " 10.0.0.2:6650; start all brokers of the cluster with the same --cluster-secret FILE, or list addresses like"
        " 127.0.0.1:6650"
    )
    may_connect(broker(1), None, "127.0.0.1:6650")
    may_connect(broker(1), SECRET, "10.0.0.2:6650")


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("ServerStream", False),
        ("", False),
    ],
)
def test_loopback_addresses(host: str, here: bool) -> None:
    assert is_loopback(host) is here


# -- replayed, reflected, changed


def test_a_recorded_proof_is_refused_by_a_later_hello() -> None:
    one, other = initiator(), acceptor()
    greeted = one.greet()
    proof = one.prove(other.greet(greeted))
    other.accept(proof)
    later = acceptor(number=5)
    later.greet(greeted)
    assert "another cluster secret" in refusal(lambda: later.accept(proof))


def test_a_recorded_answer_is_refused_by_a_later_hello() -> None:
    one, other = initiator(), acceptor()
    greeted = other.greet(one.greet())
    answer, _ = other.accept(one.prove(greeted))
    one.finish(answer)
    later = initiator(number=5)
    later.greet()
    later.prove(greeted)
    assert "another cluster secret" in refusal(lambda: later.finish(answer))


def test_a_proof_that_comes_back_to_its_author_is_refused() -> None:
    one = initiator()
    proof = one.prove(one.greet())
    assert "another cluster secret" in refusal(lambda: one.finish(proof))


def test_the_macs_of_both_roles_differ_for_equal_words() -> None:
    # A broker that links to itself: everything but the labels could be equal.
    said = [b"a", b"b", b"c"]
    assert hello._mac(SECRET, "initiator", said) != hello._mac(SECRET, "acceptor", said)
    assert hello._mac(SECRET, "token", said).hex() != hello._mac(SECRET, "initiator", said).hex()


def test_macs_and_tokens_are_hmacs_with_the_secret_as_key() -> None:
    def expected(label: str) -> bytes:
        return hmac.new(SECRET, msgspec.msgpack.encode([label, b"a", b"b"]), "sha256").digest()

    assert hello._mac(SECRET, "initiator", [b"a", b"b"]) == expected("initiator")
    assert hello._token(SECRET, [b"a", b"b"]) == expected("token").hex()


def test_words_cannot_be_shifted_between_fields() -> None:
    assert hello._mac(SECRET, "initiator", [b"ab", b"c"]) != hello._mac(SECRET, "initiator", [b"a", b"bc"])


def test_a_broker_that_is_relayed_to_itself_is_refused() -> None:
    own = broker(1)
    text = refusal(lambda: exchange(initiator(own), acceptor(own)))
    assert text == (
        "broker b1 at 10.0.0.1:6650 and broker b1 at 10.0.0.1:6650 are the same broker, or one has a copy of the"
        " other's data directory; list each broker once, and start each with a data directory of its own"
    )


@pytest.mark.parametrize("field", Peer.__struct_fields__)
def test_a_changed_introduction_is_refused_by_either_side(field: str) -> None:
    value = getattr(broker(1), field)
    changed = encode(msgspec.structs.replace(broker(1), **{field: f"{value}x" if isinstance(value, str) else 9}))
    one, other = initiator(), acceptor()
    proof = one.prove(other.greet(one.greet()))
    assert "another cluster secret" in refusal(lambda: other.accept(changed_proof(proof, introduction=changed)))
    one, other = initiator(), acceptor()
    answer, _ = other.accept(one.prove(other.greet(one.greet())))
    assert "another cluster secret" in refusal(lambda: one.finish(changed_proof(answer, introduction=changed)))


@pytest.mark.parametrize("field", ["protocol", "nonce"])
def test_a_changed_greeting_is_refused(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change = {"protocol": 2, "nonce": nonce(8)}[field]
    one, other = initiator(), acceptor()
    greeted = msgspec.msgpack.decode(one.greet())
    greeted[{"protocol": 0, "nonce": 2}[field]] = change
    monkeypatch.setattr(hello, "_check_greeting", lambda *args, **kwargs: None)
    proof = one.prove(other.greet(encode(greeted)))
    assert "another cluster secret" in refusal(lambda: other.accept(proof))


def test_a_mac_without_a_secret_is_empty_and_one_is_refused() -> None:
    one, other = initiator(secret=None), acceptor(secret=None, remote="127.0.0.1")
    proof = one.prove(other.greet(one.greet()))
    assert msgspec.msgpack.decode(proof, type=Proof).mac == b""
    refusal(lambda: other.accept(changed_proof(proof, mac=b"x")))


def test_macs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hello.hmac, "compare_digest", compare)
    exchange(initiator(), acceptor())
    assert [len(each) for pair in compared for each in pair] == [32] * 4


@pytest.mark.parametrize("length", range(0, 200, 7))
def test_truncated_messages_are_refused(length: int) -> None:
    one, other = initiator(), acceptor()
    greeted = one.greet()
    if length < len(greeted):
        assert "sent an invalid hello" in refusal(lambda: other.greet(greeted[:length]))
    answer = other.greet(greeted)
    if length < len(answer):
        assert "sent an invalid hello" in refusal(lambda: one.prove(answer[:length]))
    proof = one.prove(answer)
    if length < len(proof):
        assert "sent an invalid hello" in refusal(lambda: other.accept(proof[:length]))


# -- what is sent


def test_another_version_of_the_protocol_is_refused() -> None:
    assert refusal(lambda: acceptor().greet(greeting(protocol=2))) == (
        "a broker on 10.0.0.1 speaks version 2 of the protocol between brokers, and the broker at 10.0.0.2:6650 version"
        " 1; install the same version of Danube on both"
    )


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_nonce_of_another_size_is_refused(size: int) -> None:
    assert "its nonce has" in refusal(lambda: acceptor().greet(greeting(nonce=bytes(size))))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"identity": ""}, "a name is empty or too long"),
        ({"identity": "x" * 256}, "a name is empty or too long"),
        ({"cluster": "x" * 256}, "a name is empty or too long"),
        ({"address": "x" * 256}, "a name is empty or too long"),
        ({"address": "x\n:6650"}, "a field is out of range"),
        ({"life": -1}, "a field is out of range"),
        ({"incarnation": -1}, "a field is out of range"),
        ({"member": -1}, "a field is out of range"),
        ({"address": "b:99999"}, "is not host:port"),
    ],
)
def test_invalid_introductions_are_refused_although_proven(changed: dict[str, Any], words: str) -> None:
    text = refusal(lambda: exchange(initiator(broker(1, **changed)), acceptor()))
    assert text.startswith("a broker on 10.0.0.1 sent an invalid hello: ")
    assert words in text
    assert text.isprintable()
    refusal(lambda: exchange(initiator(), acceptor(broker(2, **changed))))


def test_the_longest_names_are_taken() -> None:
    longest = broker(1, identity="ü" * 255, member=0)
    at_initiator, at_acceptor = exchange(initiator(longest), acceptor())
    assert at_acceptor.peer == longest
    assert at_initiator.peer == broker(2)


def test_further_fields_of_a_later_version_are_ignored_and_proven() -> None:
    one, other = initiator(), acceptor()
    fields = msgspec.to_builtins(broker(1))
    one._own = [*fields, "a field to come"]  # type: ignore[assignment]
    answer = other.greet(one.greet())
    introduction = encode(one._own)
    one._said += (answer, introduction)
    mac = hello._mac(SECRET, "initiator", one._said)
    _, linked = other.accept(encode(Proof(introduction, mac)))
    assert linked.peer == broker(1)


# -- who belongs together


def test_brokers_of_other_clusters_are_refused() -> None:
    assert judge(broker(1), broker(2, cluster="bills")) == (
        "broker b2 at 10.0.0.2:6650 belongs to the cluster 'bills', and broker b1 at 10.0.0.1:6650 to 'orders'; correct"
        " --cluster or --peers"
    )


def test_brokers_of_other_incarnations_are_refused_and_new_ones_are_not() -> None:
    assert judge(broker(1), broker(2, incarnation=78)) == (
        "broker b2 at 10.0.0.2:6650 belongs to incarnation 000000000000004e of the cluster 'orders', and broker b1 at"
        " 10.0.0.1:6650 to incarnation 000000000000004d: they were formed separately, or the metadata of one were"
        " restored or recovered. The broker that is to become a member of the other's cluster has to give up its own"
        " metadata: stop it, remove the directory 'metadata' and the files 'group-*' from its data directory, and"
        " nothing else (the rest holds its messages), and start it with --join"
    )
    virgin = broker(2, incarnation=0, required=0, broker=0, member=None)
    assert judge(broker(1), virgin) == ""
    assert judge(virgin, broker(1)) == ""
    assert judge(virgin, broker(3, incarnation=0, required=0)) == ""


def test_brokers_below_the_feature_level_of_the_cluster_are_refused_in_either_direction() -> None:
    words = (
        "the broker at 10.0.0.2:6650 supports feature level 1, and the cluster of broker b1 at 10.0.0.1:6650 needs 2;"
        " install a newer version of Danube on the former"
    )
    old, member = broker(2, level=1, required=0, broker=0), broker(1, level=3, required=2)
    assert judge(member, old) == words
    assert judge(old, member) == words
    assert judge(broker(1, level=3, required=2), broker(2, level=2, required=2)) == ""


def test_the_same_broker_is_refused() -> None:
    assert "are the same broker" in judge(broker(1), broker(2, identity="identity-1"))


def test_either_side_judges() -> None:
    other = acceptor(broker(2, cluster="bills"))
    one = initiator()
    assert "belongs to the cluster" in refusal(lambda: other.accept(one.prove(other.greet(one.greet()))))
    # An acceptor that judges nothing.
    one, other = initiator(), acceptor(broker(2, cluster="bills"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hello, "_admit", lambda *args: None)
        answer, _ = other.accept(one.prove(other.greet(one.greet())))
    assert "belongs to the cluster" in refusal(lambda: one.finish(answer))


# -- lives


def test_earlier_lives_and_copies_are_refused() -> None:
    seen = lives()
    assert seen.examine(broker(1, life=3)) == ""
    assert seen.examine(broker(1, life=3)) == ""
    assert seen.examine(broker(1, life=2)) == (
        "broker b1 at 10.0.0.1:6650 says that this is its start number 2, but start number 3 was seen at 10.0.0.1:6650:"
        " its data directory is a copy or was set back; stop it and give it an empty data directory"
    )
    assert seen.examine(broker(1, life=3, address="10.0.0.9:6650")) == (
        "broker b1 at 10.0.0.9:6650 has the data directory of the broker at 10.0.0.1:6650, or a copy of it; stop one of"
        " the two, and give it an empty data directory"
    )
    assert seen.examine(broker(1, life=4, address="10.0.0.9:6650")) == ""
    assert "start number 4 was seen at 10.0.0.9:6650" in seen.examine(broker(1, life=3))


def test_the_memory_of_lives_is_bounded() -> None:
    seen = Lives(3)
    for number in range(1, 10):
        assert seen.examine(broker(number)) == ""
    assert len(seen._seen) == 3
    assert seen.examine(broker(9, life=1))
    assert seen.examine(broker(1, life=1)) == ""


def test_known_brokers_push_no_other_one_out() -> None:
    seen = Lives(2)
    for number in (1, 2):
        assert seen.examine(broker(number)) == ""
    assert seen.examine(broker(2, life=4)) == ""
    assert seen.examine(broker(1, life=1))


def test_refused_brokers_are_not_remembered() -> None:
    seen = lives()
    assert seen.examine(broker(1, life=3)) == ""
    assert seen.examine(broker(1, life=2, address="10.0.0.9:6650"))
    assert seen.examine(broker(1, life=3)) == ""


@pytest.mark.parametrize("role", ["initiator", "acceptor"])
def test_lives_are_examined_by_both_sides(role: str) -> None:
    one, other = initiator(), acceptor()
    mine, peer = (one, broker(2, life=9)) if role == "initiator" else (other, broker(1, life=9))
    assert mine._lives.examine(peer) == ""
    assert "start number" in refusal(lambda: exchange(one, other))
