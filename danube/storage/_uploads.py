"""Names of unfinished uploads, for backends that write a file under another name and then rename it.

Renaming makes a put atomic: the object appears whole. The temporary names are in the folder
:data:`UPLOADS` below the root; no key begins with a dot, so they are never keys::

    .uploads/<16 hex digits>~<key, with ~ for />

``~`` is in no key, so an upload's key can be read from its name (long keys are truncated).
"""

from __future__ import annotations

import secrets

__all__ = ["UPLOADS", "belongs_to", "upload_name"]

UPLOADS = ".uploads"
"""Folder of unfinished uploads."""

_KEY_CHARACTERS = 200


def upload_name(key: str) -> str:
    """Return a new name, below :data:`UPLOADS`, for an upload of ``key``."""
    return f"{secrets.token_hex(8)}~{_flat(key)}"


def belongs_to(name: str, prefix: str) -> bool:
    """Whether an upload of that name belongs to a key with that prefix (compared by its first 200 characters)."""
    _, separator, key = name.partition("~")
    return bool(separator) and key.startswith(_flat(prefix))


def _flat(key: str) -> str:
    return key.replace("/", "~")[:_KEY_CHARACTERS]
