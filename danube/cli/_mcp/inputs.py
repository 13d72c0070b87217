"""What the tools of ``danube mcp`` take: checked by msgspec, and described to the other side by JSON Schema. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from danube.model.errors import InvalidArgumentError

__all__ = [
    "MAX_MATCHES",
    "MAX_PAYLOAD_CHARS",
    "MAX_PUBLISHED_CHARS",
    "MAX_READ",
    "MAX_ROWS",
    "MAX_SEARCH_S",
    "ConnectionsInput",
    "DescribeInput",
    "ExplainInput",
    "LagInput",
    "NoInput",
    "PublishInput",
    "ReadInput",
    "ReplayInput",
    "SearchInput",
    "SeekInput",
    "SkipInput",
    "TopicsInput",
    "WhoInput",
    "checked",
    "schema_of",
]

MAX_ROWS: Final = 500
"""Most rows of a list."""
MAX_READ: Final = 500
"""Most messages of one ``read_messages``."""
MAX_MATCHES: Final = 200
"""Most messages that one ``search_messages`` returns."""
MAX_SEARCH_S: Final = 30.0
"""How long one ``search_messages`` may take."""
MAX_PAYLOAD_CHARS: Final = 20_000
"""Most characters that are shown of a payload."""
MAX_PUBLISHED_CHARS: Final = 1_000_000
"""Most characters of a payload of ``publish``."""

_Topic = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=512,
        description="/namespace/topic, or a bare name in the namespace of the context, usually /default/NAME",
    ),
]
_Subscription = Annotated[str, Meta(min_length=1, max_length=256, description="name of the subscription")]
_Namespace = Annotated[str, Meta(max_length=256, description="only in this namespace; empty: in all")]
_Rows = Annotated[int, Meta(ge=1, le=MAX_ROWS, description="most rows to return")]
_Duration = Annotated[str, Meta(max_length=32, description="a length of time: 45s, 30m, 12h, 7d")]
_Start = Annotated[
    str,
    Meta(max_length=64, description="earliest, latest, an offset, an ISO 8601 time, or a time such as '2h ago'"),
]
_PayloadChars = Annotated[
    int, Meta(ge=0, le=MAX_PAYLOAD_CHARS, description="characters of each payload to return; longer ones are cut")
]
_DryRun = Annotated[bool, Meta(description="true (the default): change nothing, and return what would happen")]


class _Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all inputs."""


class NoInput(_Input, frozen=True):
    """Of tools without parameters."""


class ExplainInput(_Input, frozen=True, kw_only=True):
    """Of ``explain``."""

    topic: Annotated[str, Meta(max_length=512, description="only this topic; empty: everything")] = ""
    subscription: Annotated[str, Meta(max_length=256, description="only this subscription of the topic")] = ""
    patience: _Duration = "60s"
    absent: Annotated[
        str, Meta(max_length=32, description="the same for subscriptions without a connected consumer")
    ] = "1h"


class TopicsInput(_Input, frozen=True, kw_only=True):
    """Of ``list_topics``."""

    namespace: _Namespace = ""
    contains: Annotated[str, Meta(max_length=256, description="only names that contain this")] = ""
    limit: _Rows = 100


class DescribeInput(_Input, frozen=True, kw_only=True):
    """Of ``describe_topic``."""

    topic: _Topic


class LagInput(_Input, frozen=True, kw_only=True):
    """Of ``lag_report``."""

    namespace: _Namespace = ""
    topic: Annotated[str, Meta(max_length=512, description="only this topic; empty: all")] = ""
    subscription: Annotated[str, Meta(max_length=256, description="only subscriptions of this name")] = ""
    min_backlog: Annotated[int, Meta(ge=0, le=2**53, description="leave out those with fewer messages to go")] = 0
    limit: _Rows = 50


class ReadInput(_Input, frozen=True, kw_only=True):
    """Of ``read_messages``."""

    topic: _Topic
    last: (
        Annotated[int, Meta(ge=1, le=MAX_READ, description="the newest so many messages; not together with start")]
        | None
    ) = None
    start: (
        Annotated[
            str, Meta(max_length=64, description="earliest, an offset, an ISO 8601 time, or a time such as '2h ago'")
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=MAX_READ, description="most messages to return")] = 10
    max_payload_chars: _PayloadChars = 2_000


class SearchInput(_Input, frozen=True, kw_only=True):
    """Of ``search_messages``."""

    topic: _Topic
    filter: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2_000,
            description='such as: value.user == "ada" and value.total > 10 and key ^= "eu-". Fields: key, text,'
            " value.PATH (of JSON payloads), header.NAME (attributes), partition, offset, time, size, producer."
            " Operators: == != < <= > >=, ~ (contains), ~~ (in any case), !~, ^= (begins with), $= (ends with),"
            " in (1, 2); and, or, not, brackets. Words alone are looked for in keys, attributes and payloads.",
        ),
    ]
    start: _Start = "earliest"
    resume: (
        Annotated[
            str,
            Meta(max_length=20_000, description="`resume` of the former answer, to go on there; in the place of start"),
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=MAX_MATCHES, description="stop after so many matches")] = 20
    max_seconds: Annotated[float, Meta(gt=0, le=MAX_SEARCH_S, description="stop after this time")] = 10.0
    max_payload_chars: _PayloadChars = 2_000


class WhoInput(_Input, frozen=True, kw_only=True):
    """Of ``who_has_it``."""

    topic: _Topic
    offset: Annotated[int, Meta(ge=0, le=2**62, description="offset of the message in its partition")]
    partition: Annotated[int, Meta(ge=0, le=100_000, description="0 for a topic without partitions")] = 0


class ConnectionsInput(_Input, frozen=True, kw_only=True):
    """Of ``connections``."""

    limit: _Rows = 100


class PublishInput(_Input, frozen=True, kw_only=True):
    """Of ``publish``."""

    topic: _Topic
    payload: Annotated[str, Meta(max_length=MAX_PUBLISHED_CHARS, description="the message; JSON as text")]
    encoding: Annotated[Literal["text", "base64"], Meta(description="base64: `payload` is bytes in this encoding")] = (
        "text"
    )
    key: Annotated[str, Meta(max_length=1_000, description="key of the message")] | None = None
    attributes: Annotated[dict[str, str], Meta(max_length=100, description="attributes (headers)")] = {}
    create: Annotated[bool, Meta(description="create the topic if it does not exist; else that is an error")] = False


class SeekInput(_Input, frozen=True, kw_only=True):
    """Of ``seek``."""

    topic: _Topic
    subscription: _Subscription
    position: Annotated[
        str, Meta(max_length=64, description="earliest, latest, an offset, an ISO 8601 time, or '2h ago'")
    ]
    dry_run: _DryRun = True


class SkipInput(_Input, frozen=True, kw_only=True):
    """Of ``skip``."""

    topic: _Topic
    subscription: _Subscription
    messages: Annotated[int, Meta(ge=1, le=2**53, description="how many, in each partition")]
    dry_run: _DryRun = True


class ReplayInput(_Input, frozen=True, kw_only=True):
    """Of ``replay``."""

    topic: Annotated[str, Meta(min_length=1, max_length=512, description="the dead-letter topic, for example X-s-dlq")]
    to: Annotated[str, Meta(max_length=512, description="send there; empty: where each message came from")] = ""
    limit: Annotated[int, Meta(ge=1, le=100_000, description="most messages to replay")] = 100
    dry_run: _DryRun = True


I = TypeVar("I", bound=_Input)  # noqa: E741 - an input


def checked(kind: type[I], arguments: Mapping[str, Any] | None) -> I:
    """Return the arguments of a call as its input.

    Raises:
        InvalidArgumentError: one is unknown, is missing, or has a value that is not allowed.
    """
    try:
        return msgspec.convert(dict(arguments or {}), type=kind, strict=True)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(kind)) or "none"
        text = str(error).replace(" - at `$.", " - at `")
        raise InvalidArgumentError(f"the arguments are wrong: {text}; parameters of this tool: {known}") from error


def schema_of(kind: type[_Input]) -> dict[str, Any]:
    """Return the JSON Schema of an input: an object without references."""
    found: dict[str, Any] = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return {name: value for name, value in found.items() if name not in ("title", "description")}
