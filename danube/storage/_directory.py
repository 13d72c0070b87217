"""The directory of ``disk://``, and storage URLs for other processes, which do not know it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danube.storage._url import parse_url, public_url

__all__ = ["reachable_url", "storage_directory"]


def reachable_url(url: str, options: Mapping[str, Any], data_directory: str) -> str:
    """Return a storage URL for other processes: absolute, with all options except secrets.

    Args:
        url: as configured.
        options: configured in addition to the URL; those in its query take precedence. Only strings, numbers and
            booleans.
        data_directory: the broker's, used by ``disk://``.
    """
    parts = parse_url(url)
    beside = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if isinstance(value, str | int | float)
    }
    path = parts.path
    if parts.scheme == "disk" and not parts.location and not path:
        path = str(storage_directory(data_directory))
    return public_url(parts.scheme, parts.location, path, beside | parts.options)


def storage_directory(data_directory: str | os.PathLike[str]) -> Path:
    """Return the directory of ``disk://``."""
    return Path(os.path.abspath(data_directory)) / "storage"
