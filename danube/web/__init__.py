"""Serves HTTP: the API under ``/api/v1``, the health of the broker, and the web console at ``/``.

A face over the broker's native calls: a request is matched with a row of one table, and its handler makes the same
guarded calls as any client, with the caller's own proof. Nothing is decided here::

    routes.py       the table: method, path, native calls, parameters, types                            pure
    router.py       which row a request means, and its parameters                                       pure
    twins.py        the structs of the native API as JSON objects                                       pure
    openapi.py      the table as OpenAPI 3.1                                                            pure
    guard.py        Host, Origin and content types: what a browser may do on behalf of another page     pure
    lists.py        pages, filters and the order of lists                                               pure
    messages.py     messages as JSON, and what publishers send                                          pure
    console.py      the files of the console as answers                                                 pure
    packaged.py     reads these files from the package
    static/         the files, served as they are
    face.py         requests in, answers out
    caller.py       the native calls of one request
    inner.py        the native client within the process, for messages
    read_*.py, write_*.py ... handlers
"""

from __future__ import annotations

from danube.web.face import WebFace, face

__all__ = ["WebFace", "face"]
