"""What a route is, and parameters that several of them take. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from danube.web.lists import MOST

__all__ = [
    "API",
    "BYTES",
    "DRY_RUN",
    "EVENTS",
    "JSON",
    "LIST",
    "NDJSON",
    "PARTITION",
    "SUBSCRIPTION",
    "TEXT",
    "TOPIC",
    "Parameter",
    "Route",
]

API: Final = "/api/v1"

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"
TEXT: Final = "text/plain"


class Parameter(NamedTuple):
    """A parameter of a query, or a header."""

    name: str
    kind: type
    summary: str
    default: Any = None
    least: int = 0
    most: int = 2**63 - 1
    header: bool = False
    required: bool = False


class Route(NamedTuple):
    """One row of the table."""

    method: str
    template: str
    """Path with ``{names}``; the last segment may end in ``:verb``."""
    operation: str
    """Id of the operation, and the name of its handler."""
    summary: str
    calls: tuple[str, ...] = ()
    """Paths of the native calls that the handler makes; empty: it shows nothing that needs a right."""
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    """Type of the JSON body; None: there is none."""
    body_types: tuple[str, ...] = (JSON,)
    """Media types of the body."""
    optional_body: bool = False
    """Whether the body may be left out."""
    answer: Any = None
    """Type of the JSON answer; None: it is none of JSON."""
    answer_types: tuple[str, ...] = (JSON,)
    status: int = 200
    dry_answer: Any = None
    """Type of the JSON answer with ``dry_run``, whose status is 200; None: that answer is as any."""
    matched: bool = False
    """Whether ``If-Match`` with the id of the topic is required, except with ``dry_run``: the call destroys something,
    and must not meet a topic that was created again under the same name."""
    lasting: bool = False
    """Whether it may take longer than ``http_request_timeout_s``."""
    early: bool = False
    """Whether it is served while the broker starts."""
    guarded: bool = True
    """Whether the name in ``Host`` is checked; probes of orchestrators may use any."""

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments of the template."""
        return tuple(self.template[1:].split("/")) if self.template != "/" else ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in the path."""
        return tuple(each.partition("}")[0][1:] for each in self.segments if each.startswith("{"))


LIST: Final = (
    Parameter("q", str, "Only items whose name contains this text."),
    Parameter("sort", str, "A field, with '-' before it for the reverse order."),
    Parameter("limit", int, "Most items of the page.", 100, 1, MOST),
    Parameter("cursor", str, "The `next` of the page before."),
)
DRY_RUN: Final = Parameter("dry_run", bool, "Change nothing: report what would happen.", False)
PARTITION: Final = Parameter("partition", int, "One partition of a partitioned topic; without it, all.", None, 0, 2**31)
TOPIC: Final = f"{API}/topics/{{namespace}}/{{name}}"
"""Path of a topic."""
SUBSCRIPTION: Final = f"{TOPIC}/subscriptions/{{subscription}}"
"""Path of a subscription."""
