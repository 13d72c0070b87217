"""The commands of ``danube cluster`` that move topics between brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._names import TopicArgument
from danube.cli._output import Output, OutputOption, human_bytes, print_json, show_rows

if TYPE_CHECKING:
    from danube.client import Client
    from danube.model.cluster_api import BalancePlan, BrokerDrain, Forgotten, MoveRow

__all__ = ["activate", "balance", "drain", "forget", "move", "move_topic"]

POLL_S = 1.0
"""How often ``--wait`` asks how far a broker is."""
PROBLEM_S = 10.0
"""How long a drain may have a problem, such as a broker that does not answer, until it is not waited for any more."""

_MOVE_COLUMNS = ["topic", "from", "to", "reason", "problem"]
_LOAD_COLUMNS = ["broker", "load", "after", "topics", "in/s", "out/s", "cpu", "disk"]

BrokerArgument = Annotated[str, typer.Argument(metavar="BROKER", help="Such as b2; see danube cluster brokers.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would happen.")]


def drain(
    broker: BrokerArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it owns nothing that can move.")] = False,
    dry_run: DryRunOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a broker give all its topics to others, for example before it is stopped; it gets no new ones.

    It stays drained until danube cluster activate, also when it is restarted. Clients follow their topics and get no
    errors. Topics that cannot move are named, with the reason; with --wait the exit status is 1 then.
    """
    found = run_with_client(lambda client: client.admin.drain_broker(broker, dry_run=dry_run), url, context)
    if wait and not dry_run:
        found = run_with_client(lambda client: _wait(client, found), url, context)
    _show_drain(found, output)
    if wait and found.topics:
        raise typer.Exit(1)


def activate(
    broker: BrokerArgument,
    dry_run: DryRunOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a drained broker get topics again.

    Topics that have left it do not come back by themselves: the balance of the cluster gives it others, little by
    little, or danube cluster balance at once.
    """
    found = run_with_client(lambda client: client.admin.activate_broker(broker, dry_run=dry_run), url, context)
    _show_drain(found, output)


def move(
    topic: TopicArgument,
    broker: BrokerArgument,
    dry_run: DryRunOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a topic to a broker; of a topic with partitions, all of them.

    The command returns when the move is ordered; danube cluster status shows what is under way. Partitions that cannot
    move are shown with the reason, and the exit status is 1 then.
    """
    move_topic(topic, broker, dry_run, url, context, output)


def move_topic(topic: str, broker: str, dry_run: bool, url: str | None, context: str | None, output: Output) -> None:
    """Carry out ``danube cluster move`` and ``danube topics move``."""
    found = run_with_client(lambda client: client.admin.move_topic(topic, broker, dry_run=dry_run), url, context)
    if output is Output.JSON:
        print_json(to_plain(found))
    elif output is Output.RAW or len(found) > 1:
        _show_moves(found, output)
    elif found:
        would = "would be" if dry_run else "is"
        print(f"{found[0].topic} {would} ordered to move from b{found[0].source} to b{found[0].target}")
    else:
        print(f"all partitions of {topic} are on {broker} already")
    if any(row.problem for row in found):
        raise typer.Exit(1)


def forget(
    broker: BrokerArgument,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Declare it gone, although what only its disk has is lost then.")
    ] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Declare a broker gone for good, whose machine or disk will not return; it must not run.

    Topics of durability disk and os, which wait for it, go on at other brokers, with what is sealed of them. Without
    --accept-loss the command shows what is lost, changes nothing, and the exit status is 1.
    """
    found = run_with_client(lambda client: client.admin.forget_broker(broker, accept_loss=accept_loss), url, context)
    if output is Output.JSON:
        print_json(to_plain(found))
    else:
        _show_lost(found, output)
    if not found.accepted:
        raise typer.Exit(1)


def _show_lost(found: Forgotten, output: Output) -> None:
    rows = [
        {
            "topic": row.topic,
            "durability": row.durability.value,
            "sealed to": row.sealed_end,
            "lost": "everything: its history was in the broker's own storage"
            if row.loses_history
            else f"unknown from {row.sealed_end} on",
            "goes on at": f"b{row.target}" if row.target else None,
            "offset": row.gap_end,
        }
        for row in found.topics
    ]
    columns = ["topic", "durability", "sealed to", "lost", *(["goes on at", "offset"] if found.accepted else [])]
    if rows or output is Output.RAW:
        show_rows(rows, columns, output)
    if output is Output.RAW:
        return
    if found.more:
        print(f"and {found.more:,} more topics")
    count = len(found.topics) + found.more
    topics = f"{count:,} {'topic' if count == 1 else 'topics'}"
    if found.accepted:
        print(f"broker {found.name} is gone: it may not join again. {topics} of its disk went on elsewhere")
        if found.member_problem:
            print(f"! it still counts as one that keeps the metadata: {found.member_problem}; repeat the command")
    else:
        print(
            f"Nothing was changed. {topics} wait for the disk of {found.name}: what is not sealed of them is lost if it"
            f" does not return. To go on without it: danube cluster forget {found.name} --accept-loss"
        )


def balance(
    most: Annotated[int, typer.Option("--most", min=1, max=1_000, metavar="N", help="Most topics to move.")] = 64,
    dry_run: DryRunOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move topics at once until all brokers have about the same load; print the plan with its reasons.

    The load of a broker is its largest share of the topics, the bytes in and out, the processor time or the journal.
    The cluster does this by itself, little by little, unless [balance] enabled = false is configured.
    """
    found = run_with_client(lambda client: client.admin.balance_cluster(most_moves=most, dry_run=dry_run), url, context)
    if output is Output.JSON:
        print_json(to_plain(found))
        return
    if output is Output.RAW:
        _show_moves(found.moves, output)
        return
    show_rows(_load_rows(found), _LOAD_COLUMNS, output)
    for silent in found.silent:
        print(f"! left out: {silent}")
    if not found.moves:
        print("nothing to move: the load is even, or no topic fits")
        return
    print()
    _show_moves(found.moves, output)
    print(_balance_summary(found, dry_run))


async def _wait(client: Client, found: BrokerDrain) -> BrokerDrain:
    """Ask how far a broker is until it owns nothing that can move; say so when it changes."""
    import sys

    import trio

    said = ""
    stuck_since: float | None = None
    while True:
        line = _left(found)
        if line != said:
            print(line, file=sys.stderr)
            said = line
        if found.state != "draining" or (found.topics <= found.staying and not found.moving):
            return found
        if not found.problem:
            stuck_since = None
        elif stuck_since is None:
            stuck_since = trio.current_time()
        elif trio.current_time() >= stuck_since + PROBLEM_S:
            return found
        await trio.sleep(POLL_S)
        found = await client.admin.drain_broker(found.name, dry_run=True)


def _left(found: BrokerDrain) -> str:
    from danube.model.spoken import spoken_count

    parts = [f"{found.name}: {spoken_count(found.topics, 'topic')} left"]
    if found.moving:
        parts.append(f"{found.moving} moving")
    if found.staying:
        parts.append(f"{found.staying} cannot move")
    return ", ".join(parts)


def _show_drain(found: BrokerDrain, output: Output) -> None:
    from danube.model.spoken import spoken_count

    if output is Output.JSON:
        print_json(to_plain(found))
        return
    if output is Output.RAW:
        columns = ["name", "state", "topics", "moving", "staying"]
        show_rows([to_plain(found)], columns, output)
        return
    owns = f"owns {spoken_count(found.topics, 'topic')}" if found.topics else "owns no topics"
    moving = f", {found.moving} of them ordered to move" if found.moving else ""
    print(f"{found.name} is {found.state} and {owns}{moving}")
    if found.problem:
        print(f"! {found.problem}")
    if found.staying and found.state == "draining":
        print(f"! {spoken_count(found.staying, 'topic')} cannot move:")
        for each in found.named:
            print(f"  {each.topic}: {each.why}")
        if found.staying > len(found.named):
            print(f"  ... and {found.staying - len(found.named):,} more")
    if found.failed and found.state == "draining":
        print("! moves that were given up, and are tried again:")
        for each in found.failed:
            print(f"  {each.topic}: {each.why}")


def _show_moves(moves: list[MoveRow], output: Output) -> None:
    rows = [
        {
            "topic": each.topic,
            "from": f"b{each.source}" if each.source else None,
            "to": f"b{each.target}",
            "reason": each.why or each.reason,
            "problem": each.problem or None,
        }
        for each in moves
    ]
    shown = any(row["problem"] for row in rows) or output is Output.RAW
    show_rows(rows, _MOVE_COLUMNS if shown else _MOVE_COLUMNS[:-1], output)


def _load_rows(plan: BalancePlan) -> list[dict[str, Any]]:
    return [
        {
            "broker": f"b{each.broker}",
            "load": f"{each.load:.0%}",
            "after": f"{each.after:.0%}",
            "topics": each.topics,
            "in/s": human_bytes(each.in_bytes_s),
            "out/s": human_bytes(each.out_bytes_s),
            "cpu": f"{each.cpu:.0%}",
            "disk": f"{each.journal_share:.0%}",
        }
        for each in plan.brokers
    ]


def _balance_summary(plan: BalancePlan, dry_run: bool) -> str:
    from danube.model.spoken import spoken_count

    if dry_run:
        return f"{spoken_count(len(plan.moves), 'topic')} would be ordered to move"
    return f"{spoken_count(plan.ordered, 'topic')} {'is' if plan.ordered == 1 else 'are'} ordered to move"
