"""``danube request``: ask a service that listens on a topic, and print its reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from danube.cli._client import run_with_client
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import parse_duration
from danube.cli._names import TopicArgument
from danube.cli._output import Output, OutputOption

if TYPE_CHECKING:
    from danube.client import Client, Message

__all__ = ["request"]


def request(
    topic: TopicArgument,
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="The request, as text.")],
    key: Annotated[str | None, typer.Option("-k", "--key", help="Key of the request.")] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for the reply.")] = "30s",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.RAW,
) -> None:
    """Ask a service that listens on a topic, and print its reply.

    The service is a program with a responder on the topic (client.responder). Raw output is the payload of the reply;
    if the service fails, the command fails with the service's error. Without a reply in time the exit code is 75,
    although the service may have handled the request.
    """
    from danube.cli._printing import make_printer, table_head, write_now

    timeout_s = parse_duration(timeout)

    async def work(client: Client) -> Message:
        await client.admin.lookup_topic(topic)  # opening a requester would create it, without a responder
        async with client.requester(topic) as requester:
            return await requester.request(payload.encode("utf-8", "surrogateescape"), key=key, timeout_s=timeout_s)

    reply = run_with_client(work, url, context)
    if output is Output.TABLE:
        write_now(table_head())
    write_now(make_printer(None, output)([reply]))
