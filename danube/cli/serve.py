"""``danube serve``: run a broker in the foreground."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from danube.cli._interrupts import leave_on_interrupt
from danube.model.policies import Durability

__all__ = ["serve"]


def serve(
    config: Annotated[str | None, typer.Option("-c", "--config", metavar="FILE", help="TOML configuration.")] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Address to listen on; repeat for more; port 0 takes a free one."),
    ] = None,
    admin_listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address for the admin tools of the upstream system; repeat for more; 'none' for no admin port."
            " [127.0.0.1:50051]",
        ),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIRECTORY", help="Journal and metadata; created if missing. [./danube-data]")
    ] = None,
    durability: Annotated[
        Durability | None,
        typer.Option(help="Default durability of new topics: acknowledge when in memory, written, or synced. [disk]"),
    ] = None,
    journal_file_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size of a journal file. [64MiB]")
    ] = None,
    journal_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Maximum size of the whole journal. [4GiB]")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where history is sealed to: disk://, s3://bucket/prefix ... [disk]"),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the cluster: its folder in each storage. [danube]")
    ] = None,
    auto_create: Annotated[
        bool | None, typer.Option("--auto-create/--no-auto-create", help="Create topics when a producer opens them.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
) -> None:
    """Run a broker in the foreground.

    It prints one line when it is ready, and drains on SIGTERM or Ctrl-C. Options override the configuration file, which
    overrides the defaults.
    """
    leave_on_interrupt()  # until the broker handles signals itself: nothing has begun before that
    from danube.broker.runtime.config import parse_size
    from danube.broker.runtime.config_file import load_config

    limits: dict[str, Any] = {}
    if journal_limit is not None:
        limits["journal_max_bytes"] = parse_size(journal_limit)
    settings = load_config(
        config,
        {
            "listen": listen or None,
            "admin_listen": [] if admin_listen == ["none"] else admin_listen or None,
            "data_directory": data_dir,
            "durability": durability,
            "journal_file_size": journal_file_size,
            "storage": storage,
            "cluster": cluster,
            "auto_create_topics": auto_create,
            "log_level": log_level,
            "limits": limits,
        },
    )
    from danube.broker.run import run_broker
    from danube.compat import face

    raise typer.Exit(run_broker(settings, faces=(face,)))
