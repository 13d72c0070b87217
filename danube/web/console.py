"""The files of the web console as answers. Pure.

What is in ``static`` is served as it is: ``/`` is ``index.html``, and ``/static/...`` everything else. The pages are
public, as they contain nothing; the data that they show come from the API, with the caller's own rights. Compression
and entity tags are added by the HTTP server, as to every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from danube.http import Response

__all__ = ["CONTENT_TYPES", "ConsoleFiles"]

CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""By the suffix of a file; files with others are not served."""
_PREFIX: Final = "/static/"
_START: Final = "index.html"
_HEADERS: Final = (("Cache-Control", "no-cache"),)
"""Browsers ask each time, and are told that nothing has changed: another version of the broker brings other files."""


class ConsoleFiles:
    """Answers requests for the files of the console.

    Args:
        names: paths of all files, relative to ``static``, with ``/`` between their parts.
        read: returns the contents of one of them. It is called once for each that is asked for.
    """

    def __init__(self, names: Collection[str], read: Callable[[str], bytes]) -> None:
        self._names = frozenset(name for name in names if _content_type(name))
        self._read = read
        self._contents: dict[str, bytes] = {}

    def answer(self, path: str) -> Response | None:
        """Return the answer to a GET request.

        Args:
            path: of the URL.

        Returns:
            None: the console has no such file. Only names that were given to the constructor are read, so that no path
            leads out of the directory.
        """
        name = _START if path == "/" else path.removeprefix(_PREFIX) if path.startswith(_PREFIX) else ""
        if name not in self._names:
            return None
        if name not in self._contents:
            self._contents[name] = self._read(name)
        return Response(200, self._contents[name], content_type=_content_type(name), headers=_HEADERS)


def _content_type(name: str) -> str:
    return CONTENT_TYPES.get(f".{name.rpartition('.')[2]}", "")
