"""Ownership of topics by several brokers on one metadata store, as a cluster assigns it, for the tests of history."""

from __future__ import annotations

from collections.abc import Sequence

from danube.history.catalogue import HistoryCatalogue
from danube.history.tenure import owner_epoch
from danube.metadata import Condition, MetadataStore
from danube.model.errors import NotOwnerError, UnavailableError


class Assignments:
    """Rows that assign topics to brokers, and the sessions of these."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.lives: dict[str, int] = {}
        self.epochs: dict[int, int] = {}

    async def begin(self, broker: str) -> BrokerTenure:
        """A new life of a broker, with a session."""
        self.lives[broker] = self.lives.get(broker, 0) + 1
        tenure = BrokerTenure(self.store, broker, self.lives[broker])
        await tenure.open_session()
        return tenure

    async def assign(self, topic_id: int, owner: BrokerTenure, *told: BrokerTenure) -> None:
        """Give a topic to a broker; only the brokers that are ``told`` learn of it."""
        self.epochs[topic_id] = self.epochs.get(topic_id, 0) + 1
        revision = await self.store.put(f"/assignments/{topic_id:016x}", owner.broker.encode())
        for each in {owner, *told}:
            each.owned.pop(topic_id, None)
        owner.owned[topic_id] = revision, self.epochs[topic_id]


class BrokerTenure:
    """What one broker knows of it."""

    def __init__(self, store: MetadataStore, broker: str, life: int) -> None:
        self.store = store
        self.broker = broker
        self.life = life
        self.owned: dict[int, tuple[int, int]] = {}
        self.session_revision = 0
        self.forgets_assignments = False
        """Planted bug 16: changes of the catalogue are not conditional on the assignment."""

    async def open_session(self) -> None:
        self.session_revision = await self.store.put(f"/sessions/{self.broker}", str(self.life).encode())

    def owns(self, topic_id: int) -> bool:
        return topic_id in self.owned

    def epoch(self, topic_id: int) -> int:
        if topic_id not in self.owned:
            raise NotOwnerError(f"topic {topic_id} is not {self.broker}'s")
        return owner_epoch(self.owned[topic_id][1], self.life)

    def assigned_at(self, topic_id: int) -> int:
        return self.owned[topic_id][0] if topic_id in self.owned else 0

    def conditions(self, topic_id: int) -> Sequence[Condition]:
        if topic_id not in self.owned:
            raise NotOwnerError(f"topic {topic_id} is not {self.broker}'s")
        if self.forgets_assignments:
            return ()
        return [*self.session(), Condition(f"/assignments/{topic_id:016x}", self.owned[topic_id][0])]

    def session(self) -> Sequence[Condition]:
        if not self.session_revision:
            raise UnavailableError(f"{self.broker} has no session")
        return [Condition(f"/sessions/{self.broker}", self.session_revision)]

    async def raise_epoch(self, at_least: int) -> None:
        raise AssertionError("nothing is restored here")


async def open_catalogue(store: MetadataStore, tenure: BrokerTenure) -> HistoryCatalogue:
    return await HistoryCatalogue.open(store, tenure, "one")
