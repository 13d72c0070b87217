"""Which engines a broker refuses, by what they guarantee."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import asdict

from danube.metadata import Capabilities, Role, require_role
from danube.model.errors import FailedPreconditionError, exit_code

ALL = [
    Capabilities(durable=durable, linearizable=linearizable, watch_replay=replay, leases=leases)
    for durable, linearizable, replay, leases in itertools.product((True, False), repeat=4)
]


def refusal(role: Role, scheme: str, capabilities: Capabilities) -> str:
    """The sentence with which an engine is refused; empty: it is not."""
    refused = None
    try:
        require_role(role, scheme, capabilities)
    except FailedPreconditionError as error:
        refused = error
    assert refused is None or exit_code(refused) == 78
    return str(refused) if refused is not None else ""


@pytest.mark.parametrize(
    "capabilities", ALL, ids=lambda found: "".join("ny"[value] for value in asdict(found).values())
)
def test_a_role_is_refused_exactly_for_what_it_needs(capabilities: Capabilities) -> None:
    lone = refusal(Role.ALONE, "toy", capabilities)
    assert (not lone) == (capabilities.durable and capabilities.linearizable)
    cluster = refusal(Role.CLUSTER, "toy", capabilities)
    assert (not cluster) == (capabilities.durable and capabilities.linearizable and capabilities.leases)
    assert refusal(Role.CLUSTER, "memory", capabilities) == cluster.replace("'toy'", "'memory'")
    # A broker may keep its metadata in memory alone.
    assert (not refusal(Role.ALONE, "memory", capabilities)) == capabilities.linearizable
    # raftos is for demonstration, by one broker.
    assert not refusal(Role.ALONE, "raftos", capabilities)
    assert bool(refusal(Role.CLUSTER, "raftos", capabilities)) == bool(cluster)


def test_the_sentence_has_every_reason() -> None:
    nothing = Capabilities(durable=False, linearizable=False, watch_replay=False, leases=False)
    message = refusal(Role.CLUSTER, "raftos", nothing)
    assert message.startswith("the metadata engine 'raftos' cannot be used by a cluster: it is not durable: ")
    assert "; it is not linearizable: " in message
    assert "; its leases do not end when their owner is dead" in message
    assert "41 to 62 % of the writes that raftos had acknowledged were lost. " in message
    assert "41 to 62" not in refusal(Role.CLUSTER, "toy", nothing)
    assert message.endswith("Configure another engine, such as 'embedded' or 'etcd'")
