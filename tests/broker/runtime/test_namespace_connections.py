"""The connections of namespaces: what counts as one, when it is refused, and when its place is free again."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from danube.broker.runtime.namespace_connections import NamespaceConnections
from danube.model.errors import LimitExceededError


def connections_with(**limits: int) -> tuple[NamespaceConnections, dict[str, int]]:
    connections, quotas = NamespaceConnections(), dict(limits)
    connections.limit_of = quotas.get
    return connections, quotas


def test_a_connection_counts_once_until_its_last_stream_ends() -> None:
    connections, _ = connections_with(shop=1)
    first, second = ExitStack(), ExitStack()
    first.enter_context(connections.using("/shop/a", 7))
    second.enter_context(connections.using("/shop/b", 7))
    assert connections.used("shop") == 1
    first.close()
    assert connections.used("shop") == 1
    with pytest.raises(LimitExceededError), connections.using("/shop/a", 8):
        pass
    second.close()
    assert connections.used("shop") == 0
    with connections.using("/shop/a", 8):
        assert connections.used("shop") == 1
    assert not connections._streams, "nothing is kept of a namespace that is not used"


def test_one_more_is_refused_by_name() -> None:
    connections, _ = connections_with(shop=2, closed=0)
    with connections.using("/shop/a", 1), connections.using("/shop/a-part-1", 2), connections.using("/other/a", 3):
        expected = (
            r"'shop' is used by 2 connections .* quota max_connections is 2: close .*quota set shop max_connections=N"
        )
        with pytest.raises(LimitExceededError, match=expected) as caught, connections.using("/shop/b", 3):
            pass
        assert caught.value.retryable
        assert connections.used("shop") == 2, "a refused one is not counted"
    with pytest.raises(LimitExceededError, match="max_connections is 0"), connections.using("/closed/a", 1):
        pass
    assert not connections._streams


def test_a_quota_is_exact_from_when_it_is_set_and_those_that_are_open_stay() -> None:
    connections, quotas = connections_with()
    with connections.using("/shop/a", 1), connections.using("/shop/a", 2):
        quotas["shop"] = 1
        with connections.using("/shop/b", 2):
            assert connections.used("shop") == 2
        with pytest.raises(LimitExceededError, match=r"used by 2 .* is 1"), connections.using("/shop/b", 3):
            pass
        quotas["shop"] = 3
        with connections.using("/shop/b", 3):
            assert connections.used("shop") == 3
        del quotas["shop"]
        with connections.using("/shop/b", 4), connections.using("/shop/b", 5):
            assert connections.used("shop") == 4


def test_a_stream_that_fails_frees_its_place() -> None:
    connections, _ = connections_with(shop=1)
    with pytest.raises(ZeroDivisionError), connections.using("/shop/a", 1):
        raise ZeroDivisionError
    assert connections.used("shop") == 0
