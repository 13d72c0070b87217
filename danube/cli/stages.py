"""``danube stages``: lists uncommitted stages of distributed jobs, and drops them."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._client import run_with_client
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, human_bytes, print_json, show_rows
from danube.model.errors import FailedPreconditionError

__all__ = ["stages_app"]

stages_app = typer.Typer(no_args_is_help=True, help="List staged batches that are not committed yet, and abort them.")

_COLUMNS = ("stage", "producer", "batch", "attempt", "topic", "state", "records", "bytes", "age s")


@stages_app.command("list")
def list_stages(
    producer: Annotated[
        str, typer.Option("-p", "--producer", metavar="NAME", help="Only stages of this producer.")
    ] = "",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List stages, the oldest first: producer and batch, the attempt of a task that wrote it, and its state.

    A stage is open while its task writes, staged while it waits for the commit, and committing once the commit is
    decided. Uncommitted stages expire (limit stage_expiry_s).
    """
    found = run_with_client(lambda client: client.stages.describe(producer), url, context)
    rows = [
        {
            "stage": f"{one.stage_id:016x}",
            "producer": one.producer,
            "batch": one.batch_id,
            "attempt": one.attempt,
            "topic": one.topic,
            "state": one.state,
            "records": one.records,
            "bytes": one.size_bytes,
            "age s": round(one.age_s, 1),
        }
        for one in found.stages
    ]
    if output is Output.JSON:
        print_json(
            {"stages": rows, "total": found.total, "size_bytes": found.size_bytes, "limit_bytes": found.limit_bytes}
        )
        return
    show_rows(rows, _COLUMNS, output)
    more = f"; these are {len(rows)} of {found.total}" if found.total > len(rows) else ""
    typer.echo(f"{human_bytes(found.size_bytes)} of {human_bytes(found.limit_bytes)} staged{more}", err=True)


@stages_app.command("abort")
def abort_stages(
    producer: Annotated[str, typer.Argument(metavar="PRODUCER")],
    batch: Annotated[int, typer.Argument(metavar="BATCH", min=0)],
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Drop all stages of one batch. If the batch is already committed, the command fails and changes nothing."""
    if run_with_client(lambda client: client.stages.abort(producer, batch), url, context):
        raise FailedPreconditionError(f"batch {batch} of producer {producer!r} is committed; it cannot be aborted")
    print(f"aborted batch {batch} of {producer}")
