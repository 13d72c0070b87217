"""Rules of the face that need no broker: sent ranges, policies, and the descriptions of services."""

from __future__ import annotations

import pytest

from danube.compat.policies import dispatch_changes, failure_changes, shown_dispatch, shown_failure_policy
from danube.compat.proto import danube_admin_pb2 as pb
from danube.compat.proto import reflection_pb2 as reflection
from danube.compat.sent_ranges import SentRanges
from danube.compat.service_index import ServiceIndex
from danube.model import SubscriptionPolicy
from danube.model.errors import InvalidArgumentError, NotFoundError
from danube.model.policies import change_policy

HEALTH = "grpc.health.v1.Health"

# --- Sent ranges ---


def test_an_acknowledgement_returns_what_was_sent_later() -> None:
    sent = SentRanges()
    sent.add([0, 3, 10, 12])
    sent.add([12, 15])
    assert sent.heard(1, 0.0, 8.0) == [2, 3, 10, 15], "neighbours are joined"
    assert sent.again_s == 1.0, "an eighth of the ack timeout"
    assert sent.heard(2, 1.0, 8.0) == [10, 15]
    assert sent.heard(14, 2.0, 8.0) == [], "what was sent before is not tracked any more"
    assert sent.heard(11, 3.0, 8.0) is None
    assert sent.again_s == pytest.approx(3.1)


def test_nothing_is_known_after_clear() -> None:
    sent = SentRanges()
    sent.add([5, 6])
    sent.clear()
    assert sent.heard(5, 0.0, 8.0) is None


# --- Policies ---


def test_a_failure_policy_comes_back_as_it_was_set() -> None:
    given = pb.SubscriptionFailurePolicy(
        max_redelivery_count=2**32 - 1,
        ack_timeout_ms=1500,
        base_redelivery_delay_ms=20,
        max_redelivery_delay_ms=3000,
        backoff_strategy=pb.Exponential,
        dead_letter_topic="/default/letters",
        poison_policy=pb.DeadLetter,
    )
    policy = change_policy(SubscriptionPolicy(), failure_changes(given))
    assert policy.max_redelivery_count == -1
    assert shown_failure_policy("/default/t", "s", policy) == given


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"poison_policy": 3}, "poison policy 3 is unknown"),
        ({"poison_policy": 1, "backoff_strategy": 2}, "backoff strategy 2 is unknown"),
        ({"poison_policy": 0}, "needs a dead_letter_topic"),
    ],
)
def test_an_invalid_failure_policy_is_refused(fields: dict[str, int], what: str) -> None:
    with pytest.raises(InvalidArgumentError, match=what):
        failure_changes(pb.SubscriptionFailurePolicy(**fields))


def test_a_dispatch_limit_is_from_1_to_10_000() -> None:
    for most in (1, 10_000):
        config = pb.SubscriptionDispatchConfig(max_unacked_messages=most)
        assert shown_dispatch(change_policy(SubscriptionPolicy(), dispatch_changes(config))) == config
    for most in (0, 10_001):
        with pytest.raises(InvalidArgumentError, match=f"{most} must be between 1 and 10000"):
            dispatch_changes(pb.SubscriptionDispatchConfig(max_unacked_messages=most))
    assert shown_dispatch(None) is None
    assert shown_dispatch(SubscriptionPolicy(max_unacked_messages=0)) is None


# --- Descriptions of services ---


def answer(**request: str) -> reflection.ServerReflectionResponse:
    response = reflection.ServerReflectionResponse()
    ServiceIndex([HEALTH]).answer(reflection.ServerReflectionRequest(**request), response)
    return response


def test_a_symbol_is_found_in_its_file() -> None:
    (listed,) = answer(list_services="").list_services_response.service
    assert listed.name == HEALTH
    for symbol in (HEALTH, f".{HEALTH}", f"{HEALTH}.Check", "grpc.health.v1.HealthCheckResponse.SERVING"):
        assert len(answer(file_containing_symbol=symbol).file_descriptor_response.file_descriptor_proto) == 1


def test_methods_of_other_services_are_not_described() -> None:
    with pytest.raises(NotFoundError, match=r"'danube\.Discovery' does not belong"):
        answer(file_containing_symbol="danube.Discovery")
    with pytest.raises(InvalidArgumentError, match="the request is empty"):
        answer()
