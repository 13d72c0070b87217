"""The quota of subjects of a namespace: exact, also if several brokers register at once."""

from __future__ import annotations

from random import Random

import pytest
import trio

from danube.broker.schemas.replica import Replica
from danube.broker.schemas.service import SchemaService
from danube.metadata.memory import MemoryStore
from danube.model.errors import LimitExceededError, UnavailableError
from danube.schema import Examination, Finding, Proposal, SchemaType, examine
from danube.schema.subjects import namespace_of
from danube.testing.metadata import FaultyMetadataStore

pytestmark = pytest.mark.virtual

MOST = 3


def proposal(subject: str, size: int = 1) -> Proposal:
    text = f'{{"type": "fixed", "name": "F", "size": {size}}}'
    return Proposal(subject=subject, type=SchemaType.AVRO, text=text)


async def slowly(examination: Examination) -> Finding:
    await trio.sleep(0.001)
    return examine(examination)


def service_over(store: FaultyMetadataStore) -> tuple[Replica, SchemaService]:
    replica = Replica(store)
    quotas = {"shop": MOST}
    return replica, SchemaService(store, replica, lambda: 1_000_000, slowly, quotas.get)


@pytest.mark.parametrize("seed", range(10))
async def test_several_brokers_create_as_many_subjects_as_the_quota_says(seed: int) -> None:
    async with MemoryStore() as shared, trio.open_nursery() as nursery:
        stores = [FaultyMetadataStore(shared, Random(seed * 10 + index)) for index in range(3)]
        services = []
        for store in stores:
            replica, service = service_over(store)
            await nursery.start(replica.run)
            services.append(service)
            store.latency_s, store.lose_answer = 0.02, 0.2
        created: set[str] = set()
        refused: dict[str, str] = {}

        async def register(service: SchemaService, subject: str) -> None:
            while True:
                try:
                    await service.register(proposal(subject))
                except UnavailableError:
                    continue
                except LimitExceededError as error:
                    refused[subject] = str(error)
                else:
                    created.add(subject)
                return

        with trio.fail_after(10_000):
            async with trio.open_nursery() as registering:
                for number in range(8):
                    registering.start_soon(register, services[number % 3], f"/shop/s{number}")
        assert (len(created), len(refused)) == (MOST, 8 - MOST)
        assert all(f"quota max_subjects is {MOST}" in why for why in refused.values())
        for store in stores:
            store.lose_answer = 0.0
        book = await services[0].current()
        assert set(book.subjects("/shop/")) == created
        await services[0].register(proposal("/other/s"))
        await services[0].register(proposal("shop/s"))
        nursery.cancel_scope.cancel()


async def test_subjects_that_exist_get_versions_and_deleted_ones_make_room() -> None:
    async with MemoryStore() as shared, trio.open_nursery() as nursery:
        replica, service = service_over(FaultyMetadataStore(shared, Random(1)))
        await nursery.start(replica.run)
        for number in range(MOST):
            await service.register(proposal(f"/shop/s{number}"))
        await service.change(lambda book: book.delete_subject("/shop/s0")[1])
        with pytest.raises(LimitExceededError, match="max_subjects"):
            await service.register(proposal("/shop/more"))  # the deleted one can still be read
        assert (await service.register(proposal("/shop/s0"))).version == 2
        await service.change(lambda book: book.delete_subject("/shop/s0")[1])
        await service.change(lambda book: book.delete_subject("/shop/s0", permanent=True)[1])
        await service.register(proposal("/shop/more"))
        with pytest.raises(LimitExceededError, match="has 3 subjects"):
            await service.register(proposal("/shop/s0"))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("subject", "namespace"),
    [("/shop/a-value", "shop"), ("/shop/", "shop"), ("/shop", ""), ("shop/a/b", ""), ("x", "")],
)
def test_namespace_of_a_subject(subject: str, namespace: str) -> None:
    assert namespace_of(subject) == namespace
