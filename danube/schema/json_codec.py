"""Codecs for JSON Schema: types that msgspec knows, pydantic's models, and texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from danube.model.errors import InvalidSchemaError
from danube.schema.json import JsonSchema, parse, validator
from danube.schema.kinds import Source, encode_json
from danube.schema.limits import DEFAULT_LIMITS
from danube.schema.modes import SchemaType
from danube.schema.value_codec import ValueCodec, misfit, undecodable

__all__ = ["JsonTextCodec", "JsonTypeCodec", "PydanticCodec"]

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_REF: Final = "#/$defs/"
_MISFITS: Final = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What encoding a value that does not fit may raise."""
_MOST_INLINED: Final = 1_000
"""References that are replaced in one schema; a schema with more keeps them all."""


class JsonTypeCodec(ValueCodec[Any]):
    """Values of a type that msgspec knows: Structs, dataclasses, TypedDicts, attrs classes, lists, dicts, unions.

    A value is checked by decoding its payload, which costs less than the payload's way to the broker: objects are not
    checked when they are created.
    """

    def __init__(self, kind: Any, name: str = "") -> None:
        try:
            schema = msgspec.json.schema(kind)
            self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        except (TypeError, RecursionError) as error:
            raise InvalidSchemaError(f"{_shown(kind)} has no JSON Schema: {error}") from error
        self.source, self.name = _source(schema, name)
        self._encode = msgspec.json.Encoder().encode

    def encode(self, value: Any) -> bytes:
        """Return the JSON of a value; as :meth:`ValueCodec.encode`."""
        try:
            payload = self._encode(value)
            self._decode(payload)
        except _MISFITS as error:
            raise misfit(error) from error
        return payload

    def encode_many(self, values: Sequence[Any]) -> list[bytes]:
        """Return the JSON of values; as :meth:`ValueCodec.encode_many`."""
        try:
            payloads = list(map(self._encode, values))
            deque(map(self._decode, payloads), maxlen=0)
        except _MISFITS:
            return super().encode_many(values)  # which reports the index
        return payloads

    def _decoder(self, writer: Source | None) -> Callable[[bytes], Any]:
        decode = self._decode

        def decode_json(payload: bytes) -> Any:
            try:
                return decode(payload)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise undecodable(SchemaType.JSON, error) from error

        return decode_json

    def _pinned(self, source: Source) -> ValueCodec[Any]:
        return _PinnedCodec(self, source)


class PydanticCodec(ValueCodec[Any]):
    """Values of a model of pydantic, which encodes and decodes them."""

    def __init__(self, model: Any, name: str = "") -> None:
        import pydantic
        import pydantic_core

        try:
            schema = model.model_json_schema(by_alias=True)
        except pydantic.errors.PydanticInvalidForJsonSchema as error:
            raise InvalidSchemaError(f"{_shown(model)} has no JSON Schema: {error}") from error
        self.source, self.name = _source(schema, name)
        self._model = model
        self._errors = (pydantic_core.PydanticSerializationError, pydantic_core.ValidationError, ValueError)

    def encode(self, value: Any) -> bytes:
        """Return the JSON of a model; as :meth:`ValueCodec.encode`."""
        model = self._model
        if not isinstance(value, model):
            raise misfit(f"expected {model.__name__}, got {type(value).__name__}")
        try:
            payload: bytes = model.__pydantic_serializer__.to_json(value, by_alias=True, warnings="error")
            model.model_validate_json(payload)
        except self._errors as error:
            raise misfit(_pydantic_text(error)) from error
        return payload

    def _decoder(self, writer: Source | None) -> Callable[[bytes], Any]:
        decode, errors = self._model.model_validate_json, self._errors

        def decode_model(payload: bytes) -> Any:
            try:
                return decode(payload)
            except errors as error:
                raise undecodable(SchemaType.JSON, _pydantic_text(error)) from error

        return decode_model

    def _pinned(self, source: Source) -> ValueCodec[Any]:
        return _PinnedCodec(self, source)


class JsonTextCodec(ValueCodec[Any]):
    """Values of JSON (dicts, lists, ...) that are checked against the text of a schema, by jsonschema-rs."""

    def __init__(self, source: Source) -> None:
        parsed = parse(source, DEFAULT_LIMITS)
        self.source = source
        self.name = parsed.name
        self._check = _checker(parsed)

    def encode(self, value: Any) -> bytes:
        """Return the JSON of a value; as :meth:`ValueCodec.encode`."""
        try:
            payload = msgspec.json.encode(value)
            why = self._check(msgspec.json.decode(payload))
        except _MISFITS as error:
            raise misfit(error) from error
        if why is not None:
            raise misfit(why)
        return payload

    def _decoder(self, writer: Source | None) -> Callable[[bytes], Any]:
        check = self._check

        def decode_json(payload: bytes) -> Any:
            try:
                value = msgspec.json.decode(payload)
                why = check(value)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise undecodable(SchemaType.JSON, error) from error
            if why is not None:
                raise undecodable(SchemaType.JSON, why)
            return value

        return decode_json

    def _pinned(self, source: Source) -> ValueCodec[Any]:
        return JsonTextCodec(source)


class _PinnedCodec(ValueCodec[Any]):
    """Values of a type whose payloads must fit another version of its schema as well."""

    def __init__(self, inner: ValueCodec[Any], source: Source) -> None:
        self._inner = inner
        self._text = JsonTextCodec(source)
        self.source = source
        self.name = inner.name

    def encode(self, value: Any) -> bytes:
        """Return the JSON of a value; as :meth:`ValueCodec.encode`."""
        payload = self._inner.encode(value)
        why = self._text._check(msgspec.json.decode(payload))
        if why is not None:
            raise misfit(why)
        return payload

    def _decoder(self, writer: Source | None) -> Callable[[bytes], Any]:
        return self._inner.decoder(writer)

    def _pinned(self, source: Source) -> ValueCodec[Any]:
        return _PinnedCodec(self._inner, source)


def _checker(parsed: JsonSchema) -> Callable[[Any], str | None]:
    """Return a function that says why a value does not fit, or None if it does."""
    import jsonschema_rs

    validate = validator(parsed).validate

    def check(value: Any) -> str | None:
        try:
            validate(value)
        except jsonschema_rs.ValidationError as error:
            place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in error.instance_path)
            return f"{error.message} - at `${place}`"
        return None

    return check


def _source(schema: Mapping[str, Any], name: str) -> tuple[Source, str]:
    """Return a generated schema in the form in which it is registered, and the name of its root.

    References are replaced by what they refer to, unless that is recursive: the rules of compatibility know more about
    an object that is written in its place.
    """
    definitions = dict(schema.get("$defs", {}))
    recursive = {each for each in definitions if _reaches(each, each, definitions)}
    bare = {key: value for key, value in schema.items() if key != "$defs"}
    if _weight(bare, definitions, dict.fromkeys(recursive, 0)) > _MOST_INLINED:
        recursive = set(definitions)
    root = _inlined(bare, definitions, recursive)
    kept = {each: _inlined(definitions[each], definitions, recursive) for each in sorted(recursive)}
    if kept:
        root["$defs"] = kept
    reference = str(root.get("$ref", "")).removeprefix(_REF)
    title = name or root.get("title") or kept.get(reference, {}).get("title") or ""
    if title:
        root["title"] = title
    return Source(SchemaType.JSON, encode_json({"$schema": _DRAFT, **root})), title


def _references(schema: Any) -> list[str]:
    """Return the definitions to which a schema refers itself, as often as it does."""
    if isinstance(schema, Mapping):
        reference = schema.get("$ref")
        own = isinstance(reference, str) and reference.startswith(_REF)
        found = [str(reference).removeprefix(_REF)] if own else []
        return found + [name for each in schema.values() for name in _references(each)]
    if isinstance(schema, list | tuple):
        return [name for each in schema for name in _references(each)]
    return []


def _weight(schema: Any, definitions: Mapping[str, Any], known: dict[str, int]) -> int:
    """Return how many references are replaced, including those in what takes their place."""
    total = 0
    for name in _references(schema):
        if name not in known:
            known[name] = 1 + _weight(definitions.get(name), definitions, known)
        total += known[name]
    return total


def _reaches(start: str, target: str, definitions: Mapping[str, Any]) -> bool:
    """Whether the definition ``start`` refers to ``target``, directly or indirectly."""
    seen: set[str] = set()
    left = [start]
    while left:
        for each in _references(definitions.get(left.pop())):
            if each == target:
                return True
            if each not in seen:
                seen.add(each)
                left.append(each)
    return False


def _inlined(schema: Any, definitions: Mapping[str, Any], recursive: set[str]) -> Any:
    if isinstance(schema, list | tuple):
        return [_inlined(each, definitions, recursive) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _inlined(value, definitions, recursive) for key, value in schema.items()}
    if isinstance(schema.get("anyOf", schema.get("oneOf")), list):
        found.pop("discriminator", None)  # a note of OpenAPI, which refers to definitions by name; no keyword here
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_REF):
        target = reference.removeprefix(_REF)
        if target in definitions and target not in recursive:
            del found["$ref"]
            return {**_inlined(definitions[target], definitions, recursive), **found}
    return found


def _pydantic_text(error: Exception) -> str:
    """Return the first problem of a pydantic error, and where it is."""
    details = getattr(error, "errors", None)
    if details is None:
        return str(error)
    first = details(include_url=False, include_input=False)[0]
    place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
    return f"{first['msg']} - at `${place}`"


def _shown(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
