"""A seek that the journal lacks: tolerated if a loss is known, an error otherwise."""

from __future__ import annotations

import pytest

from danube.broker.directory.recovery import _check_seeks
from danube.model import SubscriptionPolicy, SubscriptionType
from danube.model.errors import DataLossError
from danube.model.records import SubscriptionRecord

SUBSCRIPTIONS = {7: {"s": SubscriptionRecord(70, SubscriptionType.SHARED, 0, 0, SubscriptionPolicy())}}
NAMES = {7: "/default/t"}


def test_a_known_loss_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    _check_seeks({70}, SUBSCRIPTIONS, NAMES, loss_known=True)
    assert "a seek of subscription 's' of topic '/default/t' is lost" in caplog.text


def test_without_a_known_loss_it_is_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match="subscription 's' of topic '/default/t' is missing"):
        _check_seeks({70}, SUBSCRIPTIONS, NAMES, loss_known=False)
    _check_seeks({71}, SUBSCRIPTIONS, NAMES, loss_known=False)
    assert not caplog.text
