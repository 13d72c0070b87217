"""Where a request belongs that only another broker can answer. Pure.

Most requests about topics of other brokers are passed on between the brokers, or make their native calls at the owner.
What is left is answered with 307 and the same target at the owner's HTTP port, which ``curl -L`` follows; or, if that
port is not known, with 503 and the owner's address.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from danube.http import Response, Target, problem, problem_of
from danube.model.errors import NotOwnerError

__all__ = ["answer_of_owner", "location_of"]


def location_of(url: str, target: Target) -> str:
    """Return the URL of a target at the HTTP port with a URL such as ``http://b2:8650``."""
    path = quote(target.path, safe="/%:@!$&'()*+,;=~-._")
    query = urlencode(target.query)
    return f"{url}{path}?{query}" if query else f"{url}{path}"


def answer_of_owner(error: NotOwnerError, urls: Mapping[str, str], target: Target, *, whole: bool) -> Response:
    """Return the answer for a request that only the owner of its topic can answer.

    Args:
        error: names the owner.
        urls: of the HTTP ports of brokers, by the addresses of their client ports.
        target: of the request.
        whole: one broker owns all that the request is about: not if its topic has several partitions, whose owners
            would send the caller to each other.
    """
    url = urls.get(error.address, "") if whole else ""
    if not url:
        return problem_of(error)
    location = location_of(url, target)
    return problem(
        307,
        error.code,
        f"{error.message}; send the request to {location}",
        headers=(("Location", location),),
        details={**error.details, "location": location},
    )
