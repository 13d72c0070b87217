"""``danube serve``: run a broker in the foreground."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from danube.cli._failures import errors_in_one_line
from danube.cli._insecure import insecure_wanted
from danube.cli._interrupts import leave_on_interrupt
from danube.cli._plain_options import PlainOption, read_plain, with_environment
from danube.model.policies import Durability

if TYPE_CHECKING:
    from danube.broker.faces import FaceMaker

__all__ = ["serve", "serve_plainly"]


def serve_plainly(words: Sequence[str]) -> None:
    """Run ``danube serve`` without Typer and leave with its exit code; return if Typer has to read the command line.

    Args:
        words: those after ``serve``.
    """
    options = read_plain(serve, words)
    if options is not None:
        with errors_in_one_line():
            sys.exit(serve(**with_environment(serve, options)))


def serve(
    config: Annotated[str | None, PlainOption("-c", "--config", metavar="FILE", help="TOML configuration.")] = None,
    listen: Annotated[
        list[str] | None,
        PlainOption(metavar="HOST:PORT", help="Address to listen on; repeat for more; port 0 takes a free one."),
    ] = None,
    admin_listen: Annotated[
        list[str] | None,
        PlainOption(
            metavar="HOST:PORT",
            help="Address for the admin tools of the upstream system; repeat for more; 'none' for no admin port."
            " [127.0.0.1:50051]",
        ),
    ] = None,
    http_listen: Annotated[
        list[str] | None,
        PlainOption(
            metavar="HOST:PORT",
            help="Address of the HTTP API; repeat for more; 'none' for no HTTP. [127.0.0.1:8650]",
        ),
    ] = None,
    registry_listen: Annotated[
        list[str] | None,
        PlainOption(
            metavar="HOST:PORT",
            help="Address of the schema registry's REST interface; repeat for more; 'none' for none. [127.0.0.1:8081]",
        ),
    ] = None,
    data_dir: Annotated[
        str | None,
        PlainOption(
            "--data-dir",
            "--data-directory",
            metavar="DIRECTORY",
            help="Journal and metadata; created if missing. [./danube-data]",
        ),
    ] = None,
    durability: Annotated[
        Durability | None,
        PlainOption(help="Default durability of new topics: acknowledge when in memory, written, or synced. [disk]"),
    ] = None,
    journal_file_size: Annotated[
        str | None, PlainOption(metavar="SIZE", help="Size of a journal file. [64MiB]")
    ] = None,
    journal_limit: Annotated[
        str | None, PlainOption(metavar="SIZE", help="Maximum size of the whole journal. [4GiB]")
    ] = None,
    storage: Annotated[
        str | None,
        PlainOption(metavar="URL", help="Where history is sealed to: disk://, s3://bucket/prefix ... [disk]"),
    ] = None,
    cluster: Annotated[
        str | None, PlainOption(metavar="NAME", help="Name of the cluster: its folder in each storage. [danube]")
    ] = None,
    peers: Annotated[
        str | None,
        PlainOption(
            metavar="LIST",
            help="The brokers that form a cluster, the same list on all of them: a,b:6651 or 127.0.0.1:6650-6652.",
        ),
    ] = None,
    join: Annotated[
        str | None, PlainOption(metavar="HOST:PORT", help="A broker of an existing cluster, which this one joins.")
    ] = None,
    client_url: Annotated[
        str | None,
        PlainOption(
            metavar="URL",
            help="A load balancer in front of all brokers, for official Danube clients: they use nothing else.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        PlainOption(metavar="HOST:PORT", help="Where other brokers, and their clients, reach this broker."),
    ] = None,
    cluster_secret: Annotated[
        str | None,
        PlainOption(
            metavar="FILE", help="The secret of the cluster, the same on all brokers; needed on several machines."
        ),
    ] = None,
    rack: Annotated[
        str | None,
        PlainOption(
            metavar="NAME",
            help="What this broker shares with others that fail together with it: a rack, or an availability zone.",
        ),
    ] = None,
    insecure: Annotated[
        bool | None,
        PlainOption(
            "--insecure/--no-insecure",
            help="Listen also on addresses that other machines can reach, without access control.",
        ),
    ] = None,
    tls_cert: Annotated[
        str | None,
        PlainOption(metavar="FILE", help="Certificate and its chain (PEM): both ports speak TLS."),
    ] = None,
    tls_key: Annotated[
        str | None, PlainOption(metavar="FILE", help="Key (PEM), if it is not in the file of the certificate.")
    ] = None,
    tls_client_ca: Annotated[
        str | None, PlainOption(metavar="FILE", help="Authorities (PEM) that sign certificates of clients.")
    ] = None,
    tls_client_auth: Annotated[
        str | None, PlainOption(metavar="WHEN", help="Certificates of clients: none, optional or required. [none]")
    ] = None,
    tls_broker_ca: Annotated[
        str | None,
        PlainOption(metavar="FILE", help="Authorities (PEM) that sign certificates of the cluster's brokers."),
    ] = None,
    auto_create: Annotated[
        bool | None, PlainOption("--auto-create/--no-auto-create", help="Create topics when a producer opens them.")
    ] = None,
    log_level: Annotated[str | None, PlainOption(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_format: Annotated[
        str | None, PlainOption(metavar="FORMAT", help="text, or json: one JSON object a line. [text]")
    ] = None,
) -> int:
    """Run a broker in the foreground.

    It prints one line when it is ready, and drains on SIGTERM or Ctrl-C. Options override environment variables
    (DANUBE_DATA_DIR for --data-dir, DANUBE_LISTEN for --listen, with commas), those the configuration file, which
    overrides the defaults.
    """
    leave_on_interrupt()  # until the broker handles signals itself: nothing has begun before that
    with _collector_off():
        from danube.broker.run import run_broker
        from danube.broker.runtime.config import parse_size
        from danube.broker.runtime.config_file import load_config
        from danube.compat import face

    limits: dict[str, Any] = {}
    if journal_limit is not None:
        limits["journal_max_bytes"] = parse_size(journal_limit)
    tls = {
        "cert": tls_cert,
        "key": tls_key,
        "client_ca": tls_client_ca,
        "client_auth": tls_client_auth,
        "broker_ca": tls_broker_ca,
    }
    settings = load_config(
        config,
        {
            "listen": listen or None,
            "admin_listen": [] if admin_listen == ["none"] else admin_listen or None,
            "http_listen": [] if http_listen == ["none"] else http_listen or None,
            "registry_listen": [] if registry_listen == ["none"] else registry_listen or None,
            "data_directory": data_dir,
            "durability": durability,
            "journal_file_size": journal_file_size,
            "storage": storage,
            "cluster": cluster,
            "peers": peers,
            "join": join,
            "client_url": client_url,
            "advertise": advertise,
            "cluster_secret": cluster_secret,
            "rack": rack,
            "insecure": insecure_wanted(insecure),
            "tls": {name: value for name, value in tls.items() if value is not None} or None,
            "auto_create_topics": auto_create,
            "log_level": log_level,
            "log_format": log_format,
            "limits": limits,
        },
    )
    faces: list[FaceMaker] = [face]
    with _collector_off():
        if settings.http_addresses:
            from danube.web import face as web_face

            faces.append(web_face)
        if settings.registry_addresses:
            from danube.registry import face as registry_face

            faces.append(registry_face)
    return run_broker(settings, faces=faces)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Load modules within this: the garbage collector would search them all again and again, and find nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
