"""How the server reads targets, and words the errors that it reports itself, for handlers with an API of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from danube.http._messages import Response
from danube.http._target import Target, parse_target

__all__ = ["PLAIN", "Dialect"]


class Dialect(NamedTuple):
    """What is special about the API behind a server."""

    parse_target: Callable[[bytes], Target] = parse_target
    """Decodes the target of a request, or raises InvalidArgumentError."""
    reworded: Callable[[Response], Response] = lambda response: response
    """Returns what is sent instead of a problem that the server reports itself."""


PLAIN: Final = Dialect()
"""Problems as RFC 9457 defines them."""
