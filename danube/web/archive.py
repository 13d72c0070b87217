"""A debug bundle as an archive. Pure."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from danube.model.redaction import without_secrets, without_secrets_in_text

__all__ = ["MOST_PART_BYTES", "README", "archived", "file_of"]

MOST_PART_BYTES: Final = 8 << 20
"""Of a larger file, the beginning is kept."""
README: Final = b"""\
Debug bundle of a Danube broker.

It contains names of topics, subscriptions, clients and addresses, and no messages (but reasons that consumers gave for
refusing one). What has the name or the form of a secret was removed. Look at the files before you give them away.
"""


def file_of(value: Any, most_bytes: int = MOST_PART_BYTES) -> bytes:
    """Return a part as a file, without what has the form of a secret: JSON; a text, as an error, as it is."""
    # Each value and each line by itself: the time for one text grows with the square of its longest word.
    if isinstance(value, str):
        data = "\n".join(map(without_secrets_in_text, value[:most_bytes].splitlines())).encode() + b"\n"
    else:
        data = msgspec.json.format(msgspec.json.encode(without_secrets(value)), indent=2) + b"\n"
    if len(data) <= most_bytes:
        return data
    return data[:most_bytes] + b"\n(the rest was left out)\n"


def archived(folder: str, parts: Mapping[str, Any], made_s: float) -> bytes:
    """Return parts as a tar.gz. It may take a second: call it in a thread.

    Args:
        folder: within the archive.
        parts: by the names of their files; see :func:`file_of`.
        made_s: when, in seconds since the epoch.
    """
    files = {"README.txt": README, **{name: file_of(value) for name, value in parts.items()}}
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz", compresslevel=6) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(made_s), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return found.getvalue()
