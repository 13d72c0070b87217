"""``danube storage-server``: serve a storage backend to brokers on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    max_object_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Largest object. [256MiB]")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory for objects in transfer. [512MiB]")] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a storage backend to brokers on other machines, which use it as remote://HOST:PORT/SPACE.

    It prints one line when it is ready, and drains on SIGTERM or Ctrl-C. Without TLS all data is sent unencrypted,
    including the token.
    """
    import msgspec

    from danube.broker.runtime.config import parse_size
    from danube.model.addresses import parse_address
    from danube.model.errors import ConfigurationError
    from danube.model.limits import Limits
    from danube.storage_server import StorageServerConfig, run_storage_server

    if log_level not in ("debug", "info", "warning", "error"):
        raise ConfigurationError(f"log level {log_level!r} is not debug, info, warning or error")
    if tls_key is not None and tls_cert is None:
        raise ConfigurationError("--tls-key needs --tls-cert")
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
        tls_certificate=tls_cert,
        tls_key=tls_key,
        limits=msgspec.structs.replace(Limits(), **sizes),
    )
    run_storage_server(config, log_level=log_level)
