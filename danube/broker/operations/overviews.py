"""Operations on everything at once: the subscriptions of all topics, and what is not well at the brokers.

Each broker looks at what it serves; the one that was asked puts the answers together. Rows that a caller may not see
are filtered by the gate, so a page may have fewer rows than it looked at. The rules are imported when they are needed:
most brokers are never asked.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import trio

from danube.broker.delivery.explain import explanation_of
from danube.cluster.ownership import Mine
from danube.model.errors import InvalidArgumentError
from danube.model.ids import Offset
from danube.model.names import split_partition, validate_namespace, validate_topic
from danube.model.overview_api import (
    MAX_OVERVIEW_ROWS,
    UNKNOWN_AGE,
    Finding,
    FindingList,
    GetFindings,
    OverviewMethod,
    OverviewSubscriptions,
    SubscriptionOverview,
    SubscriptionRow,
)
from danube.model.policies import PoisonPolicy
from danube.model.records import members

if TYPE_CHECKING:
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.directory.directory import Directory
    from danube.broker.operations.everywhere import Everywhere
    from danube.broker.operations.wellness import BrokerFacts
    from danube.broker.topic.topic import Topic

__all__ = ["OverviewOperations"]

_TURN: Final = 20
"""Rows that are made without giving way to other tasks."""
MAX_FINDINGS: Final = 200
"""Most findings of one broker."""


class OverviewOperations:
    """See the module.

    Args:
        directory: of the topics.
        everywhere: asks the other brokers.
        facts: returns the figures of this broker.
    """

    def __init__(self, directory: Directory, everywhere: Everywhere, facts: Callable[[], BrokerFacts]) -> None:
        self._directory = directory
        self._everywhere = everywhere
        self._facts = facts
        everywhere.add(OverviewMethod.SUBSCRIPTIONS, self._own_subscriptions, OverviewSubscriptions)
        everywhere.add(OverviewMethod.FINDINGS, self._own_findings, GetFindings)

    # --- Subscriptions ---

    async def overview(self, request: OverviewSubscriptions) -> SubscriptionOverview:
        """Return a page of the subscriptions of all topics, with the states of their machines.

        Raises:
            InvalidArgumentError: the limit or a name is invalid.
            TopicNotFoundError: the topic does not exist.
        """
        if not 1 <= request.limit <= MAX_OVERVIEW_ROWS:
            raise InvalidArgumentError(f"limit is a number from 1 to {MAX_OVERVIEW_ROWS}, not {request.limit}")
        if request.namespace:
            validate_namespace(request.namespace)
        if request.topic:
            await self._check_topic(request.topic)
        found, silent = await self._everywhere.ask_all(OverviewMethod.SUBSCRIPTIONS, request, SubscriptionOverview)
        rows = sorted((row for each in found for row in each.subscriptions), key=_place)
        # A broker that had to stop knows nothing behind its last row: what others have there is on the next page, too.
        stops = [each.next for each in found if each.next is not None]
        end = min(stops) if stops else None
        if end is not None:
            rows = [row for row in rows if _place(row) <= end]
        return SubscriptionOverview(subscriptions=rows, next=end, silent=silent)

    async def _check_topic(self, name: str) -> None:
        validate_topic(name)
        catalogue = self._directory.catalogue
        if catalogue.find(name) is None:
            if not split_partition(name):
                await self._directory.refresh(name)
            if catalogue.find(name) is None:
                catalogue.locate(name)  # raises, unless it is a partition

    async def _own_subscriptions(self, request: OverviewSubscriptions) -> SubscriptionOverview:
        wanted = (
            (topic.name, name, topic)
            for topic in self._wanted(request)
            for name in list(topic.subscriptions)
            if (topic.name, name) > request.after
        )
        places = heapq.nsmallest(request.limit + 1, wanted, key=lambda place: place[:2])
        rows: list[SubscriptionRow] = []
        for number, (_, name, topic) in enumerate(places[: request.limit]):
            if number % _TURN == 0:
                await trio.lowlevel.checkpoint()
            subscription = topic.subscriptions.get(name)
            if subscription is None:
                continue  # deleted in the meantime
            row = self._row(topic, subscription, request)
            if not (request.unwell_only and row.well):
                rows.append(row)
        more = len(places) > request.limit
        return SubscriptionOverview(subscriptions=rows, next=places[request.limit - 1][:2] if more else None)

    def _wanted(self, request: OverviewSubscriptions) -> Iterator[Topic]:
        if request.topic:
            catalogue, name = self._directory.catalogue, request.topic
            record = catalogue.find(name)
            ids = list(record.topic_ids) if record is not None else [catalogue.locate(name)[1]]
            yield from (topic for topic in map(self._directory.served, ids) if topic is not None)
            return
        prefix = f"/{request.namespace}/" if request.namespace else "/"
        for topic in self._directory.topics():
            if topic.name.startswith(prefix) and topic.name >= request.after[0]:
                yield topic

    def _row(self, topic: Topic, subscription: Subscription, request: OverviewSubscriptions) -> SubscriptionRow:
        from danube.broker.operations.wellness import is_well

        explanation = explanation_of(subscription, trio.current_time())
        facts = subscription.machine.describe(topic.end_offset)
        age_s = self._oldest_age_s(topic, subscription) if facts.backlog_messages > 0 else 0.0
        return SubscriptionRow(
            topic=topic.name,
            subscription=subscription.name,
            type=subscription.kind,
            state=explanation.state,
            sentence=explanation.sentence,
            well=is_well(
                explanation.state, facts.backlog_messages, age_s, request.patience_s, request.absent_patience_s
            ),
            backlog_messages=facts.backlog_messages,
            oldest_age_s=age_s,
            consumers=len(facts.consumers),
            in_flight_messages=facts.in_flight_messages,
            waiting_messages=facts.waiting_messages,
            delayed_messages=facts.delayed_messages,
            poisoned_messages=facts.poisoned_messages,
            dead_lettered_messages=subscription.dead_letters.copied,
            redelivered_messages=facts.redelivered_messages,
            floor=Offset(facts.floor),
            position=Offset(facts.position),
            end_offset=topic.end_offset,
            broker=self._directory.broker,
            dead_letter_topic=subscription.dead_letters.target
            if subscription.policy.poison is PoisonPolicy.DEAD_LETTER
            else "",
        )

    def _oldest_age_s(self, topic: Topic, subscription: Subscription) -> float:
        if topic.lossy:
            return UNKNOWN_AGE
        low = max(subscription.cursor.floor, topic.start_offset)
        offset = Offset((subscription.cursor.solid(low, topic.end_offset) or [low])[0])
        then_us = 0
        if offset < topic.log.journal_start:
            sealed = self._directory.history.catalogue.find(topic.topic_id)
            then_us = sealed.appended_us(offset) if sealed is not None else 0
        then_us = then_us or topic.log.appended_us(offset)
        if not then_us:
            return UNKNOWN_AGE
        return max(0.0, (self._directory.runtime.clock_us() - then_us) / 1e6)

    # --- Findings ---

    async def findings(self, _request: GetFindings) -> FindingList:
        """Return everything about brokers, topics and storages that is not well."""
        found, silent = await self._everywhere.ask_all(OverviewMethod.FINDINGS, GetFindings(), FindingList)
        rows = [row for each in found for row in each.findings]
        return FindingList(findings=rows, more=sum(each.more for each in found), silent=silent)

    async def _own_findings(self, _request: GetFindings) -> FindingList:
        from danube.broker.operations.wellness import StorageFacts, of_broker, of_storage, of_topic

        found: list[Finding] = list(of_broker(self._facts()))
        name = self._directory.broker
        for storage in self._directory.history.storages.values():
            health = storage.stats().health
            since = health.failing_since_s
            facts = StorageFacts(
                storage=storage.name,
                url=storage.url,
                healthy=health.ok,
                failing_for_s=0.0 if since is None else trio.current_time() - since,
                last_error=health.last_error or "",
            )
            found += of_storage(name, facts)
        number = 0
        for topic, record in list(self._directory.catalogue.topics()):
            for each, topic_id in members(topic, record):
                number += 1
                if number % (50 * _TURN) == 0:
                    await trio.lowlevel.checkpoint()
                served = self._directory.served(topic_id)
                if served is not None and served.failure is not None:
                    found += of_topic(name, each, stopped=str(served.failure))
                elif served is None and isinstance(self._directory.membership.owners.owner_of(topic_id), Mine):
                    found += of_topic(name, each, absent=str(self._directory.absence(each, record, topic_id)))
        await trio.lowlevel.checkpoint()
        return FindingList(findings=found[:MAX_FINDINGS], more=max(0, len(found) - MAX_FINDINGS))


def _place(row: SubscriptionRow) -> tuple[str, str]:
    return row.topic, row.subscription
