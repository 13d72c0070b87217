"""The lines of ``danube cheat``, by theme: what is done, and the command that does it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from danube.cli._nearest import nearest
from danube.model.errors import InvalidArgumentError

__all__ = ["CHEATS", "Cheat", "sheet"]


class Cheat(NamedTuple):
    """A line."""

    what: str
    line: str


CHEATS: Final[Mapping[str, tuple[Cheat, ...]]] = {
    "messages": (
        Cheat("send a message", "danube produce orders -m hello -k ada"),
        Cheat("send the lines of a file", "danube produce orders --file orders.jsonl --key-field user"),
        Cheat(
            "send it again after a failure, without duplicates",
            "danube produce orders -f x.jsonl --producer-name job --resume",
        ),
        Cheat("consume until the end, as JSON", "danube consume orders -s billing --until-caught-up -o json"),
        Cheat("share the messages with other consumers", "danube consume orders -s billing --type shared"),
        Cheat("look at a topic without consuming it", "danube read orders --start '2h ago' --format '%o %k %v'"),
        Cheat("follow new messages", "danube read orders --start latest --follow"),
        Cheat("find messages", "danube search orders 'value.user == \"ada\" and value.total > 10'"),
        Cheat("ask a service, and print its reply", "danube request prices '{\"sku\": 7}' --timeout 5s"),
    ),
    "topics": (
        Cheat("list them", "danube topics list"),
        Cheat("create one with partitions, kept for a week", "danube topics create orders --partitions 8 --max-age 7d"),
        Cheat("see one: offsets, size, producers", "danube topics describe orders"),
        Cheat("see what a shorter retention would delete", "danube topics retention orders --max-age 1d --dry-run"),
        Cheat("limit what may be published", "danube policies set /default/orders publish_rate=1000/s"),
        Cheat("delete one", "danube topics delete orders"),
    ),
    "subscriptions": (
        Cheat("what is behind, the worst first", "danube subscriptions list"),
        Cheat("why one does not move", "danube explain orders billing"),
        Cheat(
            "see what reading again would repeat", "danube subscriptions seek orders billing --to '2h ago' --dry-run"
        ),
        Cheat("go back by 1,000 messages", "danube subscriptions seek orders billing --by -1000"),
        Cheat("give up the next message", "danube subscriptions skip orders billing 1"),
        Cheat(
            "keep failures apart",
            "danube subscriptions policy orders billing --poison dead_letter",
        ),
    ),
    "failures": (
        Cheat("what needs attention", "danube explain"),
        Cheat("services whose consumer is away count at once", "danube explain --absent 5m"),
        Cheat("where one message is", "danube trace orders 17 --wait 30s"),
        Cheat("dead letters, with reasons", "danube dlq list orders-billing-dlq"),
        Cheat("send them back", "danube dlq replay orders-billing-dlq --dry-run"),
        Cheat("is this machine fit for a broker", "danube doctor"),
        Cheat("collect what a bug report needs", "danube debug bundle"),
    ),
    "watching": (
        Cheat("live rates", "danube top"),
        Cheat("who is connected", "danube connections list"),
        Cheat("one line for monitoring", "danube check --lag 10000 --age 5m"),
        Cheat("alerts for Prometheus", "danube generate alerts"),
        Cheat("log more, for ten minutes", "danube log-level debug --logger danube.metadata --for 10m"),
        Cheat("history and its storages", "danube storage status"),
    ),
    "brokers": (
        Cheat("run one", "danube serve --data-dir ./danube-data"),
        Cheat("try a cluster on this machine", "danube cluster try"),
        Cheat("the state of a cluster", "danube cluster status"),
        Cheat("back up the metadata", "danube cluster backup metadata.danube"),
        Cheat("use what a new version brings", "danube cluster upgrade"),
        Cheat("storages and engines that are installed", "danube plugins"),
    ),
    "security": (
        Cheat("certificates, keys and a configuration", "danube security init --host broker.example.org"),
        Cheat("let a service consume", "danube grant viewer,consumer to service:billing on '/default/orders*'"),
        Cheat("a token for it", "danube tokens create service:billing --expires 30d"),
        Cheat("why it may, or may not", "danube security explain service:billing consume /default/orders"),
        Cheat("who changed what", "danube security audit --since 1h"),
    ),
    "context": (
        Cheat("store the address of a broker", "danube context add prod danube+tls://broker.example.org"),
        Cheat("use it from now on", "danube context use prod"),
        Cheat("or for one command", "danube --context prod topics list"),
    ),
}


def sheet(theme: str = "") -> str:
    """Return the lines of a theme, or of all.

    Raises:
        InvalidArgumentError: there is no such theme.
    """
    if theme and theme not in CHEATS:
        near = nearest(theme, CHEATS)
        guess = f"; did you mean {near!r}?" if near else f"; there are: {', '.join(CHEATS)}"
        raise InvalidArgumentError(f"there is no theme {theme!r}{guess}")
    return "\n\n".join(
        "\n".join([name, *(f"  # {each.what}\n  {each.line}" for each in CHEATS[name])])
        for name in ([theme] if theme else CHEATS)
    )
