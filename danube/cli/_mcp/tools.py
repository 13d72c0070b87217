"""The tools of ``danube mcp``: each checks its input, makes calls of the broker, and returns plain data.

A call has a connection of its own, made with the credentials of the context: so it may do what a command may do, a
token that was renewed is taken at once, and a broker that is away is an error of this call only.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from danube.cli._client import to_plain
from danube.cli._durations import parse_duration
from danube.cli._mcp import inputs
from danube.cli._mcp.outputs import MAX_OUTPUT_CHARS, encoded, message_row
from danube.cli._positions import parse_position
from danube.model.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError
from danube.model.redaction import without_secrets

if TYPE_CHECKING:
    from danube.cli._overview import Problem, Whole
    from danube.client import Client
    from danube.web.bodies import SearchEnd, SearchProgress
    from danube.web.search.scanning import Found

__all__ = ["TOOLS", "Session", "Tool"]

_LAG_FIELDS: Final = (
    "topic",
    "subscription",
    "type",
    "state",
    "well",
    "sentence",
    "backlog_messages",
    "oldest_age_s",
    "consumers",
    "partitions",
)
_LAG_MORE: Final = (
    "in_flight_messages",
    "waiting_messages",
    "delayed_messages",
    "poisoned_messages",
    "dead_lettered_messages",
)
"""Fields that are left out where they are 0."""


class Session(NamedTuple):
    """What a tool works with."""

    client: Client
    full_name: Callable[[str], str]
    """Returns the full name of a topic: a bare one is in the context's namespace."""


Handler = Callable[[Session, Any], Awaitable[dict[str, Any]]]


class Tool(NamedTuple):
    """A tool."""

    name: str
    description: str
    """For the model on the other side: what it does, and when to use it."""
    input: type[Any]
    """One of :mod:`danube.cli._mcp.inputs`."""
    handler: Handler
    writes: bool = False
    """Whether it changes something; offered only with ``--allow-writes``."""
    destructive: bool = False
    """Whether that can hardly be undone."""


# --- What is going on


async def _explain(session: Session, wanted: inputs.ExplainInput) -> dict[str, Any]:
    from danube.cli._everything import Patience, look, look_at_topic
    from danube.cli._overview import absent, remedy_of, with_age

    patience = Patience(parse_duration(wanted.patience), parse_duration(wanted.absent))
    if wanted.subscription and not wanted.topic:
        raise InvalidArgumentError("subscription needs topic, too")
    if not wanted.topic:
        found = await look(session.client, patience)
        return {
            "well": not found.problems,
            "subscriptions": len(found.subscriptions),
            "not_well": [_problem(each) for each in found.problems],
            "without_consumer_but_well": [
                {"topic": each.topic, "subscription": each.subscription, "sentence": with_age(each)}
                for each in absent(found.subscriptions)
            ],
        }
    topic = session.full_name(wanted.topic)
    rows, stopped = await look_at_topic(session.client, topic, patience)
    if wanted.subscription:
        rows = [each for each in rows if each.subscription == wanted.subscription]
        if not rows:
            await session.client.admin.describe_subscription(topic, wanted.subscription)  # says why
    return {
        "well": not stopped and all(each.well for each in rows),
        "not_well": [_problem(each) for each in stopped],
        "subscriptions": [
            _lag_row(each)
            | {"sentence": with_age(each)}
            | ({} if each.well else {"remedy": remedy_of(each.state, each.topic, each.subscription)})
            for each in rows
        ],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {name: value for name, value in to_plain(problem).items() if value}


async def _lag_report(session: Session, wanted: inputs.LagInput) -> dict[str, Any]:
    from danube.cli._overview import wholes, worst_first

    overview = await session.client.admin.overview(
        namespace=wanted.namespace or None, topic=session.full_name(wanted.topic) or None
    )
    found = [
        each
        for each in worst_first(wholes(overview.subscriptions))
        if each.backlog_messages >= wanted.min_backlog
        and (not wanted.subscription or each.subscription == wanted.subscription)
    ]
    result: dict[str, Any] = {
        "subscriptions_in_all": len(found),
        "backlog_messages_in_all": sum(each.backlog_messages for each in found),
        "subscriptions": [_lag_row(each) for each in found[: wanted.limit]],
    }
    if overview.silent:
        result["brokers_without_answer"] = overview.silent
    return result


def _lag_row(whole: Whole) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(whole, name) for name in _LAG_FIELDS}
    row["oldest_age_s"] = round(whole.oldest_age_s, 1) if whole.oldest_age_s >= 0 else None
    return row | {name: getattr(whole, name) for name in _LAG_MORE if getattr(whole, name)}


async def _list_topics(session: Session, wanted: inputs.TopicsInput) -> dict[str, Any]:
    found = [
        each
        for each in await session.client.admin.list_topics(wanted.namespace or None)
        if wanted.contains in each.topic
    ]
    rows = [
        {
            "topic": each.topic,
            "partitions": each.partitions,
            "durability": each.durability.value,
            "messages": each.messages,
            "stored_bytes": each.stored_bytes,
            "subscriptions": each.subscriptions,
        }
        for each in found[: wanted.limit]
    ]
    return {"topics_in_all": len(found), "topics": rows}


async def _describe_topic(session: Session, wanted: inputs.DescribeInput) -> dict[str, Any]:
    from danube.cli._overview import wholes, worst_first

    topic, admin = session.full_name(wanted.topic), session.client.admin
    result: dict[str, Any] = {"topic": to_plain(await admin.describe_topic(topic))}
    overview = await admin.overview(topic=topic)
    result["subscriptions"] = [_lag_row(each) for each in worst_first(wholes(overview.subscriptions))]
    result["policies"] = to_plain(await admin.policies(topic))
    return result


async def _storage_status(session: Session, _wanted: inputs.NoInput) -> dict[str, Any]:
    plain: dict[str, Any] = without_secrets(to_plain(await session.client.storages.status()))
    return plain


async def _connections(session: Session, wanted: inputs.ConnectionsInput) -> dict[str, Any]:
    found = await session.client.admin.list_connections()
    return {"connections_in_all": len(found), "connections": [to_plain(each) for each in found[: wanted.limit]]}


async def _config(session: Session, _wanted: inputs.NoInput) -> dict[str, Any]:
    admin = session.client.admin
    result: dict[str, Any] = {"broker": to_plain(await admin.info())}
    for name, call in (("policies", admin.policies), ("cluster", admin.cluster_status)):
        try:
            result[name] = to_plain(await call())
        except PermissionDeniedError as error:
            result[name] = f"not shown: {error.message}"
    plain: dict[str, Any] = without_secrets(result)
    return plain


# --- Messages


async def _read_messages(session: Session, wanted: inputs.ReadInput) -> dict[str, Any]:
    topic = session.full_name(wanted.topic)
    if wanted.last is not None and wanted.start is not None:
        raise InvalidArgumentError("give last or start, not both")
    if wanted.start is not None:
        start: Any = parse_position(wanted.start)
        most = wanted.limit
    else:
        most = wanted.last or wanted.limit
        start = await _before_end(session.client, topic, most)
    rows: list[tuple[int, dict[str, Any]]] = []
    async with session.client.reader(topic, start=start) as reader:
        async for batch in reader.batches(until_caught_up=True):
            rows += [(each.publish_time_us, message_row(each, wanted.max_payload_chars)) for each in batch]
            if wanted.start is not None and len(rows) >= most:
                break
    if wanted.start is None:
        # Each partition has given its newest ones; those of all are wanted, the oldest of them first.
        rows = sorted(rows, key=lambda row: row[0])[-most:]
    return {"topic": topic, "messages": [row for _, row in rows[:most]]}


async def _before_end(client: Client, topic: str, count: int) -> dict[int, int]:
    """Return for each partition the offset of its last so many messages."""
    starts: dict[int, int] = {}
    for index, name in enumerate((await client.admin.lookup_topic(topic)).topics):
        info = await client.admin.describe_topic(name)
        starts[index] = max(info.start_offset, info.end_offset - count)
    return starts


async def _search_messages(session: Session, wanted: inputs.SearchInput) -> dict[str, Any]:
    from danube.model.limits import Limits
    from danube.web.messages import parse_positions
    from danube.web.search.engine import Search
    from danube.web.search.jobs import Job
    from danube.web.search.planning import plan_search

    topic = session.full_name(wanted.topic)
    start: Any = parse_position(wanted.start) if wanted.resume is None else parse_positions(wanted.resume)
    job = Job(
        filter=wanted.filter,
        parts=await plan_search(session.client, topic, wanted.filter, start, direct=False),
        max_matches=wanted.limit,
        max_bytes=MAX_OUTPUT_CHARS,
        max_s=wanted.max_seconds,
        payload_bytes=MAX_OUTPUT_CHARS,
        max_batch_bytes=Limits().max_batch_bytes,
    )
    report = _Report(wanted.max_payload_chars)
    await Search(session.client, job, report).run()
    result: dict[str, Any] = {"topic": topic, "messages": report.rows}
    if report.ended is not None:
        result |= {"scanned_messages": report.ended.scanned, "complete": report.ended.reason == "complete"}
        if not result["complete"]:
            result["resume"] = report.ended.next
    return result


class _Report:
    """Takes what a search finds."""

    def __init__(self, max_payload_chars: int) -> None:
        self._max_payload_chars = max_payload_chars
        self.rows: list[dict[str, Any]] = []
        self.ended: SearchEnd | None = None

    def match(self, found: Found, _positions: Mapping[int, int]) -> bytes:
        """Take a match; its size counts for the bound of the answer."""
        row = message_row(found, self._max_payload_chars)
        self.rows.append(row)
        return encoded(row).encode()

    async def send(self, data: bytes) -> None:
        """Give way to other calls: the matches are here already."""
        await trio.lowlevel.checkpoint()

    async def progress(self, progress: SearchProgress) -> None:
        """Do nothing: the answer comes at the end."""

    async def end(self, end: SearchEnd) -> None:
        """Take how it has ended."""
        self.ended = end


async def _who_has_it(session: Session, wanted: inputs.WhoInput) -> dict[str, Any]:
    topic = session.full_name(wanted.topic)
    names = (await session.client.admin.lookup_topic(topic)).topics
    if wanted.partition >= len(names):
        raise InvalidArgumentError(f"partition {wanted.partition} does not exist: {topic} has {len(names)}, from 0 on")
    found = await session.client.admin.find_deliveries(names[wanted.partition], wanted.offset)
    rows = [
        {name: value for name, value in to_plain(each).items() if value not in (None, "", 0)}
        for each in found.deliveries
    ]
    return {"topic": found.topic, "offset": found.offset, "subscriptions": rows}


# --- What changes something


async def _publish(session: Session, wanted: inputs.PublishInput) -> dict[str, Any]:
    topic = session.full_name(wanted.topic)
    if wanted.encoding == "base64":
        try:
            payload = base64.b64decode(wanted.payload, validate=True)
        except binascii.Error as error:
            raise InvalidArgumentError(f"payload is no base64: {error}") from error
    else:
        payload = wanted.payload.encode("utf-8", "surrogateescape")
    if not wanted.create:
        await session.client.admin.lookup_topic(topic)  # a producer would create it
    async with session.client.producer(topic) as producer:
        receipt = await producer.send(payload, key=wanted.key, attributes=wanted.attributes or None)
    return {"topic": topic, "partition": receipt.partition, "offset": receipt.offset, "stored": True}


async def _seek(session: Session, wanted: inputs.SeekInput) -> dict[str, Any]:
    topic, admin = session.full_name(wanted.topic), session.client.admin
    place = parse_position(wanted.position)
    plans = await admin.plan_seek(topic, wanted.subscription, place)
    if not wanted.dry_run:
        await admin.seek_subscription(topic, wanted.subscription, place)
    return {"done": not wanted.dry_run, "partitions": [to_plain(plan) for plan in plans]}


async def _skip(session: Session, wanted: inputs.SkipInput) -> dict[str, Any]:
    topic, admin = session.full_name(wanted.topic), session.client.admin
    plans = await admin.plan_seek(topic, wanted.subscription, by=wanted.messages)
    if wanted.dry_run:
        rows = [
            {"topic": plan.topic, "skipped_messages": plan.skipped_messages, "below": plan.target} for plan in plans
        ]
        return {"done": False, "partitions": rows}
    done = await admin.skip_planned(wanted.subscription, plans)
    return {"done": True, "partitions": [to_plain(each) for each in done]}


async def _replay(session: Session, wanted: inputs.ReplayInput) -> dict[str, Any]:
    from danube.client.replaying import Replay, ReplayOptions

    to = session.full_name(wanted.to) or None
    topic = session.full_name(wanted.topic)
    try:
        await session.client.admin.lookup_topic(topic)
    except NotFoundError as error:
        raise NotFoundError(f"{error.message}; without a dead-letter topic nothing has failed yet") from error
    options = ReplayOptions(topic=topic, to=to, limit=wanted.limit, dry_run=wanted.dry_run)
    options.check()
    replay = Replay(session.client, options)
    await replay.run()
    return {
        "done": not wanted.dry_run,
        "replayed_messages": replay.count,
        "by_topic": dict(replay.sent),
        "left_messages": replay.left,
        "reasons": replay.reasons,
    }


TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        "explain",
        "Say what is not well at the brokers, a sentence and a remedy each: start here when something does not work."
        " With topic: its subscriptions; with subscription, too: why that one moves or does not.",
        inputs.ExplainInput,
        _explain,
    ),
    Tool(
        "lag_report",
        "List subscriptions with backlog, age of the oldest unacknowledged message, state and consumers, the worst"
        " first.",
        inputs.LagInput,
        _lag_report,
    ),
    Tool("list_topics", "List topics with messages, bytes and subscriptions.", inputs.TopicsInput, _list_topics),
    Tool(
        "describe_topic",
        "Describe one topic: offsets, sizes, producers, retention; its subscriptions; the policies in effect and the"
        " level that sets each.",
        inputs.DescribeInput,
        _describe_topic,
    ),
    Tool(
        "read_messages",
        "Read messages of a topic without a subscription: the newest ones (last), or from a position on (start)."
        " Consumers are not affected.",
        inputs.ReadInput,
        _read_messages,
    ),
    Tool(
        "search_messages",
        "Search a topic for messages with a filter, from start to its present end. If the answer is not complete, call"
        " again with its resume. Consumers are not affected.",
        inputs.SearchInput,
        _search_messages,
    ),
    Tool(
        "who_has_it",
        "Say where one message is in each subscription of its topic: acknowledged, in flight at which consumer and for"
        " how long, waiting, delayed, dead-lettered, or not delivered yet.",
        inputs.WhoInput,
        _who_has_it,
    ),
    Tool(
        "storage_status",
        "Show the storages of sealed history: health, errors, latencies, and what is not sealed yet.",
        inputs.NoInput,
        _storage_status,
    ),
    Tool(
        "config",
        "Show the broker's figures and limits, its policies, and the cluster. Secrets are left out.",
        inputs.NoInput,
        _config,
    ),
    Tool(
        "connections",
        "List the open connections: peer, protocol, client library, caller, traffic.",
        inputs.ConnectionsInput,
        _connections,
    ),
    Tool("publish", "Publish one message; returns where it is stored.", inputs.PublishInput, _publish, writes=True),
    Tool(
        "seek",
        "Move a subscription: messages from the position on are delivered again, also acknowledged ones; those before"
        " it are not delivered. Look at the dry run first.",
        inputs.SeekInput,
        _seek,
        writes=True,
        destructive=True,
    ),
    Tool(
        "skip",
        "Skip the next unacknowledged messages of a subscription: they count as acknowledged. Look at the dry run"
        " first.",
        inputs.SkipInput,
        _skip,
        writes=True,
        destructive=True,
    ),
    Tool(
        "replay",
        "Send dead letters back to the topics in which they failed, and acknowledge them. Look at the dry run first.",
        inputs.ReplayInput,
        _replay,
        writes=True,
    ),
)
"""All tools, in the order in which they are offered."""
