"""Implements ``danube dlq replay`` and ``drop``: runs a :class:`danube.client.replaying.Replay`, and prints."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import trio

from danube.cli._client import run_with_client
from danube.cli._output import Output, human_messages, print_json

if TYPE_CHECKING:
    from danube.client import Client
    from danube.client.replaying import Replay, ReplayOptions

__all__ = ["run"]

_RECONNECT_S: Final = 60.0
_LEFT: Final = 1
_INTERRUPTED: Final = 130


def run(options: ReplayOptions, url: str | None, context: str | None, output: Output) -> int:
    """Replay or drop, and print the sums; return the exit code.

    Raises:
        InvalidArgumentError: ``--to`` is the dead-letter topic itself.
        TopicNotFoundError: the dead-letter topic, or ``--to``, does not exist.
        DanubeError: the broker refused, or was unreachable; messages replayed before are reported on standard error.
    """
    from danube.client.replaying import Replay

    options.check()
    replay: Replay | None = None
    interrupted = False

    async def watch_signals(running: Replay, *, task_status: trio.TaskStatus[None]) -> None:
        """First signal: finish the batch under way and print the sums. Second: exit at once."""
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if interrupted:
                    raise KeyboardInterrupt
                interrupted = True
                running.stop()

    async def work(client: Client) -> None:
        nonlocal replay
        replay = Replay(client, options)
        async with trio.open_nursery() as nursery:
            await nursery.start(watch_signals, replay)
            await replay.run()
            nursery.cancel_scope.cancel()

    try:
        run_with_client(work, url, context, _RECONNECT_S)
    except BaseException:
        if replay is not None and replay.count:
            done = "dropped" if options.drop else "replayed"
            print(f"{replay.count} messages had been {done} before the failure", file=sys.stderr)
        raise
    assert replay is not None
    _show(options, replay, interrupted, output)
    if interrupted:
        return _INTERRUPTED
    return _LEFT if replay.left or replay.stopped else 0


def _show(options: ReplayOptions, replay: Replay, interrupted: bool, output: Output) -> None:
    for reason in replay.reasons:
        print(f"left: {reason}", file=sys.stderr)
    if replay.left > len(replay.reasons):
        print(f"left: {replay.left - len(replay.reasons)} more", file=sys.stderr)
    if replay.left:
        print(
            f"--to TOPIC sends the messages that were left to another topic; {options.topic} still has them",
            file=sys.stderr,
        )
    if replay.stopped and not interrupted:
        print(
            f"{replay.left + replay.passed} messages stay in place, the most that one run leaves there, so it has not"
            f" looked at all of {options.topic}",
            file=sys.stderr,
        )
    topics = sorted(replay.sent.items())
    done = "dropped" if options.drop else "replayed"
    if output is Output.JSON:
        summary: dict[str, Any] = {
            "topic": options.topic,
            done: replay.count,
            "left": replay.left,
            "dry_run": options.dry_run,
            "interrupted": interrupted,
            "topics": [{"topic": topic, "messages": count} for topic, count in topics],
        }
        print_json(summary, indent=0)
    elif output is Output.RAW:
        for topic, count in topics:
            print(f"{topic}\t{count}")
    else:
        would = f"would be {done}" if options.dry_run else done
        print(
            f"{human_messages(replay.count)} {would}"
            + (f", {replay.left:,} left" if replay.left else "")
            + ("; interrupted" if interrupted else "")
        )
        for topic, count in topics:
            print(f"  {topic}: {human_messages(count)}")
