"""``danube topics seal | unload | retention | restore | stranded | forget-stranded``: manages history of topics.

It completes the group of :mod:`danube.cli.topics`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._names import TopicArgument
from danube.cli._output import Output, OutputOption, human_bytes, print_json, show_rows
from danube.cli._retention import (
    DeleteAcknowledgedOption,
    MaxAgeOption,
    MaxBytesOption,
    describe_retention,
    read_retention,
)
from danube.cli.topics import topics_app
from danube.model.ids import TopicId
from danube.model.policies import Retention

if TYPE_CHECKING:
    from danube.model.history_api import RestoreReport, SealedTopic, StrandedTopic

__all__ = ["topics_app"]

_SEALED_COLUMNS = ["topic", "start_offset", "sealed_offset", "end_offset", "parts", "objects", "sealed_bytes"]
_PLAN_COLUMNS = ["topic", "start_offset", "new_start_offset", "end_offset", "freed_parts", "freed_bytes"]
_STRANDED_COLUMNS = ["topic_id", "journal_bytes", "end_offset"]
_RESTORED_COLUMNS = ["topic", "state", "durability", "start_offset", "end_offset", "objects", "size_bytes"]


@topics_app.command("seal")
def seal_topic(
    topic: TopicArgument, url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Seal all messages of a topic into its storage now.

    Returns when they are stored, verified, and entered in the catalogue.
    """
    _show_sealed(run_with_client(lambda client: client.admin.seal_topic(topic), url, context), output)


@topics_app.command("unload")
def unload_topic(
    topic: TopicArgument, url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Disconnect all clients from a topic, and seal all of its messages. Clients reconnect automatically."""
    _show_sealed(run_with_client(lambda client: client.admin.unload_topic(topic), url, context), output)


def _show_sealed(rows: list[SealedTopic], output: Output) -> None:
    show_rows([to_plain(row) for row in rows], _SEALED_COLUMNS, output)


@topics_app.command("retention")
def retention(
    topic: TopicArgument,
    max_age: MaxAgeOption = None,
    max_bytes: MaxBytesOption = None,
    delete_acknowledged: DeleteAcknowledgedOption = False,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all rules: keep everything from now on.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would be deleted.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Apply the rules at once, and show what was deleted.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show or change how long a topic keeps messages.

    The given rules replace all rules of the topic; each rule deletes messages independently of the others. Without
    rules, the command shows those of the topic, and what they would delete now.
    """
    rules = read_retention(max_age, max_bytes, delete_acknowledged)
    if clear and rules is not None:
        raise typer.BadParameter("--clear removes all rules; give it without a rule")
    if dry_run and now:
        raise typer.BadParameter("--dry-run and --now exclude each other")
    if clear:
        rules = Retention()
    # Without rules and without --now there is nothing to change: only show them.
    only_ask = dry_run or (rules is None and not now)
    found = run_with_client(
        lambda client: client.admin.change_retention(topic, rules, dry_run=only_ask, now=now), url, context
    )
    if output is Output.JSON:
        print_json({**to_plain(found), "changed": rules is not None and not only_ask})
        return
    if output is Output.TABLE:
        went = "was deleted" if found.applied else "would be deleted now" if only_ask else "is being deleted"
        print(f"{topic}: {describe_retention(found.retention)}; this {went}:")
    show_rows([to_plain(plan) for plan in found.plans], _PLAN_COLUMNS, output)


@topics_app.command("restore")
def restore(
    bucket: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="The storage to restore from, as in the broker's configuration."),
    ],
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Restore only this topic; repeat for more.")
    ] = None,
    storage: Annotated[str, typer.Option(metavar="NAME", help="The broker's storage, if several have this URL.")] = "",
    deep: Annotated[bool, typer.Option("--deep", help="First read all data and compare the checksums.")] = False,
    give_up_others: Annotated[
        bool, typer.Option("--give-up-others", help="With --topic: the history of all others is deleted.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would be restored.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Restore topics after the loss of a broker's data directory.

    The new broker must be configured with the old one's storage (danube serve --storage URL) and must not have sealed
    anything into it. Sealed messages are restored with their topics, offsets and subscriptions. Afterwards the
    bucket belongs to the new broker.
    """
    report = run_with_client(
        lambda client: client.storages.restore_topics(
            bucket,
            storage=storage,
            topics=topic or [],
            give_up_others=give_up_others,
            deep=deep,
            dry_run=dry_run,
        ),
        url,
        context,
    )
    if output is Output.JSON:
        print_json(to_plain(report))
        return
    rows: list[dict[str, Any]] = [to_plain(found) for found in report.topics]
    show_rows(rows, _RESTORED_COLUMNS, output)
    print(_summary(report), file=sys.stderr)
    for found in report.topics:
        for subscription in found.clamped:
            print(
                f"note: subscription {subscription!r} of {found.topic} was ahead of the sealed history, and is set"
                " back to its end",
                file=sys.stderr,
            )
    for unused in report.unused_objects:
        print(f"note: left out {unused}", file=sys.stderr)


@topics_app.command("stranded")
def stranded(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List topics in the journal that the metadata do not know: they are kept, and not served.

    The metadata are older than the journal, or empty. Start the broker with the metadata that know these topics, or
    give the topics up with forget-stranded.
    """
    found = run_with_client(lambda client: client.admin.list_stranded(), url, context)
    show_rows([_stranded_row(topic) for topic in found], _STRANDED_COLUMNS, output)


@topics_app.command("forget-stranded")
def forget_stranded(
    ids: Annotated[list[str], typer.Argument(metavar="TOPIC_ID...", help="As shown by: danube topics stranded.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Consent: the messages of these topics are lost for good.")
    ] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete what the journal holds of stranded topics; its space becomes free. Needs --accept-loss."""
    try:
        topic_ids = [TopicId(int(each, 16)) for each in ids]
    except ValueError as error:
        raise typer.BadParameter("a TOPIC_ID has hexadecimal digits only") from error
    found = run_with_client(
        lambda client: client.admin.forget_stranded(topic_ids, accept_loss=accept_loss), url, context
    )
    show_rows([_stranded_row(topic) for topic in found], _STRANDED_COLUMNS, output)


def _stranded_row(topic: StrandedTopic) -> dict[str, Any]:
    return {**to_plain(topic), "topic_id": f"{topic.topic_id:016x}"}


def _summary(report: RestoreReport) -> str:
    count = sum(found.state == "restored" for found in report.topics)
    size = human_bytes(sum(found.size_bytes for found in report.topics if found.state == "restored"))
    verb = "would be restored" if report.dry_run else "restored"
    return (
        f"{count} topic(s), {size}, {verb} from {report.url} (cluster {report.cluster!r}, epoch {report.epoch});"
        f" {report.objects} objects are needed, {report.unused} are not"
    )
