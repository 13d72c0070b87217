"""Compiles .proto files for tests, in this process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from grpc_tools import protoc

from danube.model.errors import InvalidSchemaError
from danube.schema import Needed, Parsed, SchemaType, Source, parse

HEAD = 'syntax = "proto3";\npackage shop;\n'


def compile_proto(text: str, needs: tuple[Needed, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for each in needs:
            (root / each.name).parent.mkdir(parents=True, exist_ok=True)
            (root / each.name).write_text(each.text)
        (root / "schema.proto").write_text(text)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            include = Path(protoc.__file__).parent / "_proto"
            code = protoc.main(
                ["protoc", f"-I{place}", f"-I{include}", "--include_imports", f"-o{root / 'out'}", "schema.proto"]
            )
        if code:
            raise InvalidSchemaError("the .proto file does not compile")
        return (root / "out").read_bytes()


def proto(text: str, *, message: str = "", head: str = HEAD, **needs: str) -> Parsed:
    """A protobuf schema of a text; names of needs have ``_`` for ``.``."""
    needed = tuple(Needed(name.replace("_", "."), each) for name, each in needs.items())
    return parse(Source(SchemaType.PROTOBUF, head + text, needed, message), compile_proto=compile_proto)
