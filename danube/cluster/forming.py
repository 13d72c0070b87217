"""The first start of a broker with ``--peers``: it waits, forms the cluster with the listed brokers, or joins it.

A broker asks all listed brokers for their :class:`Standing`, again and again, until :func:`decide` returns something
else than :class:`Wait`. Rules:

* F1. Nothing is decided while a listed broker has not answered, unless an answer says that the cluster exists.
* F2. If all have answered, and none is a member, all compute the same :class:`Founding` from the same answers: members
  in the order of the list, an incarnation that is a digest of all identities. There is no leader in this, and no second
  round: who is late computes the same from the same answers, or learns it from one that has formed (F3).
* F3. If one has formed, and its founders include the identity of this broker, this broker is one of the founders, only
  late, and forms the same. It has never voted: it would be a member then, and not ask.
* F4. If one has formed without it, this broker joins as a new member. So does a machine whose disk was replaced: its
  identity is new, and it must not vote in place of the old one, whose votes it has forgotten.
* F5. Lists or names of clusters that differ are refused, for they would form two clusters. So are two clusters among
  the answers. A refusal is final: the operator has to change something.

A disk that is replaced while brokers are still answering can lead to two foundings: some know its old identity, some
the new one. Each broker stores one founding only, so at most one of the two gets a majority; the brokers of the other
are refused by its members (F5), and have to be started with an empty directory.

The Raft members that a founding starts with are the first brokers of the list, an odd number (:func:`voters_of`): a
cluster of two has one voter, because two would fail with either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from danube.model.errors import ConfigurationError
from danube.model.ids import BrokerId

__all__ = ["MOST_VOTERS", "Founding", "Join", "Standing", "Wait", "decide", "found", "voters_of"]

MOST_VOTERS: Final = 5
"""More voters make each change slower, and add no safety that is needed."""


class Founding(msgspec.Struct, frozen=True, array_like=True):
    """How a cluster began. All founders store the same."""

    cluster: str
    """The name of the cluster."""
    incarnation: int
    """64 bits; never 0."""
    addresses: tuple[str, ...]
    """In the order of the list."""
    identities: tuple[str, ...]
    """Of the data directories, in the same order."""

    def broker(self, identity: str) -> BrokerId | None:
        """Return the number of the founder with this identity, or None if it is not one."""
        return BrokerId(self.identities.index(identity) + 1) if identity in self.identities else None


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a listed broker, and what this broker answers itself."""

    identity: str
    """Of its data directory: random, never changed."""
    cluster: str
    """The name of the cluster (``--cluster``)."""
    peers: tuple[str, ...]
    """Its ``--peers``; empty if it was started with ``--join`` or alone."""
    founding: Founding | None = None
    """It is a member of the cluster that began like this."""
    incarnation: int = 0
    """Of its cluster now: another one than the founding's after a restore or recovery. 0: it is no member."""


class Wait(msgspec.Struct, frozen=True):
    """Not all have answered; ask again."""

    missing: tuple[str, ...]
    """Addresses without an answer."""


class Join(msgspec.Struct, frozen=True):
    """Join the cluster of another broker, as a new member."""

    address: str
    incarnation: int


def decide(own: str, standing: Standing, answers: Mapping[str, Standing]) -> Wait | Founding | Join:
    """Decide what a broker that is no member does.

    Args:
        own: its entry in the list.
        standing: its own.
        answers: those of the others, by their address in its list. Answers of earlier rounds count as long as their
            broker has not been asked again.

    Raises:
        ConfigurationError: it can never become a member like this (F5).
    """
    assert own in standing.peers
    assert standing.founding is None, "a member starts without asking"
    others = [address for address in standing.peers if address != own]
    for address in others:
        if address in answers:
            _check(own, standing, address, answers[address])
    formed = [(address, answers[address]) for address in others if address in answers and answers[address].incarnation]
    clusters = {answer.incarnation for _, answer in formed}
    if len(clusters) > 1:
        raise ConfigurationError(
            f"--peers: {' and '.join(address for address, _ in formed)} are members of different clusters. Those that"
            " are to become members of the other one have to give up their metadata: stop them, remove the directory"
            " 'metadata' and the files 'group-*' from their data directories, and start them with --join"
        )
    for address, answer in formed:
        founding = answer.founding
        if founding is not None and founding.incarnation == answer.incarnation and founding.broker(standing.identity):
            return founding
        return Join(address, answer.incarnation)
    missing = tuple(address for address in others if address not in answers)
    if missing:
        return Wait(missing)
    identities = [standing.identity if address == own else answers[address].identity for address in standing.peers]
    return found(standing.cluster, standing.peers, identities)


def _check(own: str, standing: Standing, address: str, answer: Standing) -> None:
    if answer.cluster != standing.cluster:
        raise ConfigurationError(
            f"{address} belongs to the cluster {answer.cluster!r}, and this broker was started for"
            f" {standing.cluster!r}; give all brokers the same --cluster, or remove {address} from --peers"
        )
    if answer.identity == standing.identity:
        raise ConfigurationError(
            f"{address} has the same identity as this broker ({own}): one data directory is a copy of the other, or"
            " both addresses lead to this broker. Empty the copied directory, or list each broker once"
        )
    if not answer.incarnation and set(answer.peers) != set(standing.peers):
        given = ", ".join(answer.peers) or "none"
        raise ConfigurationError(
            f"{address} was started with other --peers: {given}; this broker with {', '.join(standing.peers)}. Give all"
            " brokers the same list"
        )
    if not answer.incarnation and answer.peers != standing.peers:
        raise ConfigurationError(
            f"{address} has the same --peers in another order: {', '.join(answer.peers)}; this broker has"
            f" {', '.join(standing.peers)}. Brokers are numbered in the order of the list: give all the same one"
        )


def found(cluster: str, addresses: Sequence[str], identities: Sequence[str]) -> Founding:
    """Return the founding by these brokers: the same on each of them, without another message."""
    digest = hashlib.blake2b(digest_size=8, person=b"danube founding")
    for text in (cluster, *addresses, *identities):
        digest.update(len(text).to_bytes(4, "big") + text.encode())
    incarnation = int.from_bytes(digest.digest(), "big") | 1
    return Founding(cluster, incarnation, tuple(addresses), tuple(identities))


def voters_of(members: int) -> int:
    """Return how many of so many first members vote: an odd number, at most :data:`MOST_VOTERS`."""
    assert members > 0
    return min(MOST_VOTERS, members - 1 + members % 2)
