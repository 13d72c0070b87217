"""What storages, the metadata, the journal, the pulse and the audit count. Time is virtual."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from danube.broker.runtime.pulse import Pulse
from danube.broker.runtime.samples import SAMPLE_S
from danube.broker.runtime.stalls import Stalls
from danube.broker.security.auditing import Audit
from danube.metadata import ObservedStore
from danube.metadata.memory import MemoryStore
from danube.metrics.histogram import Histogram
from danube.model.errors import MetadataConflictError, StorageUnavailableError
from danube.security.audit import AuditKind
from danube.security.limits import SecurityLimits
from danube.storage import MemoryBackend, Storage


def number_of(histogram: Histogram) -> int:
    return list(histogram.cumulative())[-1]


class SlowBackend(MemoryBackend):
    """Takes 0.3 s; the first attempt fails."""

    failures = 1

    async def head(self, key):  # type: ignore[no-untyped-def]
        await trio.sleep(0.3)
        if self.failures:
            self.failures -= 1
            raise StorageUnavailableError("not now")
        return await super().head(key)


async def test_each_attempt_of_a_storage_is_observed(autojump_clock: trio.testing.MockClock) -> None:
    storage = Storage(SlowBackend(), random=Random(1))
    await storage.put("a", b"x")
    await storage.head("a")
    found = storage.stats().operations["head"]
    assert (found.calls, found.retries, number_of(found.durations)) == (1, 1, 2)
    assert found.durations.total == pytest.approx(0.6)


async def test_operations_on_the_metadata_are_timed(autojump_clock: trio.testing.MockClock) -> None:
    async with ObservedStore(MemoryStore(), lambda _revision: None) as store:
        await store.put("/a", b"1")
        await store.get("/a")
        await store.list("/")
        await store.delete("/a")
        with pytest.raises(MetadataConflictError):
            await store.put("/a", b"1", expected_revision=99)
        counts = {name: number_of(histogram) for name, histogram in store.durations.items()}
    assert counts == {"put": 2, "get": 1, "list": 1, "delete": 1}


async def test_each_beat_of_the_loop_is_observed(autojump_clock: trio.testing.MockClock) -> None:
    pulse = Pulse(lambda: (0, 0), Stalls(1.0))
    assert pulse.silent_s() == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulse.run)
        await trio.sleep(3.2 * SAMPLE_S)
        assert number_of(pulse.lags) == 3
        autojump_clock.jump(20 * SAMPLE_S)  # the loop does not turn meanwhile
        assert pulse.silent_s() == pytest.approx(19.2 * SAMPLE_S)
        await trio.sleep(0.1)
        assert pulse.lags.total == pytest.approx(19.2 * SAMPLE_S)
        assert pulse.silent_s() == 0
        nursery.cancel_scope.cancel()


async def test_denials_and_refused_credentials_are_counted() -> None:
    audit = Audit(SecurityLimits(), lambda: 1)
    call = SimpleNamespace(peer="127.0.0.1:5", path="/x/y")
    for _ in range(3):
        audit.refused(call, "unknown key")
    audit.denied(call, None, "cluster", "no")
    assert audit.counts[AuditKind.REFUSED] == 3
    assert audit.counts[AuditKind.DENIED] == 1
