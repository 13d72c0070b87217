"""``danube info`` and ``danube version``: show the status of a broker, and the versions installed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import human_duration
from danube.cli._output import Output, OutputOption, human_bytes, plural, show_record

if TYPE_CHECKING:
    from danube.model.api import BrokerInfo

__all__ = ["info", "version"]


def info(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the status of the broker."""
    found = run_with_client(lambda client: client.admin.info(), url, context)
    show_record(_shown(found) if output is Output.TABLE else to_plain(found), output)


def _shown(found: BrokerInfo) -> dict[str, str]:
    """Return what a person wants to know, with units; JSON has every figure."""
    plain = found.topics - found.partitions
    rows = {
        "broker": f"{found.broker} {found.version}, pid {found.pid}, up {human_duration(found.uptime_s)}",
        "addresses": ", ".join(found.addresses),
        "admin addresses": ", ".join(found.admin_addresses) or "none",
        "data directory": found.data_directory,
        "topics": f"{found.named_topics:,} in the cluster; served here: {plural(plain, 'plain topic')},"
        f" {plural(found.partitions, 'partition')}",
        "connections": f"{found.connections:,} of {found.max_connections:,}",
        "traffic": f"{human_bytes(found.received_bytes)} received, {human_bytes(found.sent_bytes)} sent",
        "memory": human_bytes(found.memory_bytes) if found.memory_bytes else "not known",
        "processor time": human_duration(found.cpu_s),
        "publish latency": _latency(found.publish_p50_s, found.publish_p99_s),
        "sync latency": _latency(found.sync_p50_s, found.sync_p99_s),
        "loop lag": f"{found.loop_lag_s * 1e3:.1f} ms" if found.loop_lag_s >= 0 else "not known yet",
        "journal": f"{human_bytes(found.journal_used_bytes)} of {human_bytes(found.journal_limit_bytes)},"
        f" {plural(found.journal_files, 'file')}, {plural(found.commits, 'commit')}, {plural(found.syncs, 'sync')}",
        "unsealed": f"{human_bytes(found.unsealed_bytes)}, for {human_duration(found.oldest_unsealed_age_s)} at most",
        "sealed": f"{plural(found.sealed_objects, 'object')}, {human_bytes(found.sealed_bytes)} since the start",
        "default durability": found.default_durability.value,
        "largest message": f"{human_bytes(found.max_message_bytes)}, batch {human_bytes(found.max_batch_bytes)}",
    }
    if found.sealing_failing_s:
        rows["sealing fails"] = f"for {human_duration(found.sealing_failing_s)}: {found.sealing_error}"
    if found.stranded_topics:
        rows["stranded"] = f"{plural(found.stranded_topics, 'topic')}, {human_bytes(found.stranded_bytes)}"
    if found.brokers:
        rows["live brokers"] = ", ".join(found.brokers)
    return rows


def _latency(p50_s: float, p99_s: float) -> str:
    if p50_s < 0:
        return "none in the last minute"
    return f"half within {p50_s * 1e3:.1f} ms, 99 of 100 within {p99_s * 1e3:.1f} ms"


def version(output: OutputOption = Output.TABLE) -> None:
    """Show versions, for a bug report."""
    import platform
    from importlib.metadata import version as installed

    from danube import __version__

    parts = ["trio", "anyio", "h2", "msgspec"]
    record = {"danube": __version__, "python": platform.python_version()}
    record |= {part: installed(part) for part in parts}
    if output is Output.TABLE:
        others = ", ".join(f"{name} {number}" for name, number in record.items() if name != "danube")
        print(f"danube {__version__} ({others}; {platform.system()} {platform.machine()})")
        raise typer.Exit
    show_record(record, output)
