"""Which route a request means, and its parameters. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from danube.http import Target
from danube.model.errors import InvalidArgumentError
from danube.web.routes import ROUTES, Route

__all__ = ["Matched", "Router", "values_of"]


class Matched(NamedTuple):
    """What a target means."""

    route: Route | None
    """None: no route has this method."""
    path: Mapping[str, str]
    """Parameters of the path."""
    methods: tuple[str, ...]
    """Methods of the routes with this path; empty: there is none."""


class Router:
    """Finds routes by the number of their segments."""

    def __init__(self, routes: Iterable[Route] = ROUTES) -> None:
        self._routes: Mapping[int, list[Route]] = defaultdict(list)
        for route in routes:
            self._routes[len(route.segments)].append(route)

    def match(self, method: str, target: Target) -> Matched:
        """Return what a target means.

        A verb is what follows the last colon of the path as it was sent: ``%3A`` is a colon of a name.
        """
        last = target.path.rpartition("/")[2]
        verb = last.rpartition(":")[2] if ":" in last else ""
        found: dict[str, tuple[Route, Mapping[str, str]]] = {}
        for route in self._routes.get(len(target.segments), ()):
            path = _match(route, target.segments, verb)
            if path is not None:
                found.setdefault(route.method, (route, path))
        if method in found:
            return Matched(*found[method], tuple(found))
        return Matched(None, {}, tuple(found))


def _match(route: Route, segments: tuple[str, ...], verb: str) -> dict[str, str] | None:
    path: dict[str, str] = {}
    at_end: Final = len(segments) - 1
    for at, (wanted, given) in enumerate(zip(route.segments, segments, strict=True)):
        if at == at_end and wanted.partition(":")[2]:
            head, _, wanted_verb = wanted.partition(":")
            if verb != wanted_verb or not given.endswith(f":{verb}"):
                return None
            wanted, given = head, given.removesuffix(f":{verb}")
        elif at == at_end and verb and wanted.startswith("{") and any(verb == each for each in _VERBS):
            return None
        if wanted.startswith("{"):
            if not given:
                return None
            path[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return path


_VERBS: Final = frozenset(route.template.rpartition(":")[2] for route in ROUTES if ":" in route.template)


def values_of(route: Route, query: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of a request, by name; defaults where they are not given.

    Raises:
        InvalidArgumentError: one is unknown, or has a value of the wrong kind.
    """
    known = {each.name for each in route.parameters if not each.header}
    for name in query:
        if name not in known:
            hint = f"known are {', '.join(sorted(known))}" if known else "it takes none"
            raise InvalidArgumentError(f"the parameter {ascii(name)[:80]} is unknown here; {hint}")
    found: dict[str, Any] = {}
    for each in route.parameters:
        text = headers.get(each.name.lower()) if each.header else query.get(each.name)
        if text is None and each.required:
            raise InvalidArgumentError(f"the parameter {each.name} is missing; {each.summary}")
        found[each.name] = each.default if text is None else _value(each.name, each.kind, text, each.least, each.most)
    return found


def _value(name: str, kind: type, text: str, least: int, most: int) -> Any:
    if kind is bool:
        if text.lower() in ("", "1", "true", "yes"):
            return True
        if text.lower() in ("0", "false", "no"):
            return False
        raise InvalidArgumentError(f"{name} = {ascii(text)[:80]} is neither true nor false")
    if kind is not int:
        return text
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise InvalidArgumentError(f"{name} = {ascii(text)[:80]} is no number")
    number = int(text)
    if not least <= number <= most:
        raise InvalidArgumentError(f"{name} = {number} is out of range; it is from {least} to {most}")
    return number
