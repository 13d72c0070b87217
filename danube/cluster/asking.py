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

__all__ = [
    "CHANNEL",
    "AskFigures",
    "AskTopics",
    "FiguresTold",
    "Question",
    "Told",
    "TopicTold",
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


Question = AskFigures | AskTopics


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


class TopicsTold(_Tagged, tag=1):
    """Answer to AskTopics, in the same order."""

    topics: list[TopicTold]


Told = FiguresTold | TopicsTold

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
