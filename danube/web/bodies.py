"""JSON bodies that have no counterpart in the native API: pages, messages, what publishers and pullers send. Pure."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from danube.model import api, overview_api, security_api
from danube.model.policies import SubscriptionType
from danube.web.twins import twin

__all__ = [
    "AckIds",
    "Configuration",
    "Extension",
    "LimitList",
    "MessagePage",
    "MessageRow",
    "NamespacePage",
    "NamespaceRow",
    "Publication",
    "PublishedMessage",
    "SearchEnd",
    "SearchMessages",
    "SearchProgress",
    "Pull",
    "PulledMessage",
    "PulledMessages",
    "Receipts",
    "ReceiptRow",
    "Refusal",
    "Login",
    "SessionState",
    "Setting",
    "Settled",
    "Skip",
    "Skipped",
    "SubscriptionPage",
    "TopicPage",
]

Count = Annotated[int, Meta(ge=0)]
_TopicInfo: Any = twin(api.TopicInfo)
_CeilingGrant: Any = twin(security_api.CeilingGrant)
_SubscriptionRow: Any = twin(overview_api.SubscriptionRow)


class _Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of requests."""


class _Answer(msgspec.Struct, kw_only=True):
    """Base of answers."""


# --- The broker


class Setting(_Answer, kw_only=True):
    """One setting, or one limit."""

    name: str
    """With dots where settings are in tables: ``tls.cert``."""
    value: Any
    """Secrets are ``***``."""
    source: str
    """``default``, or ``configured``: by a file or an option."""


class Configuration(_Answer, kw_only=True):
    """All settings of a broker, without its limits."""

    settings: list[Setting]


class LimitList(_Answer, kw_only=True):
    """All limits of a broker."""

    limits: list[Setting]


# --- Sessions


class Login(_Body, kw_only=True):
    """Who logs in."""

    token: Annotated[str, Meta(min_length=1, max_length=16_384)]
    """A token, or an API key."""


class SessionState(_Answer, kw_only=True):
    """Who the caller is, what it may do, and its session."""

    subject: str
    """``user:anonymous`` if the broker has no access control."""
    secured: bool
    """Whether the broker has access control; if not, every caller may do everything."""
    proof: str
    """Kind and id of the credential."""
    expires_us: int
    """When the credential ends; 0: never."""
    grants: list[_CeilingGrant]
    """Permissions by scope."""
    more: bool
    """Whether there are more grants than these."""
    csrf: str
    """What calls other than GET send as ``Danube-CSRF``; empty: the caller has no session."""
    ends_in_s: float
    """Time until the session ends, however much it is used; 0 without one."""
    idle_s: float
    """Time without a call after which it ends before; 0 without one."""


# --- Pages


class NamespaceRow(_Answer, kw_only=True):
    """One namespace."""

    namespace: str


class NamespacePage(_Answer, kw_only=True):
    """Namespaces."""

    items: list[NamespaceRow]
    total: int
    next: str = ""


class TopicPage(_Answer, kw_only=True):
    """Topics or partitions."""

    items: list[_TopicInfo]
    total: int
    next: str = ""


class SubscriptionPage(_Answer, kw_only=True):
    """Subscriptions of several topics."""

    items: list[_SubscriptionRow]
    total: int
    next: str = ""
    silent: list[str] = []
    """Brokers that did not answer: their subscriptions are missing."""


# --- Messages


class MessageRow(msgspec.Struct, kw_only=True):
    """One message."""

    topic: str
    """The plain topic or the partition."""
    partition: int
    offset: int
    key: str | None
    """None: it has no key, or one that is no text."""
    key_base64: str | None = None
    """A key that is no text."""
    attributes: dict[str, str] = {}
    publish_time_us: int
    """By the clock of the producer, microseconds since the epoch."""
    append_time_us: int
    """By the clock of the broker."""
    producer: str
    size_bytes: int
    """Of the whole payload."""
    payload: str | None
    """As text; None: it is no text."""
    payload_base64: str | None = None
    """A payload that is no text."""
    truncated: bool = False
    """The payload was cut."""


class MessagePage(_Answer, kw_only=True):
    """Messages in the order of their append times; those of one partition in the order of their offsets."""

    messages: list[MessageRow]
    next: str
    """``from`` of the next page."""
    caught_up: bool
    """There were no more messages when they were read."""


class SearchMessages(_Body, kw_only=True):
    """A search in a topic."""

    filter: Annotated[str, Meta(max_length=4096)]
    """Which messages, such as ``value.user == "ada" and value.total > 10``; empty: all."""
    start: str = "earliest"
    """Where to begin: earliest, latest, an offset, -N, @TIME, or the ``next`` of the search before."""
    max_matches: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Most matches."""
    max_s: Annotated[float, Meta(gt=0, le=600)] = 60.0
    """How long it may take."""
    max_bytes: Annotated[int, Meta(ge=1, le=64 << 20)] = 8 << 20
    """Bytes of the events with matches; the last one may exceed it."""
    payload_bytes: Annotated[int, Meta(ge=0, le=12 << 20)] = 65_536
    """Bytes of a payload beyond which it is cut; 0 for none of it."""


class SearchProgress(_Answer, kw_only=True):
    """How far a search is; the data of its events ``progress``."""

    partition: int
    """That is being read."""
    offset: int
    """In it."""
    scanned: int
    """Messages that it has looked at."""
    total: int
    """Messages that it looks at if no bound ends it."""
    matches: int
    elapsed_s: float
    per_second: int
    """Messages that it has looked at in a second."""


class SearchEnd(SearchProgress, kw_only=True):
    """The end of a search; the data of its event ``end``."""

    reason: str
    """``complete``, or the bound that ended it: ``matches``, ``bytes`` or ``time``."""
    next: str
    """``start`` of a search that goes on."""


class PublishedMessage(_Body, kw_only=True):
    """A message to be published: one of ``payload``, ``payload_base64`` and ``value``."""

    payload: str | None = None
    """As text."""
    payload_base64: str | None = None
    value: Any = msgspec.UNSET
    """Any JSON value; it is stored as compact JSON."""
    key: str | None = None
    key_base64: str | None = None
    attributes: dict[str, str] | None = None
    deliver_after_s: float | None = None
    """Subscriptions do not deliver it before."""
    deliver_at: str | None = None
    """The same as a time in ISO 8601."""


class Publication(_Body, kw_only=True):
    """Messages to be published, in this order."""

    messages: list[PublishedMessage]


class ReceiptRow(_Answer, kw_only=True):
    """Where a message is stored."""

    topic: str
    partition: int
    offset: int
    """-1: a repetition of a message that was stored so long ago that its offset is not known any more."""


class Receipts(_Answer, kw_only=True):
    """Where messages are stored, in the order in which they were sent."""

    receipts: list[ReceiptRow]


# --- Consumers


class Pull(_Body, kw_only=True):
    """What a pull asks for."""

    max: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Most messages."""
    wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.0
    """How long to wait for the first message."""
    type: SubscriptionType = SubscriptionType.SHARED
    """Of the subscription."""
    start: str | int = "latest"
    """Where the subscription starts if it does not exist yet: ``earliest``, ``latest`` or an offset."""


class PulledMessage(MessageRow, kw_only=True):
    """A message that was delivered to a puller."""

    ack_id: str
    """Names the delivery."""
    attempt: int
    """1 for the first delivery."""


class PulledMessages(_Answer, kw_only=True):
    """Messages that a puller has to settle before their ack timeout."""

    messages: list[PulledMessage]
    ack_timeout_s: float
    """Time after which an unsettled message is delivered again; 0: never."""


class AckIds(_Body, kw_only=True):
    """Deliveries to be acknowledged."""

    ack_ids: list[str]


class Refusal(AckIds, kw_only=True):
    """Deliveries to be refused."""

    delay_s: Annotated[float, Meta(ge=0)] | None = None
    """Pause before the redelivery; None: as the policy says."""
    reason: str = ""


class Extension(AckIds, kw_only=True):
    """Deliveries whose ack timeout is to be moved."""

    lease_s: Annotated[float, Meta(gt=0)] | None = None
    """From now on; None: the subscription's ack timeout."""


class Settled(_Answer, kw_only=True):
    """What became of deliveries."""

    settled: int
    unknown: list[str]
    """Ids that mean no delivery any more: it was settled before, or timed out, or its session has ended."""


class Skip(_Body, kw_only=True):
    """How much to skip."""

    messages: Annotated[int, Meta(ge=1)]


class Skipped(_Answer, kw_only=True):
    """What was skipped."""

    position: int
    """All messages below it are acknowledged."""
    skipped_messages: int = 0
    """Unacknowledged messages that it passes over."""
