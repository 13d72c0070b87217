"""``danube storage-server``: serve a storage backend to brokers on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from danube.model.tls import ClientAuth

__all__ = ["storage_server"]

_PORT = 6660
_LISTEN = f"127.0.0.1:{_PORT}"


def storage_server(
    url: Annotated[str, typer.Argument(metavar="URL", help="Storage to serve, for example disk:///data.")],
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT", help=f"Address to listen on; repeat for more; port 0 takes a free one. [{_LISTEN}]"
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Accept only clients that send the token in this file.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate chain (PEM): serve with TLS only.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Key (PEM), if it is not in the file of the certificate.")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure/--no-insecure",
            help="Listen also on addresses that other machines can reach, without token and TLS.",
        ),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Accept only clients with a certificate of these authorities (PEM)."),
    ] = None,
    tls_client_auth: Annotated[
        str | None,
        typer.Option(
            metavar="WHETHER",
            help="required, or optional: a token will do instead. [required, with --tls-client-ca]",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name that a client's certificate must have: danube://CLUSTER/broker/b1, danube://CLUSTER/broker/*, or"
            " a DNS name; repeat for more. Without any, each certificate of the authorities is accepted.",
        ),
    ] = None,
    max_object_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Largest object. [256MiB]")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory for objects in transfer. [512MiB]")] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a storage backend to brokers on other machines, which use it as remote://HOST:PORT/SPACE.

    It prints one line when it is ready, and drains on SIGTERM or Ctrl-C. Addresses that other machines can reach need a
    token or certificates of clients, and TLS, or --insecure: without TLS all data is sent unencrypted, including the
    token.
    """
    import msgspec

    from danube.broker.runtime.config import parse_size
    from danube.cli._insecure import insecure_wanted
    from danube.model.addresses import parse_address
    from danube.model.errors import ConfigurationError
    from danube.model.limits import Limits
    from danube.model.tls import TlsConfig
    from danube.storage_server import StorageServerConfig, run_storage_server

    if log_level not in ("debug", "info", "warning", "error"):
        raise ConfigurationError(f"log level {log_level!r} is not debug, info, warning or error")
    given_tls = {"--tls-key": tls_key, "--tls-client-ca": tls_client_ca, "--tls-client-auth": tls_client_auth}
    for option, value in given_tls.items():
        if value is not None and tls_cert is None:
            raise ConfigurationError(f"{option} needs --tls-cert")
    token = None
    if token_file is not None:
        token = token_file.read_text("ascii", "replace").strip()
        if not (token.isascii() and token.isprintable() and token.split() == [token]):
            raise ConfigurationError(f"the token file {token_file} must contain one word of printable ASCII")
    given = {"storage_server_max_object_bytes": max_object_size, "storage_server_memory_bytes": memory}
    sizes = {name: parse_size(text) for name, text in given.items() if text is not None}
    for name, size in sizes.items():
        if size <= 0:
            raise ConfigurationError(f"{name} must be greater than 0")
    config = StorageServerConfig(
        url=url,
        listen=[parse_address(address, _PORT) for address in listen or [_LISTEN]],
        token=token,
        tls=None
        if tls_cert is None
        else TlsConfig(
            cert=str(tls_cert),
            key=str(tls_key or ""),
            client_ca=str(tls_client_ca or ""),
            client_auth=_client_auth(tls_client_auth, has_authority=tls_client_ca is not None),
        ),
        clients=client or [],
        insecure=bool(insecure_wanted(insecure)),
        limits=msgspec.structs.replace(Limits(), **sizes),
    )
    run_storage_server(config, log_level=log_level)


def _client_auth(text: str | None, *, has_authority: bool) -> ClientAuth:
    from danube.model.errors import ConfigurationError

    match text:
        case None:
            return "required" if has_authority else "none"
        case "none" | "optional" | "required":
            return text
        case _:
            raise ConfigurationError(f"--tls-client-auth {text!r} is not none, optional or required")
