"""Avro schemas: parsed by Apache's library, compared by the schema resolution rules of the specification.

The library's own comparison is not used: it reports differences as two unrelated sets of names, handles aliases only in
part, and treats a comparison in progress as successful and keeps conclusions drawn from it even if it fails later.
Where implementations resolve unions differently, every possible choice of a branch must be compatible.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from danube.model.errors import InvalidSchemaError
from danube.schema.kinds import Reason, Source, decode_json, encode_json, missing
from danube.schema.limits import SchemaLimits
from danube.schema.modes import Policy, SchemaType

__all__ = ["AvroSchema", "parse"]

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_PROMOTED: Final[Mapping[str, frozenset[str]]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "bytes": frozenset({"string"}),
    "string": frozenset({"bytes"}),
}
"""For each type of a reader, the other types of a writer that it can read (specification, "Schema Resolution")."""


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A parsed Avro schema."""

    root: Any
    """The library's ``avro.schema.Schema``."""
    canonical: str
    """JSON with sorted keys, no spaces and full names. Documentation, defaults, aliases and logical types are kept."""
    name: str

    @property
    def type(self) -> SchemaType:
        """Avro."""
        return SchemaType.AVRO

    def refuses(self, writer: AvroSchema, policy: Policy, *, is_forward: bool = False) -> list[Reason]:
        """Return the reasons why this schema cannot read data of another one. All policies are the same."""
        return list(dict.fromkeys(_Comparison().compare(self.root, writer.root, "")))


def parse(source: Source, limits: SchemaLimits) -> AvroSchema:
    """Parse a schema; the schemas that it refers to are parsed first, into the same set of names.

    Raises:
        InvalidSchemaError: the schema violates the specification, or the library is not installed.
        SchemaTooLargeError: it is nested too deeply.
    """
    try:
        from avro.name import Names
    except ImportError:
        raise missing("the library for Avro", "avro") from None
    names = Names()
    # A text that two references name is parsed once; otherwise its types would be defined twice.
    for text, name in {each.text: each.name for each in source.needs}.items():
        _parse_one(text, names, limits, f"its reference {name!r}: ")
    value, root = _parse_one(source.text, names, limits, "")
    name = str(root.fullname) if root.type in _NAMED else ""
    return AvroSchema(root, encode_json(_canonical(value, "")), name)


def _parse_one(text: str, names: Any, limits: SchemaLimits, where: str) -> tuple[Any, Any]:
    """Return a text as decoded JSON and as a schema; add its types to ``names``."""
    from avro.errors import AvroException
    from avro.schema import make_avsc_object

    value = decode_json(text, limits)
    try:
        with warnings.catch_warnings():
            # Unknown logical types are ignored (specification, "Logical Types").
            warnings.simplefilter("ignore")
            root = make_avsc_object(value, names)
        _check(root, "", set())
    except AvroException as error:
        raise InvalidSchemaError(f"the Avro schema is invalid: {where}{error}") from error
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError) as error:
        # The library raises these for some texts that are no schemas.
        raise InvalidSchemaError(f"the Avro schema is invalid: {where}{type(error).__name__}: {error}") from error
    return value, root


# ---------------------------------------------------------------------------------------------------------------------
# Checks that the library does not make


def _check(schema: Any, path: str, seen: set[int]) -> None:
    """Check for errors that the library accepts: invalid defaults, empty unions."""
    if id(schema) in seen:
        return
    seen.add(id(schema))
    kind = schema.type
    if kind in ("record", "error"):
        for field in schema.fields:
            here = f"{path}/fields/{field.name}"
            _check(field.type, here, seen)
            if field.has_default and not _is_default(field.type, field.default):
                raise InvalidSchemaError(
                    f"the Avro schema is invalid: {here}: the default {encode_json(field.default)} is not a value of"
                    f" type {_type_text(field.type)}"
                )
    elif kind == "array":
        _check(schema.items, f"{path}/items", seen)
    elif kind == "map":
        _check(schema.values, f"{path}/values", seen)
    elif kind == "union":
        if not schema.schemas:
            raise InvalidSchemaError(f"the Avro schema is invalid: {path or '/'}: a union needs at least one branch")
        for index, branch in enumerate(schema.schemas):
            _check(branch, f"{path}/{index}", seen)
    elif kind == "fixed" and isinstance(schema.size, bool):
        raise InvalidSchemaError(
            f"the Avro schema is invalid: {path or '/'}: the size of {schema.fullname} is not a number"
        )
    elif kind in ("error_union", "request"):
        raise InvalidSchemaError(f"the Avro schema is invalid: {path or '/'}: type {kind} is allowed in protocols only")


def _is_default(schema: Any, value: Any) -> bool:
    """Whether a JSON value is a valid default of a type (specification, "Complex Types", table of default values)."""
    kind = schema.type
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits
    if kind in ("float", "double"):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind == "string":
        return isinstance(value, str)
    if kind in ("bytes", "fixed"):
        if not isinstance(value, str) or any(ord(character) > 255 for character in value):
            return False
        return kind == "bytes" or len(value) == int(schema.size)
    if kind == "enum":
        return isinstance(value, str) and value in schema.symbols
    if kind == "array":
        return isinstance(value, list) and all(_is_default(schema.items, each) for each in value)
    if kind == "map":
        return isinstance(value, dict) and all(_is_default(schema.values, each) for each in value.values())
    if kind == "union":
        return any(_is_default(branch, value) for branch in schema.schemas)
    return isinstance(value, dict) and all(
        _is_default(field.type, value[field.name]) if field.name in value else field.has_default
        for field in schema.fields
    )


# ---------------------------------------------------------------------------------------------------------------------
# Canonical text


def _canonical(value: Any, namespace: str) -> Any:
    """Return the canonical form of a checked schema: full names, and no other spelling of the same schema."""
    if isinstance(value, str):
        return value if value in _PRIMITIVES or "." in value or not namespace else f"{namespace}.{value}"
    if isinstance(value, list):
        return [_canonical(branch, namespace) for branch in value]
    kind = value["type"]
    if kind in _PRIMITIVES and len(value) == 1:
        return kind
    canonical = dict(value)
    if kind in _NAMED:
        if kind == "error":
            canonical["type"] = "record"
        inside = _namespace(canonical, namespace)
        name = canonical["name"].rpartition(".")[2]
        canonical["name"] = f"{inside}.{name}" if inside else name
        canonical.pop("namespace", None)
        if namespace and not inside:
            canonical["namespace"] = ""  # otherwise the name would inherit the enclosing namespace
        if "aliases" in canonical:
            canonical["aliases"] = [_full(alias, inside) for alias in canonical["aliases"]]
        if "fields" in canonical:
            canonical["fields"] = [dict(each, type=_canonical(each["type"], inside)) for each in canonical["fields"]]
    elif kind == "array":
        canonical["items"] = _canonical(canonical["items"], namespace)
    elif kind == "map":
        canonical["values"] = _canonical(canonical["values"], namespace)
    return canonical


def _namespace(schema: Mapping[str, Any], around: str) -> str:
    name: str = schema["name"]
    if "." in name:
        return name.rpartition(".")[0]
    given = schema.get("namespace")
    return around if given is None else str(given)


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


# ---------------------------------------------------------------------------------------------------------------------
# Schema resolution


class _Comparison:
    """Compares a reader's schema with a writer's.

    In recursive schemas a pair of types may occur again; it is compared once and adds no reasons later. That is sound
    because there are no alternatives here: one incompatible pair makes the schemas incompatible.
    """

    def __init__(self) -> None:
        self._met: set[tuple[int, int]] = set()

    def compare(self, reader: Any, writer: Any, path: str) -> list[Reason]:
        """Return the reasons why the reader cannot read the writer's data, without those of pairs compared before."""
        pair = (id(reader), id(writer))
        if pair in self._met:
            return []
        self._met.add(pair)
        return self._resolve(reader, writer, path)

    def _resolve(self, reader: Any, writer: Any, path: str) -> list[Reason]:
        if writer.type == "union":
            return [reason for branch in writer.schemas for reason in self._from_branch(reader, writer, branch, path)]
        if reader.type == "union":
            return self._in_union(reader, writer, path)
        if not _match(reader, writer):
            return [_mismatch(reader, writer, path)]
        kind = reader.type
        if kind == "array":
            return self.compare(reader.items, writer.items, f"{path}/items")
        if kind == "map":
            return self.compare(reader.values, writer.values, f"{path}/values")
        if kind == "enum":
            return _symbols(reader, writer, path)
        if kind in ("record", "error"):
            return list(self._fields(reader, writer, path))
        return []

    def _from_branch(self, reader: Any, writer: Any, branch: Any, path: str) -> list[Reason]:
        if reader.type == "union":
            return self._in_union(reader, branch, path)
        found = self.compare(reader, branch, path)
        if found and not _match(reader, branch):
            text = f"{_at(path)} may be {_type_text(branch)}, which the reader's type {_type_text(reader)} cannot read"
            return [Reason("TYPE_MISMATCH", path or "/", text)]
        return found

    def _in_union(self, reader: Any, writer: Any, path: str) -> list[Reason]:
        """Compare a writer's type that is not a union with the branches of the reader's union.

        The specification selects "the first schema in the reader's union that matches". Libraries disagree on the first
        match if names differ only in their namespaces, so all matching branches must be compatible.
        """
        matching = [branch for branch in reader.schemas if _match(branch, writer)]
        if not matching:
            text = f"{_at(path)} may be {_type_text(writer)}, which the reader's union {_type_text(reader)} lacks"
            return [Reason("MISSING_UNION_BRANCH", path or "/", text)]
        return [reason for branch in matching for reason in self.compare(branch, writer, path)]

    def _fields(self, reader: Any, writer: Any, path: str) -> Iterator[Reason]:
        written = writer.fields_dict
        own = {field.name for field in reader.fields}
        taken: set[str] = set()
        for field in reader.fields:
            here = f"{path}/fields/{field.name}"
            name = field.name
            if name not in written:
                # An alias names a field of the writer unless another field has that name, or has taken it.
                aliases = field.props.get("aliases") or ()
                name = next((each for each in aliases if each in written and each not in own | taken), None)
            if name is not None:
                taken.add(name)
                yield from self.compare(field.type, written[name].type, here)
            elif not field.has_default:
                text = f"field {field.name!r} has no default, and the writer has no such field"
                yield Reason("READER_FIELD_MISSING_DEFAULT_VALUE", here, text)


def _match(reader: Any, writer: Any) -> bool:
    """Whether two types, neither of them a union, match by kind and name, regardless of their contents."""
    kind, other = reader.type, writer.type
    if kind == "error":
        kind = "record"
    if other == "error":
        other = "record"
    if kind != other:
        return other in _PROMOTED.get(kind, ())
    if kind not in _NAMED:
        return True
    if kind == "fixed" and reader.size != writer.size:
        return False
    if reader.name == writer.name:
        return True
    namespace = str(reader.fullname).rpartition(".")[0]
    return any(_full(alias, namespace) == writer.fullname for alias in reader.props.get("aliases") or ())


def _symbols(reader: Any, writer: Any, path: str) -> list[Reason]:
    lacking = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if not lacking or "default" in reader.props:
        return []
    symbols = ", ".join(repr(symbol) for symbol in lacking)
    text = f"enum {reader.fullname} lacks the writer's symbols {symbols} and has no default"
    return [Reason("MISSING_ENUM_SYMBOLS", f"{path}/symbols", text)]


def _mismatch(reader: Any, writer: Any, path: str) -> Reason:
    if reader.type == writer.type == "fixed" and reader.name == writer.name:
        text = f"fixed {reader.fullname} has {reader.size} bytes, the writer's has {writer.size}"
        return Reason("FIXED_SIZE_MISMATCH", f"{path}/size", text)
    if reader.type == writer.type:
        text = f"{_at(path)} is the {reader.type} {reader.fullname}, the writer's is {writer.fullname}"
        return Reason("NAME_MISMATCH", f"{path}/name", text)
    text = f"{_at(path)} is {_type_text(reader)}, the writer's is {_type_text(writer)}"
    return Reason("TYPE_MISMATCH", path or "/", text)


def _at(path: str) -> str:
    return path or "the schema"


def _type_text(schema: Any) -> str:
    if schema.type == "union":
        branches = [_type_text(branch) for branch in schema.schemas[:8]]
        return "[" + ", ".join(branches) + (", …]" if len(schema.schemas) > 8 else "]")
    return f"{schema.type} {schema.fullname}" if schema.type in _NAMED else str(schema.type)
