"""Words of several parts: one spelling is shown, the other one is understood."""

from __future__ import annotations

import msgspec
import pytest

from danube.model import PoisonPolicy, SubscriptionPolicy, SubscriptionType
from danube.model.errors import InvalidArgumentError
from danube.model.policies import change_policy


@pytest.mark.parametrize("written", ["dead_letter", "dead-letter"])
def test_a_dash_is_as_good_as_an_underscore(written: str) -> None:
    policy = change_policy(SubscriptionPolicy(), {"poison": written})
    assert policy.poison is PoisonPolicy.DEAD_LETTER
    assert msgspec.to_builtins(policy)["poison"] == "dead_letter"
    assert SubscriptionType("key-shared") is SubscriptionType("key_shared") is SubscriptionType.KEY_SHARED


@pytest.mark.parametrize("written", ["deadletter", "DEAD_LETTER", "", "-", None, 3, ["dead_letter"]])
def test_other_words_are_refused(written: object) -> None:
    with pytest.raises(InvalidArgumentError, match="poison"):
        change_policy(SubscriptionPolicy(), {"poison": written})
    with pytest.raises(ValueError, match="is not a valid PoisonPolicy"):
        PoisonPolicy(written)
