"""The text of a storage's marker, and what is said about one that is damaged, missing or another one. Pure."""

from __future__ import annotations

import re

__all__ = ["away", "damaged", "decode_identity", "encode_identity"]

_FORMAT = re.compile(rb"DNB-MARK 1 ([0-9a-f]{32})\n")


def encode_identity(identity: str) -> bytes:
    """Return the marker with an identity of 32 hexadecimal digits."""
    return b"DNB-MARK 1 %s\n" % identity.encode()


def decode_identity(data: bytes) -> str:
    """Return the identity in a marker; empty if the marker is damaged."""
    found = _FORMAT.fullmatch(data)
    return found[1].decode() if found is not None else ""


def damaged(url: str, key: str, name: str) -> str:
    """Say that a marker cannot be read.

    Args:
        url: of the storage, without secrets.
        key: of the marker.
        name: of the storage.
    """
    return (
        f"{url}: the marker {key} of storage {name!r} is damaged; restore it from a copy, or accept the present"
        f" contents with: danube storage repair {name} --adopt"
    )


def away(url: str, key: str, name: str, found: str) -> str:
    """Say that a place is not the storage.

    Args:
        url: of the place, without secrets.
        key: of the marker.
        name: of the storage.
        found: the identity in the marker there; empty: there is none.
    """
    what = "holds the marker of another storage" if found else f"has no marker ({key})"
    return (
        f"{url} {what}, so it is not storage {name!r}, or the storage is not mounted: missing objects do not count as"
        " lost, and nothing is written; mount the storage or correct its URL, or abandon its former contents with:"
        f" danube storage repair {name} --adopt"
    )
