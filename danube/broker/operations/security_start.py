"""How access control begins: the broker's key for tokens, and the first administrator of the cluster.

The private key is in the file ``security/signing.key`` of the data directory, which only the owner may read; it never
leaves the broker. Its public half is a record in the metadata, so that all brokers accept the tokens that it signs.
``danube security init`` writes the file, to sign the first token of the administrator before there is a broker. A
broker without the file makes a key.

A key whose record was removed is lost: the broker makes another one when it starts. To tell it from a key that was not
registered yet, the id of the registered key is noted in ``security/registered``.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import trio

from danube.broker.operations.security import Records, write_changes
from danube.metadata import MetadataStore, may_pass
from danube.model.errors import ConfigurationError, DanubeError
from danube.model.log_events import log_event
from danube.security.book import Change, SecurityBook, first_records
from danube.security.keys import SigningKey, signing_key, signing_key_of_pem
from danube.security.records import ISSUERS, IssuerRecord

__all__ = ["SIGNING_KEY", "begin_security", "write_private"]

_log = logging.getLogger("danube.broker")

SIGNING_KEY: Final = Path("security", "signing.key")
"""The file of the key, in the data directory."""
_REGISTERED: Final = "registered"
_BROKER: Final = "a broker"
_SEED_BYTES: Final = 32
_MAX_KEY_BYTES: Final = 4096
_AGAIN_S: Final = 0.5
"""Pause before the metadata are asked again."""
T = TypeVar("T")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all; directories are created.

    Raises:
        ConfigurationError: it cannot be written.
    """
    fresh = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise ConfigurationError(f"the file {path} cannot be written: {error.strerror or error}") from error


def _read_key(path: Path) -> SigningKey | None:
    """Return the key in a file; None if there is no file.

    Raises:
        ConfigurationError: others may read it, or it is no key.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MAX_KEY_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"the key in {path} cannot be read: {error.strerror or error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(
            f"the key in {path} has mode {stat.S_IMODE(mode):04o}, so others may read or change it; run: chmod 600"
            f" {path}"
        )
    return signing_key_of_pem(content.decode("ascii", "replace"))


async def _repeated(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call of the metadata; repeat it while they do not answer, as all parts of a broker do."""
    while True:
        try:
            return await call()
        except DanubeError as error:
            if not error.retryable or not may_pass(error):
                raise
            _log.warning(
                "access control begins once the metadata answer: %s", error, extra=log_event("security.start_delayed")
            )
        await trio.sleep(_AGAIN_S)


async def begin_security(
    store: MetadataStore,
    records: Records,
    cluster: str,
    directory: Path,
    administrator: str,
    clock_us: Callable[[], int],
    random_bytes: Callable[[int], bytes],
) -> SigningKey:
    """Register the key of this broker, and the first administrator if the cluster has none; return the key.

    Args:
        store: the metadata.
        records: of access control.
        cluster: its name, the issuer of the tokens.
        directory: the data directory.
        administrator: subject of the first administrator; it has no effect once there is one. Empty: none.
        clock_us: the wall clock.
        random_bytes: returns so many unpredictable bytes.

    Raises:
        ConfigurationError: the file of the key cannot be used; or the administrator is invalid.
        DanubeError: the metadata failed for good. While they do not answer, this waits.
    """
    path = directory / SIGNING_KEY
    # Three small files, once, before the broker serves: not worth a thread.
    found = _read_key(path)
    noted = path.with_name(_REGISTERED)
    registered = noted.read_text("ascii") if noted.exists() else ""

    def new_key() -> SigningKey:
        key = signing_key(random_bytes(_SEED_BYTES))
        write_private(path, key.private_pem())
        return key

    key = found if found is not None else new_key()
    book = await _repeated(lambda: records.at(0))
    if key.kid == registered and ISSUERS + key.kid not in book.records:
        _log.warning(
            "the key %s of this broker was removed from the cluster; it makes another one",
            key.kid,
            extra=log_event("security.key_replaced"),
        )
        key = new_key()
    now_us = clock_us()

    def decide(book: SecurityBook) -> list[Change]:
        if administrator and not book.has_administrator:
            return first_records(cluster, key.public_bytes, administrator, book.records, now_us=now_us)
        if ISSUERS + key.kid in book.records:
            return []
        record = IssuerRecord(name=cluster, public=key.public_bytes, created_us=now_us, created_by=_BROKER)
        return [Change(ISSUERS + key.kid, record)]

    book, _ = await _repeated(lambda: write_changes(store, records, decide))
    if not book.has_administrator:
        _log.warning(
            "the cluster has no administrator; name the first one in [security] administrator, and restart",
            extra=log_event("security.no_administrator"),
        )
    if key.kid != registered:
        write_private(noted, key.kid)
    return key
