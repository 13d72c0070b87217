"""``danube storage``: shows the storages of a broker and their state, and checks and repairs their contents."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import human_duration
from danube.cli._output import Output, OutputOption, human_bytes, print_json, show_record, show_rows

if TYPE_CHECKING:
    from danube.client import Client
    from danube.model.history_api import SealingFigures, StorageFindings

__all__ = ["storage_app"]

storage_app = typer.Typer(no_args_is_help=True, help="Show, check and repair the storages of a broker.")

_NameArgument = Annotated[str, typer.Argument(metavar="[NAME]", help="One storage; by default all.")]

_LIST_COLUMNS = ["storage", "url", "durable", "conditional_put", "shared", "topics", "objects", "object_bytes"]
_STATUS_COLUMNS = [
    "storage",
    "healthy",
    "failing_for_s",
    "unsealed_bytes",
    "oldest_unsealed_age_s",
    "objects",
    "object_bytes",
    "garbage_objects",
    "in_flight",
    "waiting",
    "last_error",
]
_OPERATION_COLUMNS = ["storage", "operation", "calls", "failures", "retries", "bytes", "mean_ms"]
_FINDING_COLUMNS = ["storage", "ok", "objects", "size_bytes", "referenced", "garbage", "recent", "orphans"]
_DAMAGE_COLUMNS = ["missing", "damaged"]


@storage_app.command("list")
def list_storages(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the configured storages: location, capabilities and contents."""
    found = run_with_client(lambda client: client.storages.status(), url, context)
    show_rows([to_plain(row) for row in found.storages], _LIST_COLUMNS, output)


@storage_app.command("status")
def status(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the state of the storages, the latency of their operations, and the progress of sealing."""
    found = run_with_client(lambda client: client.storages.status(), url, context)
    rows = [to_plain(row) for row in found.storages]
    if output is Output.JSON:
        print_json({"sealing": to_plain(found.sealing), "storages": rows})
        return
    show_rows(rows, _STATUS_COLUMNS, output)
    if output is Output.RAW:
        return
    operations: list[dict[str, Any]] = [
        {
            "storage": row["storage"],
            "operation": name,
            **to_plain(figures),
            "mean_ms": 1000 * figures.busy_s / figures.calls if figures.calls else 0.0,
        }
        for row, storage in zip(rows, found.storages, strict=True)
        for name, figures in storage.operations.items()
    ]
    if operations:
        print()
        show_rows(operations, _OPERATION_COLUMNS, output)
    print()
    show_record(_sealing_record(found.sealing), output)


def _sealing_record(sealing: SealingFigures) -> dict[str, Any]:
    record: dict[str, Any] = {
        "unsealed": f"{human_bytes(sealing.unsealed_bytes)} of {sealing.unsealed_topics} topics",
        "oldest": f"{human_duration(sealing.oldest_age_s)} (sealed at {human_duration(sealing.max_age_s)})",
        "sealed since start": f"{human_bytes(sealing.sealed_bytes)} in {sealing.sealed_objects} objects",
        "journal": f"{human_bytes(sealing.journal_used_bytes)} of {human_bytes(sealing.journal_limit_bytes)}",
    }
    if sealing.stranded_topics:
        record["stranded"] = (
            f"{human_bytes(sealing.stranded_bytes)} of {sealing.stranded_topics} topics that the metadata do not know;"
            " see: danube topics stranded"
        )
    if sealing.failing_for_s:
        record["failing for"] = human_duration(sealing.failing_for_s)
        record["last error"] = sealing.last_error
    return record


@storage_app.command("check")
def check(
    name: _NameArgument = "",
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all referenced objects, and compare the checksums.")
    ] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check that the history is complete. The exit code is 74 if some of it is missing or damaged.

    Compares names and sizes with the broker's catalogue and reads the manifests; changes nothing.
    """
    _show_findings(
        _for_each(name, lambda client, each: client.storages.check(each, deep=deep), url, context), output, repair=False
    )


@storage_app.command("repair")
def repair(
    name: _NameArgument = "",
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="First accept the location as this storage although its marker is missing: objects that are not"
            " there count as lost. Name the storage.",
        ),
    ] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check, and delete unreferenced objects: orphans, and remains of interrupted uploads.

    The exit code is 74 if history is missing; a repair cannot restore it.
    """
    from danube.model.errors import InvalidArgumentError

    if adopt and not name:
        raise InvalidArgumentError("--adopt is for one storage: name it")
    _show_findings(
        _for_each(name, lambda client, each: client.storages.repair(each, adopt=adopt), url, context),
        output,
        repair=True,
    )


def _for_each(
    name: str,
    work: Callable[[Client, str], Awaitable[StorageFindings]],
    url: str | None,
    context: str | None,
) -> list[StorageFindings]:
    async def all_of_them(client: Client) -> list[StorageFindings]:
        names = [name] if name else [row.storage for row in (await client.storages.status()).storages]
        return [await work(client, each) for each in names]

    return run_with_client(all_of_them, url, context)


def _show_findings(found: list[StorageFindings], output: Output, *, repair: bool) -> None:
    from danube.model.errors import DataLossError

    done = ["deleted", "abandoned_uploads"] if repair else []
    rows = [to_plain(row) for row in found]
    show_rows(rows, [*_FINDING_COLUMNS, *done, *_DAMAGE_COLUMNS], output)
    if output is Output.TABLE:
        for row in found:
            for kind, names, count in (
                ("missing", row.missing_objects, row.missing),
                ("damaged", row.damaged_parts, row.damaged),
                ("orphan", row.orphan_keys, row.orphans),
            ):
                for name in names:
                    print(f"{kind}: {row.storage}: {name}", file=sys.stderr)
                if count > len(names):
                    print(f"{kind}: {row.storage}: ... and {count - len(names)} more", file=sys.stderr)
    bad = [row.storage for row in found if not row.ok]
    if bad:
        raise DataLossError(
            f"history is missing or damaged in storage {', '.join(bad)}; restore the objects from a copy"
        )
