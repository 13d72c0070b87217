"""JSON Schema: parses schemas with jsonschema-rs, decides compatibility, and reports the reasons.

The library decides whether one schema covers another, or reports that it does not know. In the latter case, a walk
through both schemas decides. The walk also finds the reasons for an incompatibility, however it was decided. It is
conservative: a keyword that it does not understand makes the schemas incompatible. References are never retrieved over
the network or from files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urljoin

from danube.model.errors import InvalidSchemaError
from danube.schema.kinds import Reason, Source, decode_json, encode_json, missing
from danube.schema.limits import SchemaLimits
from danube.schema.modes import Policy, SchemaType

__all__ = ["JsonSchema", "parse", "validator"]

_SCHEMAS: Final = ("additionalProperties", "propertyNames", "additionalItems", "contains", "not", "if", "then", "else",
                   "unevaluatedItems", "unevaluatedProperties", "contentSchema")  # fmt: skip
"""Keywords whose value is a schema."""
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords whose value is a list of schemas."""
_MAPS: Final = ("properties", "patternProperties", "dependentSchemas", "definitions", "$defs")
"""Keywords whose value maps names to schemas."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A parsed JSON Schema."""

    root: Any
    """The decoded text: a dict or a bool."""
    needs: Mapping[str, Any]
    """The referenced schemas, decoded, by the name of the reference."""
    canonical: str
    """JSON with sorted keys and no spaces."""
    name: str
    """The title, if the schema has one."""

    @property
    def type(self) -> SchemaType:
        """JSON Schema."""
        return SchemaType.JSON

    def refuses(self, writer: JsonSchema, policy: Policy, *, is_forward: bool = False) -> list[Reason]:
        """Return the reasons why this schema may reject values that another one allows.

        Args:
            writer: The other schema.
            policy: The rules of the comparison.
            is_forward: Whether the writer's schema is the newer one. The policy UPSTREAM is then less strict.
        """
        if policy is Policy.UPSTREAM:
            return list(_upstream(self.root, writer.root, is_forward=is_forward))
        ours, theirs = self.root, writer.root
        if policy is Policy.LENIENT:
            ours, theirs = _open(ours), _close(theirs, _combined(theirs))
        if encode_json(ours) == encode_json(theirs) and self.needs == writer.needs:
            return []
        covers = _covers(ours, self.needs, theirs, writer.needs)
        if covers == "yes":
            return []
        refuted: set[tuple[str, str]] = set()
        while True:
            walk = _Walk((ours, self.needs), (theirs, writer.needs), refuted)
            found = [reason for reason in dict.fromkeys(walk.compare(ours, theirs, "#")) if reason is not _RECURSION]
            if not walk.is_unsound:
                break
        if covers == "no" and not found:
            text = "the writer's schema allows values that the reader's does not"
            found = [Reason("COMBINED_TYPE_SUBSCHEMAS_CHANGED", "#", text)]
        return found


def parse(source: Source, limits: SchemaLimits) -> JsonSchema:
    """Parse a schema of drafts 4 to 2020-12; the default is 2020-12.

    Raises:
        InvalidSchemaError: the schema violates its draft, a reference has no target, or the library is not installed.
        SchemaTooLargeError: it is nested too deeply.
    """
    try:
        import jsonschema_rs
    except ImportError:
        raise missing("the library for JSON Schema", "json") from None
    needs = {each.name: decode_json(each.text, limits) for each in source.needs}
    root = decode_json(source.text, limits)
    if not isinstance(root, dict | bool):
        raise InvalidSchemaError(f"the JSON Schema is invalid: it must be an object or a boolean, not {root!r:.40}")
    try:
        for each in (*needs.values(), root):
            jsonschema_rs.validator_for(each, registry=_registry(each, needs), offline=True)
    except (ValueError, jsonschema_rs.ReferencingError, RecursionError) as error:
        raise InvalidSchemaError(f"the JSON Schema is invalid: {_first_line(error)}") from error
    title = root.get("title") if isinstance(root, dict) else None
    return JsonSchema(root, needs, encode_json(root), title if isinstance(title, str) else "")


def validator(schema: JsonSchema) -> Any:
    """Return the library's validator of values for a parsed schema. It retrieves nothing."""
    import jsonschema_rs

    return jsonschema_rs.validator_for(schema.root, registry=_registry(schema.root, schema.needs), offline=True)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _registry(root: Any, needs: Mapping[str, Any]) -> Any:
    import jsonschema_rs

    base = root.get("$id", root.get("id", "")) if isinstance(root, dict) else ""
    resources = list(needs.items())
    if isinstance(base, str) and base:
        # A relative name is resolved against the schema that refers to it.
        resources += [(urljoin(base, name), value) for name, value in needs.items() if urljoin(base, name) != name]
    return jsonschema_rs.Registry(resources)


def _covers(reader: Any, reader_needs: Mapping[str, Any], writer: Any, writer_needs: Mapping[str, Any]) -> str:
    """Return whether the reader's schema allows all values that the writer's allows: ``yes``, ``no`` or ``unknown``."""
    import jsonschema_rs

    try:
        ours, theirs = (
            jsonschema_rs.canonicalize(root, registry=_registry(root, needs), offline=True)
            for root, needs in ((reader, reader_needs), (writer, writer_needs))
        )
        return str(ours.covers(theirs))
    except (ValueError, jsonschema_rs.ReferencingError):
        return "unknown"  # the drafts differ, or a schema has no canonical form


# ---------------------------------------------------------------------------------------------------------------------
# Policy UPSTREAM


def _upstream(reader: Any, writer: Any, *, is_forward: bool) -> Iterator[Reason]:
    """Compare by upstream's rules: required properties and types at the top level."""
    reader, writer = (root if isinstance(root, dict) else {} for root in (reader, writer))
    ours, theirs = _part(reader, "properties"), _part(writer, "properties")
    needed = _required(writer)
    for name in needed:
        if name not in ours:
            text = f"the writer's schema requires the property {name!r}, which the reader's does not have"
            yield Reason("REQUIRED_PROPERTY_REMOVED", f"#/properties/{name}", text)
    for name in _required(reader) if not is_forward else ():
        if name in theirs and name not in needed:
            text = f"the property {name!r} is optional in the writer's schema and required in the reader's"
            yield Reason("REQUIRED_ATTRIBUTE_ADDED", f"#/required/{name}", text)
    pairs = [("#", reader, writer)]
    pairs += [(f"#/properties/{name}", ours[name], theirs[name]) for name in ours if name in theirs]
    for path, one, other in pairs:
        kinds = [each["type"] for each in (one, other) if isinstance(each, dict) and "type" in each]
        if len(kinds) == 2 and encode_json(kinds[0]) != encode_json(kinds[1]):
            text = f"{path} is {_words(kinds[0])}, the writer's is {_words(kinds[1])}"
            yield Reason("TYPE_CHANGED", f"{path}/type", text)


def _part(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    found = schema.get(keyword)
    return found if isinstance(found, dict) else {}


def _required(schema: Mapping[str, Any]) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


# ---------------------------------------------------------------------------------------------------------------------
# Policy LENIENT: rewrites the schemas so that the strict comparison gives the lenient result


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, str | int | None, Any]]:
    """Yield the immediate subschemas as (keyword, name or index within it, schema)."""
    for keyword, value in schema.items():
        if keyword in _SCHEMAS or (keyword == "items" and not isinstance(value, list)):
            yield keyword, None, value
        elif keyword in _LISTS or keyword == "items":
            for index, each in enumerate(value if isinstance(value, list) else ()):
                yield keyword, index, each
        elif keyword in _MAPS or keyword == "dependencies":
            for name, each in value.items() if isinstance(value, dict) else ():
                if isinstance(each, dict | bool):
                    yield keyword, name, each


def _with_inner(schema: Mapping[str, Any], changed: Mapping[tuple[str, str | int | None], Any]) -> dict[str, Any]:
    made = dict(schema)
    for (keyword, place), each in changed.items():
        if place is None:
            made[keyword] = each
        else:
            if made[keyword] is schema[keyword]:
                made[keyword] = schema[keyword].copy()
            made[keyword][place] = each
    return made


_UNCHANGED: Final = frozenset({"not", "if", "then", "else", "contains"})
"""Keywords whose subschemas are left unchanged: relaxing them may restrict the whole schema."""


def _open(schema: Any) -> Any:
    """Return a reader's schema relaxed: it ignores unlisted properties, and does not require those with a default."""
    if not isinstance(schema, dict):
        return schema
    changed = {(keyword, place): _open(each) for keyword, place, each in _inner(schema) if keyword not in _UNCHANGED}
    made = _with_inner(schema, changed)
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if isinstance(made.get(keyword), bool):
            del made[keyword]
    properties = _part(schema, "properties")
    if isinstance(made.get("required"), list):
        made["required"] = [
            name
            for name in made["required"]
            if not (isinstance(properties.get(name), dict) and "default" in properties[name])
        ]
        if not made["required"]:
            del made["required"]  # draft 4 does not allow an empty list
    return made


_IN_PLACE: Final = frozenset({
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies",
    "$ref", "$dynamicRef", "$recursiveRef",
})  # fmt: skip
"""Keywords that apply other schemas to the same value."""


def _combined(root: Any) -> frozenset[str]:
    """Return the references that apply to a value together with other schemas. Their targets must not be closed."""
    found: set[str] = set()

    def visit(schema: Any, is_shared: bool) -> None:
        if not isinstance(schema, dict):
            return
        beside = any(keyword in schema for keyword in ("properties", "required", "additionalProperties"))
        reference = schema.get("$ref")
        if isinstance(reference, str) and (is_shared or beside or len(_IN_PLACE & schema.keys()) > 1):
            found.add(reference)
        for keyword, _, each in _inner(schema):
            is_alternative = keyword in ("anyOf", "oneOf")
            visit(each, keyword in _IN_PLACE and (not is_alternative or is_shared or not _is_plain_choice(schema)))

    visit(root, False)
    return frozenset(found)


def _is_plain_choice(schema: Mapping[str, Any]) -> bool:
    """Whether a schema is only a choice among alternatives, without other constraints on the value."""
    present = (_IN_PLACE & schema.keys()) | (schema.keys() & {"properties", "required", "patternProperties",
                                                           "additionalProperties"})  # fmt: skip
    return present in ({"anyOf"}, {"oneOf"})


def _close(schema: Any, combined: frozenset[str], path: str = "#", *, is_shared: bool = False) -> Any:
    """Return a writer's schema closed: it allows only the listed properties.

    An object is left open where other schemas apply to the same value, because they may list further properties.
    """
    if not isinstance(schema, dict):
        return schema
    is_shared = is_shared or path in combined
    is_choice = _is_plain_choice(schema)
    changed: dict[tuple[str, str | int | None], Any] = {}
    for keyword, place, each in _inner(schema):
        if keyword in _UNCHANGED:
            continue
        here = f"{path}/{keyword}" if place is None else f"{path}/{keyword}/{place}"
        inside = keyword in _IN_PLACE and (is_shared or not (is_choice and keyword in ("anyOf", "oneOf")))
        changed[keyword, place] = _close(each, combined, here, is_shared=inside)
    made = _with_inner(schema, changed)
    says_more = {"additionalProperties", "unevaluatedProperties", "patternProperties"} | _IN_PLACE
    if not is_shared and isinstance(schema.get("properties"), dict) and not says_more & schema.keys():
        made["additionalProperties"] = False
    return made


# ---------------------------------------------------------------------------------------------------------------------
# Policy STRICT: the walk through both schemas

_TYPES: Final = ("null", "boolean", "object", "array", "number", "string")
_ANNOTATIONS: Final = frozenset({
    "title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "$id", "id",
    "$schema", "$anchor", "$vocabulary", "definitions", "$defs", "contentEncoding", "contentMediaType", "contentSchema",
})  # fmt: skip
_LOWER: Final = {"minimum": "MINIMUM", "minLength": "MIN_LENGTH", "minItems": "MIN_ITEMS",
                 "minProperties": "MIN_PROPERTIES"}  # fmt: skip
"""Lower bounds: the reader's value may be less than the writer's."""
_UPPER: Final = {"maximum": "MAXIMUM", "maxLength": "MAX_LENGTH", "maxItems": "MAX_ITEMS",
                 "maxProperties": "MAX_PROPERTIES"}  # fmt: skip
"""Upper bounds: the reader's value may be greater than the writer's."""
_KEYWORDS_BY_TYPE: Final = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("minItems", "maxItems", "uniqueItems", "items", "prefixItems", "additionalItems", "contains",
              "minContains", "maxContains", "unevaluatedItems"),
    "object": ("minProperties", "maxProperties", "required", "properties", "patternProperties", "additionalProperties",
               "propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
}  # fmt: skip
"""Keywords by the type of values that they constrain."""
_MOST_PAIRS: Final = 20_000
"""Maximum number of pairs of schemas that one walk compares."""


_RECURSION: Final = Reason("RECURSION", "#", "the schema is recursive, and not compatible within the recursion")

_ENDLESS: Final = Reason("RECURSION", "#", "the schema refers to itself without a step into the value")


def _constraint_key(schema: dict[str, Any]) -> str:
    """Return the constraints of a schema, without annotations, as a dictionary key."""
    return encode_json({keyword: value for keyword, value in schema.items() if keyword not in _ANNOTATIONS})


def _fewest(found: list[list[Reason]]) -> list[Reason]:
    return min(found, key=lambda reasons: len(reasons))


class _Walk:
    """Proves that a reader's schema allows all values that a writer's allows, or collects reasons why not.

    A pair that occurs again while it is being compared is assumed to be compatible, unless an earlier walk has refuted
    it. This is sound because such a recursion goes at least one level deeper into the value; one that does not, like
    that of a definition that refers to itself in ``allOf``, proves nothing. If the walk refutes a pair after it has
    relied on it (:attr:`is_unsound`), its other results are invalid, and the caller starts another walk that knows
    the refuted pair. Each simplification drops a constraint of the *writer's* schema, never one of the reader's.
    """

    def __init__(
        self,
        reader: tuple[Any, Mapping[str, Any]],
        writer: tuple[Any, Mapping[str, Any]],
        refuted: set[tuple[str, str]],
    ) -> None:
        self._documents = (reader, writer)
        self._refuted = refuted
        self._known: dict[tuple[str, str], list[Reason]] = {}
        self._open: dict[tuple[str, str], int] = {}
        """Pairs that are being compared, with the level of the value at which that began."""
        self._level = 0
        self._relied_on: set[tuple[str, str]] = set()
        self.is_unsound = False
        self._pairs = 0
        self._nested_ids = tuple(_has_nested_id(root) for root, _ in self._documents)

    def compare(self, reader: Any, writer: Any, path: str) -> list[Reason]:
        """Return the reasons why the reader's schema rejects values that the writer's allows; empty if none."""
        if reader is True or writer is False or reader == {}:
            return []
        if isinstance(writer, bool):
            writer = {}
        if reader is False:
            return [Reason("PROPERTY_FORBIDDEN", path, f"{path} may be present, and the reader's schema forbids it")]
        self._pairs += 1
        if self._pairs > _MOST_PAIRS:
            return [
                Reason(
                    "SCHEMA_TOO_COMPLEX",
                    path,
                    "the schemas are too complex to compare",
                )
            ]
        return self._resolved(reader, writer, path)

    def _resolved(self, reader: Any, writer: Any, path: str) -> list[Reason]:
        if "$ref" not in reader and "$ref" not in writer:
            return self._compare(reader, writer, path)
        # Through a reference the same pair may recur endlessly.
        pair = (_constraint_key(reader), _constraint_key(writer))
        known = self._known.get(pair)
        if known is not None:
            return known
        if pair in self._open:
            if self._open[pair] == self._level:
                return [_ENDLESS]
            if pair in self._refuted:
                return [_RECURSION]
            self._relied_on.add(pair)
            return []
        self._open[pair] = self._level
        found = self._known[pair] = self._followed(reader, writer, path)
        del self._open[pair]
        if found and pair not in self._refuted:
            self._refuted.add(pair)
            self.is_unsound = self.is_unsound or pair in self._relied_on
        return found

    def _followed(self, reader: Any, writer: Any, path: str) -> list[Reason]:
        sides: list[list[Any]] = []
        for side, schema in enumerate((reader, writer)):
            parts = self._follow(side, schema)
            if parts is None:
                text = f"{path}: the target of the reference {schema['$ref']!r} is unknown"
                return [Reason("REFERENCE_UNKNOWN", path, text)]
            sides.append(parts)
        ours, theirs = sides
        # One of the writer's constraints may be sufficient by itself.
        return [reason for one in ours for reason in _fewest([self.compare(one, other, path) for other in theirs])]

    def _follow(self, side: int, schema: Any) -> list[Any] | None:
        """Return the schemas that a schema with a reference combines; None if the target is unknown."""
        root, needs = self._documents[side]
        parts: list[Any] = []
        for _ in range(100):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return [*parts, schema]
            rest = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
            if rest.keys() - _ANNOTATIONS and not _ignores_siblings(root):
                parts.append(rest)
            name, _, fragment = str(schema["$ref"]).partition("#")
            if (name and name not in needs) or self._nested_ids[side] or "$dynamicRef" in schema:
                return None
            if name and _has_reference(needs[name]):
                return None  # it would be resolved against that document
            schema = needs[name] if name else root
            for step in unquote(fragment).split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                try:
                    schema = schema[int(step)] if isinstance(schema, list) else schema[step]
                except (KeyError, IndexError, TypeError, ValueError):
                    return None
            if fragment and not fragment.startswith("/"):
                return None
        return None  # a cycle of references

    def _compare(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[Reason]:
        """Compare two schemas that are objects without references at the top level."""
        choice = next((keyword for keyword in ("anyOf", "oneOf") if keyword in writer), None)
        whole = list(self._conjuncts(reader, writer, path))
        if not whole or (choice is None and "allOf" not in writer and not isinstance(writer.get("type"), list)):
            return whole
        # One of the schemas that the writer's combines may be sufficient by itself.
        for each in writer.get("allOf", ()):
            whole = _fewest([whole, self.compare(reader, each, path)])
            if not whole:
                return []
        if choice is not None:
            rest = {keyword: value for keyword, value in writer.items() if keyword != choice}
            split = [self._compare_both(reader, each, rest, path) for each in writer[choice]]
            found = [reason for reasons in split for reason in reasons]
            return found if not found or len(found) < len(whole) else whole
        if isinstance(writer.get("type"), list) and len(writer["type"]) > 1:
            split = [self.compare(reader, writer | {"type": each}, path) for each in writer["type"]]
            found = [reason for reasons in split for reason in reasons]
            return found if not found else whole
        return whole

    def _compare_both(self, reader: Any, one: Any, other: Any, path: str) -> list[Reason]:
        """Compare with values that satisfy two schemas of the writer; either may be sufficient."""
        found = self.compare(reader, one, path)
        return found if not found else _fewest([found, self.compare(reader, other, path)])

    def _conjuncts(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[Reason]:
        """Compare each keyword of the reader's schema; all must be satisfied."""
        types = _types(writer)
        if "type" in reader:
            yield from _compare_types(reader, types, path)
        finite = _finite(writer)
        for keyword in ("enum", "const"):
            if keyword in reader:
                allowed = reader["enum"] if keyword == "enum" else [reader["const"]]
                yield from _compare_enums(keyword, allowed, finite, path)
        if finite is not None:
            types = {_type_of(value) for value in finite}
        for kind, keywords in _KEYWORDS_BY_TYPE.items():
            relevant = [keyword for keyword in keywords if keyword in reader]
            if relevant and (kind in types or (kind == "number" and "integer" in types)):
                yield from self._constraints(kind, reader, writer, types, path)
        for each in reader.get("allOf", ()):
            yield from self.compare(each, writer, path)
        if "anyOf" in reader and all(self.compare(each, writer, path) for each in reader["anyOf"]):
            text = f"{path} may have values that none of the reader's alternatives allows"
            yield Reason("SUM_TYPE_NARROWED", f"{path}/anyOf", text)
        if "oneOf" in reader and not self._is_one_of(reader["oneOf"], writer, path):
            text = f"{path} may have values that none, or more than one, of the reader's alternatives allows"
            yield Reason("SUM_TYPE_NARROWED", f"{path}/oneOf", text)
        for keyword in ("not", "if", "$dynamicRef", "$recursiveRef"):
            together = ("if", "then", "else") if keyword == "if" else (keyword,)
            if keyword in reader and not _is_same(reader, writer, together):
                yield Reason(
                    "KEYWORD_CHANGED", f"{path}/{keyword}", f"{path}: {keyword!r} differs from the writer's schema"
                )

    def _is_one_of(self, branches: list[Any], writer: dict[str, Any], path: str) -> bool:
        if _is_same({"oneOf": branches}, writer, ("oneOf",)):
            return True
        for index, branch in enumerate(branches):
            if not self.compare(branch, writer, path):
                ours = _types(writer)
                others = [_types(each) for place, each in enumerate(branches) if place != index]
                if not any(_overlap(ours, each) for each in others):
                    return True
        return False

    def _constraints(
        self, kind: str, reader: dict[str, Any], writer: dict[str, Any], types: set[str], path: str
    ) -> Iterator[Reason]:
        yield from _bounds(kind, reader, writer, path)
        if kind == "number":
            yield from _numbers(reader, writer, types, path)
        elif kind == "string":
            for keyword in ("pattern", "format"):
                if keyword in reader and not _is_same(reader, writer, (keyword,)):
                    changed = "CHANGED" if keyword in writer else "ADDED"
                    text = f"{path}: {keyword} {reader[keyword]!r} is required by the reader's schema only"
                    yield Reason(f"{keyword.upper()}_{changed}", f"{path}/{keyword}", text)
        else:
            self._level += 1
            yield from (self._arrays if kind == "array" else self._objects)(reader, writer, path)
            self._level -= 1

    def _arrays(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[Reason]:
        if reader.get("uniqueItems") is True and writer.get("uniqueItems") is not True:
            text = f"{path}: items may be repeated, and the reader's schema forbids it"
            yield Reason("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", text)
        ours, ours_rest = _items(reader)
        theirs, theirs_rest = _items(writer)
        longest = writer.get("maxItems")
        for index in range(max(len(ours), len(theirs))):
            if isinstance(longest, int) and index >= longest:
                break
            one = ours[index] if index < len(ours) else ours_rest
            other = theirs[index] if index < len(theirs) else theirs_rest
            yield from self.compare(one, other, f"{path}/items/{index}")
        yield from self.compare(ours_rest, theirs_rest, f"{path}/items")
        if "contains" in reader and not _is_same(reader, writer, ("contains", "minContains", "maxContains")):
            yield Reason("KEYWORD_CHANGED", f"{path}/contains", f"{path}: 'contains' differs from the writer's schema")
        if reader.get("unevaluatedItems", True) is not True:
            text = f"{path}: the effect of 'unevaluatedItems' cannot be compared"
            yield Reason("KEYWORD_CHANGED", f"{path}/unevaluatedItems", text)

    def _objects(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[Reason]:
        for name in _required(reader):
            if name not in _required(writer):
                text = f"{path}: the property {name!r} is required by the reader's schema and optional in the writer's"
                yield Reason("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name}", text)
        ours, theirs = _part(reader, "properties"), _part(writer, "properties")
        patterns, their_patterns = _part(reader, "patternProperties"), _part(writer, "patternProperties")
        rest, their_rest = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
        # Unlisted properties of the writer: its patterns may allow more than additionalProperties.
        unlisted = their_rest if not their_patterns else True
        for name, schema in ours.items():
            here = f"{path}/properties/{name}"
            if name in theirs:
                yield from self.compare(schema, theirs[name], here)
            elif self.compare(schema, unlisted, here):
                text = (
                    f"{path}: the property {name!r} is new in the reader's schema, and the writer's schema is open:"
                    " it may have any value"
                )
                yield Reason("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", here, text)
        for pattern, schema in patterns.items():
            here = f"{path}/patternProperties/{pattern}"
            if pattern not in their_patterns:
                yield Reason(
                    "PATTERN_PROPERTY_ADDED", here, f"{path}: pattern {pattern!r} is in the reader's schema only"
                )
            else:
                yield from self.compare(schema, their_patterns[pattern], here)
        if rest is not True:
            for name, schema in theirs.items():
                if name not in ours and self.compare(rest, schema, f"{path}/properties/{name}"):
                    text = f"{path}: the property {name!r} is not listed by the reader's schema, which is closed"
                    yield Reason("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", f"{path}/properties/{name}", text)
            for pattern, schema in their_patterns.items():
                if pattern not in patterns and self.compare(rest, schema, f"{path}/patternProperties/{pattern}"):
                    text = f"{path}: names like {pattern!r} are not listed by the reader's schema, which is closed"
                    yield Reason("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", f"{path}/patternProperties", text)
            if self.compare(rest, their_rest, f"{path}/additionalProperties"):
                text = f"{path}: the writer's schema is open, the reader's is closed or narrower"
                yield Reason("ADDITIONAL_PROPERTIES_REMOVED", f"{path}/additionalProperties", text)
        if "propertyNames" in reader:
            yield from self.compare(reader["propertyNames"], writer.get("propertyNames", True), f"{path}/propertyNames")
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            if keyword in reader and not _is_same(reader, writer, (keyword,)):
                text = f"{path}: {keyword!r} differs from the writer's schema"
                yield Reason("DEPENDENCY_ARRAY_CHANGED", f"{path}/{keyword}", text)
        if reader.get("unevaluatedProperties", True) is not True:
            text = f"{path}: the effect of 'unevaluatedProperties' cannot be compared"
            yield Reason("KEYWORD_CHANGED", f"{path}/unevaluatedProperties", text)


def _words(value: Any) -> str:
    return " or ".join(str(each) for each in value) if isinstance(value, list) else str(value)


def _types(schema: Any) -> set[str]:
    """Return a superset of the types of a schema's values; "number" includes integers."""
    if schema is False:
        return set()
    declared = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {str(each) for each in declared}
    finite = _finite(schema) if isinstance(schema, dict) else None
    return set(_TYPES) if finite is None else {_type_of(value) for value in finite}


def _overlap(one: set[str], other: set[str]) -> bool:
    if one & other:
        return True
    return any({"number", "integer"} <= {first, second} for first in one for second in other)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def _finite(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists (``const`` or ``enum``), else None."""
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def _compare_types(reader: dict[str, Any], types: set[str], path: str) -> Iterator[Reason]:
    allowed = _types({"type": reader["type"]})
    lacking = [
        each for each in sorted(types) if each not in allowed and not (each == "integer" and "number" in allowed)
    ]
    if lacking:
        kind = "TYPE_NARROWED" if types & allowed else "TYPE_CHANGED"
        theirs = "anything" if len(types) == len(_TYPES) else _words(sorted(types))
        yield Reason(kind, f"{path}/type", f"{path} is {_words(reader['type'])}, the writer's is {theirs}")


def _compare_enums(keyword: str, allowed: list[Any], finite: list[Any] | None, path: str) -> Iterator[Reason]:
    here = f"{path}/{keyword}"
    if finite is None:
        yield Reason("ENUM_ARRAY_ADDED", here, f"{path} is one of a list of values in the reader's schema only")
        return
    known = {encode_json(value) for value in allowed}
    lacking = [text for text in map(encode_json, finite) if text not in known]
    if lacking:
        text = f"{path} may be {', '.join(lacking[:5])}, which the reader's schema does not list"
        yield Reason("ENUM_ARRAY_NARROWED", here, text)


def _bounds(kind: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[Reason]:
    for keyword in _KEYWORDS_BY_TYPE[kind]:
        is_lower = keyword in _LOWER
        if keyword not in reader or not (is_lower or keyword in _UPPER):
            continue
        name = _LOWER[keyword] if is_lower else _UPPER[keyword]
        bound, other = reader[keyword], writer.get(keyword)
        here = f"{path}/{keyword}"
        if other is None and not (is_lower and bound == 0 and kind != "number"):
            yield Reason(f"{name}_ADDED", here, f"{path}: {keyword} {bound} is required by the reader's schema only")
        elif other is not None and (other < bound if is_lower else other > bound):
            change = "INCREASED" if is_lower else "DECREASED"
            text = f"{path}: {keyword} is {bound} in the reader's schema and {other} in the writer's"
            yield Reason(f"{name}_{change}", here, text)


def _numbers(reader: dict[str, Any], writer: dict[str, Any], types: set[str], path: str) -> Iterator[Reason]:
    for keyword, is_lower in (("exclusiveMinimum", True), ("exclusiveMaximum", False)):
        if keyword not in reader or reader[keyword] is False:
            continue
        bound, other = reader[keyword], writer.get(keyword)
        is_fine = _is_same(reader, writer, (keyword,))
        if not is_fine and all(isinstance(each, int | float) and not isinstance(each, bool) for each in (bound, other)):
            is_fine = other >= bound if is_lower else other <= bound
        if not is_fine:
            name = "EXCLUSIVE_MINIMUM" if is_lower else "EXCLUSIVE_MAXIMUM"
            change = "ADDED" if keyword not in writer else "INCREASED" if is_lower else "DECREASED"
            text = f"{path}: {keyword} {bound} is stricter than the writer's schema"
            yield Reason(f"{name}_{change}", f"{path}/{keyword}", text)
    factor, other = reader.get("multipleOf"), writer.get("multipleOf")
    if factor is None or (factor == 1 and "number" not in types):
        return
    are_whole = isinstance(factor, int) and isinstance(other, int)
    if not _is_same(reader, writer, ("multipleOf",)) and not (are_whole and other % factor == 0):
        change = "ADDED" if other is None else "CHANGED"
        text = f"{path}: multipleOf {factor} is stricter than the writer's schema"
        yield Reason(f"MULTIPLE_OF_{change}", f"{path}/multipleOf", text)


def _items(schema: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return the schemas of the first items, and the schema of the others."""
    items = schema.get("items", True)
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    if "prefixItems" in schema:
        return schema["prefixItems"], items
    return [], items


def _is_same(reader: Mapping[str, Any], writer: Mapping[str, Any], keywords: tuple[str, ...]) -> bool:
    """Whether keywords have equal values in both schemas. References may differ in meaning: then False."""
    ours, theirs = ({each: schema[each] for each in keywords if each in schema} for schema in (reader, writer))
    return encode_json(ours) == encode_json(theirs) and not _has_reference(ours)


def _has_reference(value: Any) -> bool:
    if isinstance(value, list):
        return any(_has_reference(each) for each in value)
    if not isinstance(value, dict):
        return False
    if any(keyword in value for keyword in ("$ref", "$dynamicRef", "$recursiveRef")):
        return True
    return any(_has_reference(each) for each in value.values())


def _has_nested_id(root: Any, *, is_top: bool = True) -> bool:
    """Whether a nested schema has its own identifier, against which its references are resolved."""
    if not isinstance(root, dict):
        return False
    if not is_top and any(isinstance(root.get(keyword), str) for keyword in ("$id", "id")):
        return True
    return any(_has_nested_id(each, is_top=False) for _, _, each in _inner(root))


def _ignores_siblings(root: Any) -> bool:
    """Whether keywords beside a reference are ignored, as in drafts up to 7."""
    dialect = str(root.get("$schema", "")) if isinstance(root, dict) else ""
    return any(f"draft-0{draft}" in dialect for draft in (3, 4, 6, 7))
