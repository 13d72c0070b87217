"""The paces of namespaces: who shares one, and what becomes of it when the quota changes."""

from __future__ import annotations

import pytest
import trio

from danube.broker.runtime.namespace_rates import NamespaceRates
from danube.model import Rate

pytestmark = pytest.mark.virtual


async def test_topics_of_a_namespace_share_a_pace() -> None:
    rates = NamespaceRates()
    assert rates.of_topic("/shop/a") is None
    quotas: dict[str, Rate] = {"shop": Rate(messages_per_s=10), "other": Rate(messages_per_s=10)}
    rates.rate_of = quotas.get
    pace = rates.of_topic("/shop/a")
    assert pace is not None
    assert pace is rates.of_topic("/shop/b")
    assert pace is not rates.of_topic("/other/a")
    assert rates.of_topic("/free/a") is None
    await pace.pay(20, 1)
    assert not pace.is_free
    quotas["shop"] = Rate(messages_per_s=1000)
    assert rates.of_topic("/shop/b") is pace
    await trio.sleep(0.02)
    assert pace.is_free, "the debt of ten messages is paid at the new rate"


async def test_who_waits_for_a_pace_without_a_quota_goes_on() -> None:
    rates = NamespaceRates()
    quotas: dict[str, Rate] = {"shop": Rate(messages_per_s=0.001)}
    rates.rate_of = quotas.get
    pace = rates.of_topic("/shop/a")
    assert pace is not None
    await pace.pay(1, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pace.pay, 1, 1)
        nursery.start_soon(pace.pay, 1, 1)
        await trio.sleep(1)
        assert not pace.is_free
        del quotas["shop"]
        started = trio.current_time()
        assert rates.of_topic("/shop/a") is None
    assert trio.current_time() == started
    quotas["shop"] = Rate(messages_per_s=0.001)
    fresh = rates.of_topic("/shop/a")
    assert fresh is not None
    assert fresh is not pace
