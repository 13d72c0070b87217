"""HTTP/1.1 servers over the transports of :mod:`danube.wire`: plain sockets, TLS, simulated networks.

A handler gets a :class:`Request` and returns a :class:`Response`::

    async def handler(request: Request) -> Response:
        body = await request.body.read()
        return Response(200, b"...", content_type="text/plain")

    server = HttpServer(handler, limits)          # danube.http.server; imports h11
    await nursery.start(server.run, listeners)

The rules are pure: targets and queries (``_target``), what a request may be (``_framing``), problems (``_problem``),
event streams (``_events``), compression and entity tags (``_negotiation``). h11 parses and writes HTTP; the shell
around it (``server``, ``_connection``) is imported only where a listener is configured.
"""

from __future__ import annotations

from danube.http._callers import check_caller, host_name
from danube.http._dialect import PLAIN, Dialect
from danube.http._events import event_text
from danube.http._messages import Body, Handler, Request, Response, Stream, TextSink
from danube.http._problem import problem, problem_of, shown, single_error
from danube.http._target import Target, parse_target

__all__ = [
    "PLAIN",
    "Body",
    "Dialect",
    "Handler",
    "Request",
    "Response",
    "Stream",
    "Target",
    "TextSink",
    "check_caller",
    "event_text",
    "host_name",
    "parse_target",
    "problem",
    "problem_of",
    "shown",
    "single_error",
]
