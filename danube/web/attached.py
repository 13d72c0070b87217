"""Handlers of what is attached to a topic: producers, readers, consumers; and of its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from danube.model import api
from danube.model.inspect_api import ExpandTopic, InspectMethod, ListReaders
from danube.web.administration import Handler
from danube.web.caller import ApiCall
from danube.web.inspect_bodies import ConsumerPage, ConsumerRow, ProducerPage, ProducerRow, ReaderPage, ReaderRow
from danube.web.lists import Page, page_of
from danube.web.twins import plain

__all__ = ["HANDLERS"]


async def list_producers(call: ApiCall) -> ProducerPage:
    """Return a page of the producers of a topic, of all its partitions."""
    found = await call.native(api.Method.LOOKUP_TOPIC, api.LookupTopic(call.topic))
    rows = []
    for name in found.topics:
        info = await call.native(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(name))
        rows += [{"topic": name, **plain(each)} for each in info.producers]
    page = _page(call, rows, ("topic", "name", "epoch", "next_sequence", "connected"))
    return ProducerPage(items=[ProducerRow(**row) for row in page.items], total=page.total, next=page.next)


async def list_readers(call: ApiCall) -> ReaderPage:
    """Return a page of the readers of a topic."""
    found = await call.native(InspectMethod.READERS, ListReaders(call.topic))
    rows = [plain(each) for each in found.readers]
    page = _page(call, rows, ("topic", "name", "position", "credit_messages", "delivered_messages"))
    return ReaderPage(items=[ReaderRow(**row) for row in page.items], total=page.total, next=page.next)


async def list_consumers(call: ApiCall) -> ConsumerPage:
    """Return a page of the consumers of a subscription."""
    reference = api.SubscriptionRef(call.topic, call.path["subscription"])
    found = await call.native(api.Method.DESCRIBE_SUBSCRIPTION, reference)
    rows = [{"topic": row.topic, **plain(each)} for row in found.subscriptions for each in row.consumers]
    fields = ("topic", "name", "in_flight_messages", "credit_messages", "delivered_messages", "acked_messages")
    page = _page(call, rows, fields)
    return ConsumerPage(items=[ConsumerRow(**row) for row in page.items], total=page.total, next=page.next)


def _page(call: ApiCall, rows: list[dict[str, Any]], fields: tuple[str, ...]) -> Page:
    return page_of(rows, call.values, name=lambda row: f"{row['name']} {row['topic']}", fields=fields)


async def expand_topic(call: ApiCall) -> Any:
    """Give a partitioned topic more partitions."""
    return await call.native(InspectMethod.EXPAND, ExpandTopic(call.topic, call.body.partitions))


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler for handler in (list_producers, list_readers, list_consumers, expand_topic)
}
