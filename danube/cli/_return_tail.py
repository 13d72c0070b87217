"""``danube cluster return-tail``: gives what the disk of a lost broker has back to the cluster."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from danube.cli._client import run_with_client
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, show_rows

if TYPE_CHECKING:
    from danube.broker.directory.tail import Tail
    from danube.client import Client
    from danube.log import Disk, StoredBatch
    from danube.model.cluster_api import FillGap, GapToFill, OpenGaps

__all__ = ["return_tail"]

_PIECE_BYTES: Final = 512 * 1024


class Returned(NamedTuple):
    """What has become of one gap."""

    topic: str
    start: int
    filled: int
    problem: str


def return_tail(
    data_dir: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="Data directory of the broker that was declared gone; stopped.")
    ],
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give back what the disk of a broker has that was declared gone (danube cluster forget).

    Its messages are put into the declared gaps of their topics, at their own offsets, and delivered to the
    subscriptions that wait for them. It may be repeated, after it was cut off. The directory is not needed any more
    afterwards; the broker may not join again with it.
    """
    from danube.model.errors import FailedPreconditionError

    if not Path(data_dir).is_dir():
        raise FailedPreconditionError(f"{data_dir} is not a directory; name the data directory of the broker")
    found = run_with_client(lambda client: _give_back(client, data_dir), url, context)
    rows: list[dict[str, Any]] = [
        {"topic": each.topic, "from": each.start, "to": each.filled, "problem": each.problem or None} for each in found
    ]
    if rows or output is not Output.TABLE:
        show_rows(rows, ["topic", "from", "to", "problem"], output)
    else:
        print("no topic waits for messages of this directory")
    if any(each.problem for each in found):
        raise typer.Exit(1)


async def _give_back(client: Client, data_dir: str) -> list[Returned]:
    from danube.log import RealDisk

    async with RealDisk(data_dir) as disk:
        return await give_back(client, disk, data_dir)


async def give_back(client: Client, disk: Disk, place: str) -> list[Returned]:
    """Fill the declared gaps that the data directory of a stopped broker can fill.

    Args:
        client: of the cluster.
        disk: of the journal.
        place: the data directory, for messages.

    Raises:
        FailedPreconditionError: it is not the directory of a broker that was declared gone.
        DanubeError: it cannot be read, or the cluster does not answer.
    """
    from danube.broker.directory.tail import open_tail, read_identity

    identity = await read_identity(disk, place)
    wanted = await client.admin.open_gaps(identity)
    if not wanted.gaps:
        return []
    tail = await open_tail(disk, {gap.topic_id: gap.topic for gap in wanted.gaps})
    return [await _give(client, identity, wanted, gap, tail) for gap in wanted.gaps]


async def _give(client: Client, identity: str, wanted: OpenGaps, gap: GapToFill, tail: Tail) -> Returned:
    from danube.cluster.records import parse_broker
    from danube.model.errors import DanubeError, DataLossError
    from danube.model.ids import Offset

    filled: int = gap.start
    broker = parse_broker(wanted.broker)
    try:
        filled = await client.admin.fill_gap(_piece(identity, gap))
        start, end = Offset(filled), Offset(gap.end)
        damage = tail.damage(gap.topic_id, start)
        pieces = aiter(tail.batches(gap.topic_id, broker, gap.move, start, end))
        while True:
            try:
                batches = await anext(pieces)
            except StopAsyncIteration:
                break
            except DataLossError as error:
                damage = damage or error.message
                break
            filled = await _send(client, identity, gap, batches)
        if damage:
            problem = (
                f"{damage.rstrip('.')}. What lies behind is not given back either; repair the directory from a copy and"
                f" repeat this command, or give the rest up: danube topics forget-gap {gap.topic}"
            )
            return Returned(gap.topic, gap.start, filled, problem)
        filled = await client.admin.fill_gap(_piece(identity, gap, complete=True))
    except DanubeError as error:
        return Returned(gap.topic, gap.start, filled, str(error))
    return Returned(gap.topic, gap.start, filled, "")


async def _send(client: Client, identity: str, gap: GapToFill, batches: Sequence[StoredBatch]) -> int:
    import msgspec

    data = msgspec.msgpack.encode([(bytes(each.stamp), bytes(each.part)) for each in batches])
    transfer = secrets.randbits(63)
    filled: int = gap.start
    for at in range(0, len(data), _PIECE_BYTES):
        piece = data[at : at + _PIECE_BYTES]
        more = at + len(piece) < len(data)
        filled = await client.admin.fill_gap(
            _piece(identity, gap, transfer=transfer, position=at, data=piece, more=more)
        )
    return filled


def _piece(identity: str, gap: GapToFill, **fields: Any) -> FillGap:
    from danube.model.cluster_api import FillGap

    return FillGap(topic=gap.topic, topic_id=gap.topic_id, start=gap.start, identity=identity, **fields)
