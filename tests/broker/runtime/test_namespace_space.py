"""What namespaces store: who shares a count, when it refuses, and when it is counted again."""

from __future__ import annotations

import pytest
import trio

from danube.broker.runtime.namespace_space import NamespaceSpaces
from danube.model.errors import LimitExceededError

pytestmark = pytest.mark.virtual


def spaces_with(**limits: int) -> tuple[NamespaceSpaces, dict[str, int]]:
    spaces, quotas = NamespaceSpaces(), dict(limits)
    spaces.limit_of = quotas.get
    return spaces, quotas


async def test_topics_of_a_namespace_share_a_count() -> None:
    spaces, quotas = spaces_with(shop=100)
    space = spaces.of_topic("/shop/a")
    assert space is not None
    assert space is spaces.of_topic("/shop/b")
    assert spaces.of_topic("/other/a") is None
    space.take(60)
    assert space.has(40)
    assert not space.has(41)
    with pytest.raises(
        LimitExceededError, match=r"'shop' stores 60 bytes .* max_stored_bytes is 100: 41 more"
    ) as caught:
        space.check(41)
    assert caught.value.retryable
    quotas["shop"] = 200
    assert spaces.of_topic("/shop/a") is space
    space.check(140)
    del quotas["shop"]
    assert spaces.of_topic("/shop/a") is None


async def test_what_is_stored_is_counted_each_second() -> None:
    spaces, quotas = spaces_with()
    stored = {"/shop/a": 30, "/shop/b": 40, "/free/a": 1000}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spaces.run, lambda: list(stored), lambda name: stored.get(name, 0))
        await trio.sleep(10)
        quotas["shop"] = 100
        space = spaces.of_topic("/shop/a")
        assert space is not None
        await trio.sleep(0.001)
        assert space.used_bytes == 70, "at once when there is a quota"
        space.take(30)
        stored["/shop/a"] += 30
        assert not space.has(1)
        del stored["/shop/b"]
        await trio.sleep(1.1)
        assert space.used_bytes == 60
        nursery.cancel_scope.cancel()


async def test_what_is_published_during_a_count_is_not_forgotten() -> None:
    spaces, _ = spaces_with(shop=10_000)
    space = spaces.of_topic("/shop/t0")
    assert space is not None
    stored = {f"/shop/t{number}": 1 for number in range(1000)}

    def size_of(name: str) -> int:
        if name == "/shop/t999":
            space.take(5)
        return stored[name]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(spaces.run, lambda: list(stored), size_of)
        await trio.sleep(0.5)
        assert space.used_bytes == 1005
        nursery.cancel_scope.cancel()
