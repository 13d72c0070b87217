"""Random pairs of Avro schemas, of which the second has grown out of the first, and random data of a schema."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "enum", "fixed")
NAMES = ("R", "S", "T", "a.R", "a.S", "b.R")


class Schemas:
    """Makes one schema; a name is defined once and may be used again."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.defined: list[str] = []
        self.open: list[str] = []

    def schema(self, depth: int = 0) -> Any:
        random = self.random
        roll = random.random()
        if depth >= 4 or roll < 0.35:
            return random.choice(PRIMITIVES)
        if roll < 0.45 and self.defined:
            return random.choice(self.defined)
        if roll < 0.55:
            return {"type": "array", "items": self.schema(depth + 1)}
        if roll < 0.62:
            return {"type": "map", "values": self.schema(depth + 1)}
        if roll < 0.78:
            return self.union(depth)
        return self.named(depth)

    def named(self, depth: int) -> Any:
        random = self.random
        free = [name for name in NAMES if name not in self.defined and name not in self.open]
        if not free:
            return "string"
        name = random.choice(free)
        kind = random.choice(("record", "record", "enum", "fixed"))
        if kind == "enum":
            self.defined.append(name)
            made: Any = {"type": "enum", "name": name, "symbols": random.sample("ABCD", random.randint(1, 4))}
            if random.random() < 0.4:
                made["default"] = random.choice(made["symbols"])
            return made
        if kind == "fixed":
            self.defined.append(name)
            return {"type": "fixed", "name": name, "size": random.randint(1, 3)}
        self.open.append(name)
        fields = []
        for field in random.sample("uvwxyz", random.randint(0, 4)):
            if random.random() < 0.15:  # recursion, always with a way out
                fields.append({"name": field, "type": ["null", random.choice(self.open)]})
            else:
                fields.append({"name": field, "type": self.schema(depth + 1)})
        self.open.remove(name)
        self.defined.append(name)
        return {"type": "record", "name": name, "fields": fields}

    def union(self, depth: int) -> Any:
        branches: dict[str, Any] = {}
        for _ in range(self.random.randint(1, 4)):
            branch = self.schema(depth + 1)
            if isinstance(branch, list):
                continue
            kind = branch if isinstance(branch, str) else branch["type"]
            # fastavro 1.13 takes an enum b.R for a record a.R that is in the same union, so one "R" in a union.
            branches.setdefault(self._simple_name(branch) or kind, branch)
        return list(branches.values()) or ["null"]

    @staticmethod
    def _simple_name(branch: Any) -> str:
        name = branch.get("name", "") if isinstance(branch, dict) else branch if branch in NAMES else ""
        return str(name).rpartition(".")[2]


def parts(schema: Any) -> list[Any]:
    """All schemas within a schema that are objects, itself first."""
    if isinstance(schema, list):
        return [part for branch in schema for part in parts(branch)]
    if not isinstance(schema, dict):
        return []
    inner = [field["type"] for field in schema.get("fields", ())]
    inner += [schema[name] for name in ("items", "values") if name in schema]
    return [schema, *(part for each in inner for part in parts(each))]


WIDER = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",), "string": ("bytes",),
         "bytes": ("string",)}  # fmt: skip


def changed(random: Random, schema: Any) -> Any:
    """What may become of a type that is no object."""
    if isinstance(schema, str) and schema in WIDER and random.random() < 0.6:
        return random.choice(WIDER[schema])
    if isinstance(schema, list):
        kinds = [branch if isinstance(branch, str) else branch["type"] for branch in schema]
        roll = random.random()
        if roll < 0.6:
            more = random.choice(PRIMITIVES)
            return [*schema, more] if more not in kinds else schema
        if roll < 0.8:
            return [branch for branch in schema if branch != random.choice(PRIMITIVES)] or schema
        return random.sample(schema, len(schema))
    if random.random() < 0.5:
        return [schema, "null"] if schema != "null" else ["null", "int"]
    return random.choice(PRIMITIVES)


DEFAULTS = {"null": None, "boolean": True, "int": 3, "long": 4, "float": 1.5, "double": 2.5, "bytes": "\u00fe",
            "string": "s"}  # fmt: skip


def evolved(random: Random, schema: Any) -> Any:
    """A schema with one to three changes, likely ones: most are compatible in one direction."""
    schema = copy.deepcopy(schema)
    for _ in range(random.randint(1, 3)):
        objects = parts(schema)
        if not objects or random.random() < 0.1:
            if not isinstance(schema, dict):
                schema = changed(random, schema)
            continue
        part = random.choice(objects)
        kind = part["type"]
        if kind == "record":
            _evolve_record(random, part)
        elif kind == "enum":
            part["symbols"] = random.sample("ABCDE", random.randint(1, 5))
            part.pop("default", None)
            if random.random() < 0.6:
                part["default"] = random.choice(part["symbols"])
        elif kind == "fixed":
            if random.random() < 0.3:
                part["size"] += 1
        else:
            inner = "items" if kind == "array" else "values"
            if not isinstance(part[inner], dict):
                part[inner] = changed(random, part[inner])
    return schema


def _evolve_record(random: Random, part: Any) -> None:
    fields = part["fields"]
    roll = random.random()
    if roll < 0.35:
        name = next(name for name in "uvwxyzabcdefghi" if name not in {field["name"] for field in fields})
        kind = random.choice(PRIMITIVES)
        field: Any = {"name": name, "type": kind}
        if random.random() < 0.8:
            field["default"] = DEFAULTS[kind]
        fields.insert(random.randint(0, len(fields)), field)
    elif roll < 0.5 and fields:
        kept = [field for field in fields if isinstance(field["type"], str | list)]
        if kept:
            fields.remove(random.choice(kept))
    elif roll < 0.6 and fields:
        field = random.choice(fields)
        field["aliases"] = [field["name"]]
        field["name"] += "2"
    elif roll < 0.7:
        random.shuffle(fields)
    elif fields:
        field = random.choice(fields)
        if not isinstance(field["type"], dict):
            field["type"] = changed(random, field["type"])


class Data:
    """Makes data of a schema that fastavro has parsed, and says which branch of a union it takes."""

    def __init__(self, random: Random, named: dict[str, Any]) -> None:
        self.random = random
        self.named = named

    def datum(self, schema: Any, depth: int = 0) -> Any:
        random = self.random
        if isinstance(schema, list):
            branches = [each for each in schema if each == "null"] if depth > 6 else schema
            branch = random.choice(branches or schema)
            value = self.datum(branch, depth + 1)
            named = self.named.get(branch, branch) if isinstance(branch, str) else branch
            if isinstance(named, dict) and named["type"] in NAMED:
                return (named["name"], value)
            return (named if isinstance(named, str) else named["type"], value)
        if isinstance(schema, str):
            if schema in self.named:
                return self.datum(self.named[schema], depth + 1)
            return self._primitive(schema)
        kind = schema["type"]
        if kind == "record":
            return {field["name"]: self.datum(field["type"], depth + 1) for field in schema["fields"]}
        if kind == "enum":
            return random.choice(schema["symbols"])
        if kind == "fixed":
            return random.randbytes(schema["size"])
        if kind == "array":
            return [self.datum(schema["items"], depth + 1) for _ in range(random.randint(0, 2))]
        if kind == "map":
            return {key: self.datum(schema["values"], depth + 1) for key in random.sample("kl", random.randint(0, 2))}
        return self._primitive(kind)

    def _primitive(self, kind: str) -> Any:
        random = self.random
        if kind == "int":
            return random.choice((0, -1, 2**31 - 1, -(2**31)))
        if kind == "long":
            return random.choice((0, 2**63 - 1, -(2**63)))
        if kind in ("float", "double"):
            return random.choice((0.0, -1.5, 2.0))
        if kind == "boolean":
            return random.random() < 0.5
        if kind == "string":
            return random.choice(("", "text", "\u00e4"))
        if kind == "bytes":
            return random.choice((b"", b"bytes"))
        return None
