"""``danube cluster``: shows and explains the brokers of a cluster, moves topics, saves its metadata, tries one here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._moving import activate, balance, drain, forget, move
from danube.cli._output import Output, OutputOption, human_bytes, print_json, show_rows
from danube.cli._return_tail import return_tail

if TYPE_CHECKING:
    from pathlib import Path

    from danube.cluster.rebuilding import Rebuilt
    from danube.model.cluster_api import BrokerRow, ClusterStatus, Explained, MetadataStatus

__all__ = ["cluster_app"]

cluster_app = typer.Typer(
    no_args_is_help=True,
    help="Show and explain the brokers of a cluster, move topics, back up its metadata, or try a cluster.",
)

_STATUS_COLUMNS = ["broker", "address", "state", "topics", "in/s", "out/s", "disk"]
_BROKER_COLUMNS = [
    "broker",
    "address",
    "admin",
    "state",
    "version",
    "level",
    "starts",
    "up",
    "connections",
    "rtt",
    "clock",
    "lag",
    "rack",
    "storages",
]
_VOTER_COLUMNS = ["member", "broker", "address", "role", "applied", "behind"]
_GAP_COLUMNS = ["topic", "from", "to", "broker", "since", "by", "state"]
_TOPIC_COLUMNS = ["topic", "durability", "state", "owner", "address", "epoch", "reason", "sealed to", "detail"]


@cluster_app.command("status")
def status(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the brokers, who keeps the metadata, and what needs attention.

    Any broker can be asked. It asks the others; one that does not answer is shown as silent, with the reason.
    """
    found = run_with_client(lambda client: client.admin.cluster_status(), url, context)
    if output is Output.JSON:
        print_json(to_plain(found))
        return
    if output is Output.TABLE:
        print(_headline(found))
    columns = list(_STATUS_COLUMNS)
    if output is Output.TABLE and any(row.rack for row in found.brokers):
        columns.insert(2, "rack")
    if output is Output.TABLE and found.moving:
        columns.append("moves")
    show_rows([_status_row(row) for row in found.brokers], columns, output)
    if output is Output.TABLE:
        for warning in found.warnings:
            print(f"! {warning}")


@cluster_app.command("brokers")
def brokers(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the brokers in detail: addresses, versions, starts, clocks, storages.

    rtt is how long its answer took; clock is how far its clock is ahead of that of the broker that was asked; lag is by
    how much its timers are late, p99 of the last minute.
    """
    found = run_with_client(lambda client: client.admin.cluster_status(), url, context)
    if output is Output.JSON:
        print_json(to_plain(found.brokers))
        return
    rows = [_broker_row(row) for row in found.brokers]
    if output is Output.RAW:
        show_rows(rows, _BROKER_COLUMNS, output)
        return
    empty = [column for column in ("admin", "rack") if not any(row[column] for row in rows)]
    show_rows(rows, [column for column in _BROKER_COLUMNS if column not in empty], output)


@cluster_app.command("voters")
def voters(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the members that keep the metadata: leader, voters and learners, and how far each of them is behind."""
    found = run_with_client(lambda client: client.admin.cluster_status(), url, context).metadata
    if output is Output.JSON:
        print_json(to_plain(found))
        return
    if output is Output.TABLE:
        print(f"metadata: {_metadata(found)}")
    rows = [
        {
            "member": f"{each.member:x}",
            "broker": f"b{each.broker}" if each.broker else None,
            "address": each.address or None,
            "role": each.role,
            "applied": each.applied if each.applied >= 0 else None,
            "behind": each.behind if each.behind >= 0 else None,
        }
        for each in found.members
    ]
    if rows or output is Output.RAW:
        show_rows(rows, _VOTER_COLUMNS, output)


@cluster_app.command("explain")
def explain(
    subject: Annotated[str, typer.Argument(metavar="BROKER|TOPIC", help="A broker, such as b2, or a topic.")],
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what is the matter with a broker or a topic: its owner, why it is not served, what is lost, what to do."""
    found = run_with_client(lambda client: client.admin.cluster_explain(subject), url, context)
    if output is Output.JSON:
        print_json(to_plain(found))
        return
    rows = _topic_rows(found)
    if output is Output.RAW:
        show_rows(rows, _TOPIC_COLUMNS, output)
        return
    print(f"{found.subject}: {found.state}")
    print(found.sentence)
    if found.remedy:
        print(f"> {found.remedy}")
    if len(rows) > 1 or (rows and not found.subject.startswith("/")):
        print()
        show_rows(rows, [column for column in _TOPIC_COLUMNS if any(row[column] for row in rows)], output)
        if found.more:
            print(f"... and {found.more:,} more")
    if found.gaps:
        from danube.cli.topics import gap_rows

        print()
        show_rows(gap_rows(found.gaps), _GAP_COLUMNS, output)
        if found.more_gaps:
            print(f"... and {found.more_gaps:,} more gaps")


@cluster_app.command("upgrade")
def upgrade(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """Raise the feature level of the cluster, after the last broker was started with a new version of Danube.

    What the new version brings is used from then on, and no broker can be set back to the former version. It is refused
    while a broker that may return has an older version. Without this command it happens by itself an hour after the
    last broker is new.
    """
    found = run_with_client(lambda client: client.admin.upgrade_cluster(), url, context)
    if output is Output.JSON:
        print_json(to_plain(found))
    elif output is Output.RAW:
        print(found.level)
    elif found.before < found.level:
        print(f"the feature level of the cluster is {found.level} now; it was {found.before}")
    else:
        print(f"the feature level of the cluster is {found.level} already, the newest one of its brokers")


cluster_app.command("drain")(drain)
cluster_app.command("activate")(activate)
cluster_app.command("move")(move)
cluster_app.command("balance")(balance)
cluster_app.command("forget")(forget)
cluster_app.command("return-tail")(return_tail)


@cluster_app.command("backup")
def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Written when the backup is complete.")],
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Back up the metadata of a running cluster: topics, subscriptions, policies and owners, but no messages.

    Any broker can be asked. The backup contains every change that was acknowledged before. An existing FILE is
    replaced.
    """
    from pathlib import Path

    from danube.cluster.backup_format import decode_backup

    content = run_with_client(lambda client: client.admin.backup_metadata(), url, context)
    found = decode_backup(content, "the answer of the broker")
    _write_whole(Path(file), content)
    print(
        f"{file}: metadata of the cluster {found.head.cluster!r} at revision {found.head.revision}: {len(found.items)}"
        f" keys, {human_bytes(len(content))}"
    )


@cluster_app.command("restore")
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Made by 'danube cluster backup'.")],
    data_dir: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="Data directory of a stopped broker, without metadata.")
    ] = "./danube-data",
) -> None:
    """Put the metadata of a backup into a data directory that holds none; its broker begins the cluster again, alone.

    What the cluster has done since the backup is unknown to it: topics that the backup does not contain are stranded in
    the journals of their brokers. The other brokers join as new members.
    """
    import random
    from pathlib import Path

    import trio

    from danube.cluster.rebuilding import restore_metadata

    made = trio.run(restore_metadata, Path(data_dir), Path(file), random.SystemRandom())
    print(
        f"{data_dir}: metadata of the cluster {made.cluster!r}, {made.keys} keys; incarnation {made.incarnation:016x}"
    )
    _tell_next(made, data_dir)


@cluster_app.command("recover")
def recover(
    data_dir: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="Data directory of a stopped broker that kept the metadata.")
    ] = "./danube-data",
) -> None:
    """Make a stopped broker the only one that keeps the metadata, after a majority of them is permanently lost.

    Use the broker with the most recent metadata. Changes that only the lost members had are gone. The former metadata
    are kept in the data directory. The other brokers join as new members.
    """
    import random
    from pathlib import Path

    import trio

    from danube.cluster.rebuilding import recover_metadata

    made = trio.run(recover_metadata, Path(data_dir), random.SystemRandom())
    print(
        f"{data_dir}: metadata of the cluster {made.cluster!r} at revision {made.revision}, {made.keys} keys;"
        f" incarnation {made.incarnation:016x}"
    )
    print(f"Changes that only others of the {made.former_members} former members had are lost.")
    print(f"The former metadata are in {made.kept}; remove that directory when the cluster runs.")
    _tell_next(made, data_dir)


def _tell_next(made: Rebuilt, data_dir: str) -> None:
    """Print what remains to be done: only this data directory has the new metadata."""
    own = _identity(data_dir)
    others = [each for each in made.brokers if each.identity != own]
    me = next((f"the broker in it, {each.name}," for each in made.brokers if each.identity == own), "a new broker")
    print(f"1. {data_dir} has the new metadata. Start {me} with the options of before.")
    if not others:
        return
    named = ", ".join(f"{each.name} ({each.address})" if each.address else each.name for each in others)
    print(f"2. The other brokers, {named}, are refused as long as they have the former metadata.")
    print("   For each of them that still exists, and whose data directory is DIR: stop it, then")
    print("     rm -r DIR/metadata DIR/group-*")
    print("   and remove nothing else: the journal, 'broker' and 'storage' in it are its messages and its name.")
    print("   Then start it with --join and the address of the first one in place of --peers.")


def _identity(data_dir: str) -> str | None:
    """Return the identity of the broker in a data directory; None if it has none."""
    from pathlib import Path

    import trio

    from danube.broker.directory.identity import read_broker_file
    from danube.log import RealDisk

    async def read() -> str | None:
        async with RealDisk(Path(data_dir)) as disk:
            found = await read_broker_file(disk, data_dir)
        return None if found is None else found.identity

    return trio.run(read)


def _write_whole(file: Path, content: bytes) -> None:
    """Write a file that is there completely, or not at all."""
    import os

    from danube.model.errors import InvalidArgumentError

    if not file.name:
        raise InvalidArgumentError(f"{str(file)!r} is not the name of a file; choose another one")
    part = file.with_name(file.name + ".part")
    try:
        with part.open("wb") as output:
            output.write(content)
            output.flush()
            os.fsync(output.fileno())
        os.replace(part, file)
    except OSError as error:
        raise InvalidArgumentError(f"{file} cannot be written: {error.strerror}; choose another file") from error


@cluster_app.command("try")
def try_cluster(
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many brokers.")] = 3,
    directory: Annotated[
        str | None,
        typer.Option("--dir", metavar="DIRECTORY", help="Keep their data here. By default it is removed at the end."),
    ] = None,
    base_port: Annotated[
        int, typer.Option(min=1024, max=65_000, help="Port of the first broker; the others take the next ones.")
    ] = 6650,
) -> None:
    """Run a cluster on this machine: several brokers as processes of this command, until Ctrl-C.

    None of them is restarted: kill one, and see what happens.
    """
    from danube.cli._try import run_trial

    raise typer.Exit(run_trial(brokers, directory, base_port))


# --- Rows ---


def _headline(found: ClusterStatus) -> str:
    count = len(found.brokers)
    coordinator = f"b{found.coordinator}" if found.coordinator else "none"
    return (
        f"cluster {found.cluster} · {count} {'broker' if count == 1 else 'brokers'} · coordinator {coordinator} ·"
        f" metadata: {_metadata(found.metadata)}{f' · {found.moving:,} moving' if found.moving else ''}"
    )


def _metadata(metadata: MetadataStatus) -> str:
    if not metadata.members:
        return f"kept by {metadata.kept_by or metadata.engine or 'the engine of the configuration'}"
    leader = next((each for each in metadata.members if each.role == "leader"), None)
    named = "none" if leader is None else f"b{leader.broker}" if leader.broker else f"member {leader.member:x}"
    count = sum(each.role in ("leader", "voter") for each in metadata.members)
    parts = [f"leader {named}", f"term {metadata.term}", f"{count} {'voter' if count == 1 else 'voters'}"]
    learners = sum(each.role == "learner" for each in metadata.members)
    if learners:
        parts.append(f"{learners} {'learner' if learners == 1 else 'learners'}")
    silent = sum(each.behind < 0 for each in metadata.members)
    if silent:
        parts.append(f"{silent} not heard")
    parts.append(f"{max((each.behind for each in metadata.members), default=0):,} behind")
    return ", ".join(parts)


def _status_row(row: BrokerRow) -> dict[str, Any]:
    from danube.model.spoken import spoken_duration

    figures = row.figures
    away = f" {spoken_duration(row.away_s)}" if row.state == "away" and row.away_s >= 0 else ""
    return {
        "broker": row.name,
        "address": row.address or None,
        "rack": row.rack or None,
        "state": f"{row.state}{away}",
        "topics": row.topics,
        "in/s": human_bytes(figures.in_bytes_s) if figures is not None else None,
        "out/s": human_bytes(figures.out_bytes_s) if figures is not None else None,
        "disk": f"{human_bytes(figures.journal_used_bytes)} of {human_bytes(figures.journal_limit_bytes)}"
        if figures is not None
        else None,
        "moves": " ".join(
            f"{count:,} {way}" for count, way in ((row.leaving, "leaving"), (row.arriving, "arriving")) if count
        )
        or None,
    }


def _broker_row(row: BrokerRow) -> dict[str, Any]:
    from danube.model.spoken import spoken_duration

    figures = row.figures
    asked = figures is not None and row.rtt_s > 0
    return {
        "broker": row.name,
        "address": row.address or None,
        "admin": row.admin_address or None,
        "state": row.state,
        "version": row.version or None,
        "level": row.feature_level,
        "starts": row.life,
        "up": spoken_duration(figures.uptime_s) if figures is not None else None,
        "connections": figures.connections if figures is not None else None,
        "rtt": f"{row.rtt_s * 1000:.1f} ms" if asked else None,
        "clock": f"{row.clock_offset_s:+.3f} s" if asked else None,
        "lag": f"{figures.loop_lag_s * 1000:.1f} ms" if figures is not None and figures.loop_lag_s >= 0 else None,
        "rack": row.rack or None,
        "storages": row.storages,
    }


def _topic_rows(found: Explained) -> list[dict[str, Any]]:
    return [
        {
            "topic": place.topic,
            "durability": place.durability.value,
            "state": place.state,
            "owner": f"b{place.broker}" if place.broker else None,
            "address": place.address or None,
            "epoch": place.epoch or None,
            "reason": place.reason or None,
            "sealed to": place.sealed_end if place.sealed_end >= 0 else None,
            "detail": place.detail
            if place.detail and place.state == "unavailable"
            else f"moves to b{place.target}"
            if place.target
            else f"cannot move: {place.hindrance}"
            if place.hindrance and found.state == "draining"
            else None,
        }
        for place in found.topics
    ]
