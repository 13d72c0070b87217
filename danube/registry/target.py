"""The target of a request, as clients of Confluent's registry write it. Pure."""

from __future__ import annotations

from danube.http import Target, parse_target

__all__ = ["registry_target"]


def registry_target(target: bytes) -> Target:
    """Decode the target of a request.

    Slashes at the beginning and at the end of the path are dropped, because clients join URLs carelessly:
    ``//subjects/`` is the same as ``/subjects``. Slashes of a subject are escaped, and not affected.

    Raises:
        InvalidArgumentError: as :func:`danube.http.parse_target`.
    """
    path, mark, query = target.partition(b"?")
    if path.startswith(b"/"):
        path = b"/" + path.strip(b"/")
    return parse_target(path + mark + query)
