"""What brokers ask each other for the status of the cluster: messages of the channel :data:`CHANNEL`. Pure.

Messages are msgpack arrays with a tag; new fields are added at the end and have a default. A broker that does not know
a question answers with INVALID_ARGUMENT, and counts as one that did not answer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from danube.model.cluster_api import UNKNOWN, BrokerFigures
from danube.model.decoding import UNDECODABLE
from danube.model.errors import InvalidArgumentError
from danube.model.ids import TopicId

__all__ = [
    "CHANNEL",
    "AskFigures",
    "AskLeaving",
    "AskLoads",
    "AskTopics",
    "FiguresTold",
    "HinderedTopic",
    "LeavingTold",
    "LoadsTold",
    "Question",
    "Told",
    "TopicTold",
    "TopicWeight",
    "TopicsTold",
    "decode_answer",
    "decode_question",
    "encode",
]

CHANNEL: Final = "status"
"""The channel of these calls between brokers."""


class _Tagged(msgspec.Struct, array_like=True, tag_field="tag"):
    """Base of the messages; the first element of the array is the tag."""


class AskFigures(_Tagged, tag=0):
    """Asks a broker for its figures. Answered with FiguresTold."""


class AskTopics(_Tagged, tag=1):
    """Asks the owner of topics or partitions how they are. Answered with TopicsTold."""

    topics: list[str]


class AskLoads(_Tagged, tag=2):
    """Asks a broker for its load, and for that of some of its topics. Answered with LoadsTold."""

    most: int
    """Most topics of the answer."""


class AskLeaving(_Tagged, tag=3):
    """Asks a broker which of its topics cannot move, and why. Answered with LeavingTold."""

    most: int
    """Most topics of the answer."""


Question = AskFigures | AskTopics | AskLoads | AskLeaving


class FiguresTold(_Tagged, tag=0):
    """Answer to AskFigures."""

    figures: BrokerFigures


class TopicTold(msgspec.Struct, array_like=True):
    """How one topic is, according to its owner."""

    served: bool
    detail: str = ""
    """Why it is not served."""
    sealed_end: int = UNKNOWN
    """Messages below it are in its storage."""
    hindrance: str = ""
    """Why it cannot be moved to another broker."""
    failure: str = ""
    """Why its last move was given up."""


class TopicsTold(_Tagged, tag=1):
    """Answer to AskTopics, in the same order."""

    topics: list[TopicTold]


class TopicWeight(msgspec.Struct, array_like=True):
    """The load of one topic or partition, which its owner could move."""

    topic_id: TopicId
    topic: str
    storage: str | None = None
    """Of its history; None: it stores nothing."""
    in_bytes_s: float = 0.0
    out_bytes_s: float = 0.0
    """Estimated from the messages that were delivered and their mean size."""
    journal_bytes: int = 0


class LoadsTold(_Tagged, tag=2):
    """Answer to AskLoads: means of the last seconds."""

    in_bytes_s: float
    out_bytes_s: float
    cpu: float
    """Processors that it uses: 1.0 is one of them, fully."""
    journal_used_bytes: int
    journal_limit_bytes: int
    interval_s: float
    """Over which the traffic of topics was measured; 0: it was not yet."""
    topics: list[TopicWeight] = []
    """Those with the most traffic first, then others."""


class HinderedTopic(msgspec.Struct, array_like=True):
    """A topic that cannot be moved to another broker, or whose last move was given up."""

    topic: str
    why: str


class LeavingTold(_Tagged, tag=3):
    """Answer to AskLeaving."""

    topics: int
    """That it serves."""
    hindered: int
    """How many of them cannot move."""
    named: list[HinderedTopic] = []
    failed: list[HinderedTopic] = []
    """Others, whose last move was given up."""


Told = FiguresTold | TopicsTold | LoadsTold | LeavingTold

encode = msgspec.msgpack.Encoder().encode
_QUESTION: Final[msgspec.msgpack.Decoder[Question]] = msgspec.msgpack.Decoder(Question)
_TOLD: Final[msgspec.msgpack.Decoder[Told]] = msgspec.msgpack.Decoder(Told)


def decode_question(payload: bytes) -> Question:
    """Decode a question.

    Raises:
        InvalidArgumentError: it is none that this version knows.
    """
    try:
        return _QUESTION.decode(payload)
    except UNDECODABLE as error:
        raise InvalidArgumentError(f"this version of Danube does not know what was asked ({error})") from error


def decode_answer(payload: bytes) -> Told:
    """Decode an answer.

    Raises:
        InvalidArgumentError: this version does not understand it.
    """
    try:
        return _TOLD.decode(payload)
    except UNDECODABLE as error:
        raise InvalidArgumentError(
            f"it answers with something that this version of Danube does not understand ({error})"
        ) from error
