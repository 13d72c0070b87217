"""The files that ``danube security init`` writes: what a cluster needs to begin with access control.

::

    danube-security/            --directory, readable by its owner only
      ca.pem, ca.key            the authority of the cluster; clients need ca.pem
      server.pem, server.key    the certificate of the first broker
      cluster.secret            of the links between brokers
      admin.token               of the first administrator
      b2/ ...                   for another broker: a bundle to be copied to its machine
    danube-data/security/signing.key
    danube.toml
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from danube.cli._certificates import Pair, broker_pair, first_host, make_authority
from danube.model.addresses import DEFAULT_PORT
from danube.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from danube.model.names import validate_identifier

__all__ = ["FIRST_BROKER", "Bundle", "Made", "add_broker", "address_of", "begin"]

FIRST_BROKER: Final = "b1"
_ADMINISTRATOR: Final = "user:admin"
_SIGNING_KEY: Final = ("security", "signing.key")


class Made(NamedTuple):
    """What was written."""

    config: Path
    ca: Path
    token: Path


class Bundle(NamedTuple):
    """What was written for another broker."""

    directory: Path
    joins: str
    """Address of the first broker."""


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a new file; one that exists is not changed."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise AlreadyExistsError(f"{path} exists already; remove it, or choose another place") from error


def _quoted(value: object) -> str:
    return msgspec.json.encode(str(value)).decode()


def address_of(host: str) -> str:
    """Return the address of a broker at a host, with the default port."""
    plain = host.strip("[]")
    return f"[{plain}]:{DEFAULT_PORT}" if ":" in plain else f"{plain}:{DEFAULT_PORT}"


def _config(cluster: str, host: str, data: object, places: dict[str, object], *, head: str) -> str:
    return "\n".join(
        [
            head,
            f"cluster = {_quoted(cluster)}",
            f"data_directory = {_quoted(data)}",
            f"advertise = {_quoted(address_of(host))}  # where other brokers, and their clients, reach this one",
            f"cluster_secret = {_quoted(places['secret'])}",
            "",
            "[tls]",
            f"cert = {_quoted(places['cert'])}",
            f"key = {_quoted(places['key'])}",
            f"broker_ca = {_quoted(places['ca'])}",
            'client_auth = "optional"  # with broker_ca: links between brokers need a certificate',
            "",
            "[security]",
            "enabled = true",
            f"administrator = {_quoted(_ADMINISTRATOR)}  # bound to the role admin when the cluster begins",
            "",
        ]
    )


def begin(directory: Path, data: Path, config: Path, cluster: str, hosts: Sequence[str], token_life_s: float) -> Made:
    """Write what the first broker of a cluster needs; nothing is written if one of the files exists.

    Args:
        directory: of certificates and secrets.
        data: the data directory of the broker, which gets the signing key.
        config: the configuration file.
        cluster: its name.
        hosts: names and addresses of the broker.
        token_life_s: life of the administrator's token.

    Raises:
        AlreadyExistsError: a file exists.
        InvalidArgumentError: a host is invalid.
        ConfigurationError: the package ``cryptography`` is not installed.
    """
    from danube.security.keys import signing_key
    from danube.security.proofs import mint

    validate_identifier("cluster", cluster)
    directory, data, config = directory.absolute(), data.absolute(), config.absolute()
    signing = data.joinpath(*_SIGNING_KEY)
    for path in (directory / "ca.key", signing, config):
        if path.exists():
            raise AlreadyExistsError(
                f"{path} exists already; `danube security init --broker b2 --host HOST` adds a broker to the cluster"
            )
    authority = make_authority(cluster)
    server = broker_pair(authority, cluster, FIRST_BROKER, hosts)
    key = signing_key(secrets.token_bytes(32))
    now_s = int(time.time())
    token = mint(
        key,
        issuer=cluster,
        cluster=cluster,
        subject=_ADMINISTRATOR,
        token_id=secrets.token_hex(16),
        issued_at_s=now_s,
        expires_at_s=now_s + round(token_life_s),
    )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    signing.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(directory / "ca.pem", authority.certificate, 0o644)
    _write(directory / "ca.key", authority.key)
    _write_pair(directory, server)
    _write(directory / "cluster.secret", secrets.token_hex(32) + "\n")
    _write(directory / "admin.token", token + "\n")
    _write(signing, key.private_pem())
    places: dict[str, object] = {
        "cert": directory / "server.pem",
        "key": directory / "server.key",
        "ca": directory / "ca.pem",
        "secret": directory / "cluster.secret",
    }
    _write(config, _config(cluster, hosts[0], data, places, head="# Written by `danube security init`."), 0o644)
    return Made(config, directory / "ca.pem", directory / "admin.token")


def _write_pair(directory: Path, pair: Pair) -> None:
    _write(directory / "server.pem", pair.certificate, 0o644)
    _write(directory / "server.key", pair.key)


def add_broker(directory: Path, cluster: str, broker: str, hosts: Sequence[str]) -> Bundle:
    """Write a bundle for another broker: a directory to be copied to its machine; return it.

    Args:
        directory: in which :func:`begin` has written.
        cluster: its name.
        broker: ``b2`` and so on.
        hosts: names and addresses of the broker.

    Raises:
        NotFoundError: the directory has no authority.
        AlreadyExistsError: there is a bundle of this broker already.
        InvalidArgumentError: a host, or the name of the broker, is invalid.
    """
    if not (broker[:1] == "b" and broker[1:].isascii() and broker[1:].isdigit() and broker[1] != "0"):
        raise InvalidArgumentError(f"{broker!r} is no broker; brokers are called b1, b2 and so on")
    try:
        authority = Pair((directory / "ca.pem").read_text(), (directory / "ca.key").read_text())
        secret = (directory / "cluster.secret").read_text()
        first = (directory / "server.pem").read_text()
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{error.filename} does not exist; run `danube security init --host HOST` first, or give its --directory"
        ) from error
    pair, joins = broker_pair(authority, cluster, broker, hosts), address_of(first_host(first))
    bundle = directory / broker
    try:
        bundle.mkdir(mode=0o700)
    except FileExistsError as error:
        raise AlreadyExistsError(f"{bundle} exists already; remove it first") from error
    _write(bundle / "ca.pem", authority.certificate, 0o644)
    _write_pair(bundle, pair)
    _write(bundle / "cluster.secret", secret)
    places: dict[str, object] = {
        "cert": "server.pem",
        "key": "server.key",
        "ca": "ca.pem",
        "secret": "cluster.secret",
    }
    head = f"# Written by `danube security init --broker {broker}`; its paths are relative to the working directory."
    _write(bundle / "danube.toml", _config(cluster, hosts[0], "danube-data", places, head=head), 0o644)
    return Bundle(bundle, joins)
