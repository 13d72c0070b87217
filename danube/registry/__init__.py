"""Serves Confluent's REST interface of a schema registry, over the registry of the cluster.

Requests are matched with one table of routes. A handler of a route is a pure function of the registry's state
(:class:`danube.schema.Book`) and the request; it returns the answer, or a change that the broker stores::

    routes.py      the table, and which route a request means                        pure
    requests.py    paths, queries and bodies as values                               pure
    answers.py     schemas and versions as JSON                                      pure
    errors.py      errors as status, error code and message                          pure
    reading.py, listing.py, settings.py, changing.py, proposing.py    handlers       pure
    face.py        requests in, judged like all calls, answers out

``docs/registry.md`` describes the interface, and where it differs from Confluent's registry.
"""

from __future__ import annotations

from danube.registry.face import RegistryFace, face

__all__ = ["RegistryFace", "face"]
