"""The structs of the native API as JSON objects. Pure.

On the wire they are arrays, and their ids have 64 bits, of which JavaScript keeps 53. So each has a *twin*: an object
with the same field names, in which fields that end in ``_id`` or ``_ids`` are texts of digits. Twins are derived: a new
field of the native API is a new field here. They describe answers (:mod:`danube.web.openapi`) and decode requests;
answers themselves are made by :func:`plain`.
"""

from __future__ import annotations

import enum
import functools
import operator
import re
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, NewType, Union, get_args, get_origin, get_type_hints

import msgspec

from danube.http import Response
from danube.model.errors import InvalidArgumentError

__all__ = ["Id", "as_native", "json_response", "plain", "twin", "without"]

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}$", description="A 64-bit number as text.")]
"""The JSON type of an id."""
_IDS: Final = re.compile(r"(?:^|_)ids?$")
_RESERVED: Final = re.compile(r"[^A-Za-z0-9_]")


def is_id(field: str) -> bool:
    """Whether the numbers of a field are written as text."""
    return _IDS.search(field) is not None


@lru_cache(256)
def twin(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the twin of a struct; structs that are objects already, such as policies, are their own."""
    if not kind.__struct_config__.array_like:
        return kind
    hints = get_type_hints(kind, include_extras=True)
    fields: list[Any] = []
    for each in msgspec.structs.fields(kind):
        hint = _json_type(hints[each.name], each.name)
        if each.required:
            fields.append((each.name, hint))
        elif each.default_factory is not msgspec.NODEFAULT:
            fields.append((each.name, hint, msgspec.field(default_factory=each.default_factory)))
        else:
            default = str(each.default) if is_id(each.name) and isinstance(each.default, int) else each.default
            fields.append((each.name, hint, default))
    made = msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=True, module=__name__)
    made.__doc__ = kind.__doc__
    return made


def without(kind: type[msgspec.Struct], *names: str) -> type[msgspec.Struct]:
    """Return the twin of a request without the fields that the path of the URL gives."""
    whole = twin(kind)
    hints = get_type_hints(whole, include_extras=True)
    fields: list[Any] = []
    for each in msgspec.structs.fields(whole):
        if each.name in names:
            continue
        if each.required:
            fields.append((each.name, hints[each.name]))
        elif each.default_factory is not msgspec.NODEFAULT:
            fields.append((each.name, hints[each.name], msgspec.field(default_factory=each.default_factory)))
        else:
            fields.append((each.name, hints[each.name], each.default))
    made = msgspec.defstruct(f"{kind.__name__}Body", fields, kw_only=True, forbid_unknown_fields=True, module=__name__)
    made.__doc__ = kind.__doc__
    return made


def _json_type(hint: Any, field: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, NewType):
        return Id if is_id(field) else int
    if hint is int and is_id(field):
        return Id
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return twin(hint)
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, (_json_type(each, field) for each in arguments))
    if origin in (list, tuple, dict):
        inner = tuple(each if each is ... else _json_type(each, field) for each in arguments)
        return origin[inner]
    return hint


def plain(value: Any) -> Any:
    """Return a value of the native API as what JSON has: dicts, lists, texts and numbers.

    Bytes stay bytes: msgspec writes them in base64.
    """
    if isinstance(value, msgspec.Struct):
        if not value.__struct_config__.array_like:
            return msgspec.to_builtins(value)
        return {name: make(getattr(value, name)) for name, make in _fields(type(value))}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value


@lru_cache(256)
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    return tuple((name, _text if is_id(name) else plain) for name in kind.__struct_fields__)


def _text(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return str(value)
    return [_text(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def json_response(value: Any, status: int = 200) -> Response:
    """Return an answer with a value of the native API, or of :mod:`danube.web.bodies`, as JSON."""
    body = msgspec.json.encode(plain(value))
    return Response(status, body, content_type="application/json", headers=[("Cache-Control", "no-cache")])


def as_native(body: msgspec.Struct | None, kind: type[Any], **path: Any) -> Any:
    """Return a native request made of a decoded body and of what the path gives.

    Raises:
        InvalidArgumentError: a value is out of range.
    """
    given = {} if body is None else {name: getattr(body, name) for name in body.__struct_fields__}
    values = {
        name: _number(name, value) if is_id(name) else value
        for name, value in {**given, **path}.items()
        if name in kind.__struct_fields__
    }
    return kind(**values)


def _number(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_number(name, each) for each in value]
    if isinstance(value, str) and value.isascii() and value.isdigit():
        number = int(value)
        if number < 2**64:
            return number
        raise InvalidArgumentError(f"{name} {value} has more than 64 bits")
    return value
