"""The package needs no schema library until a schema of its kind is used, and then names the missing one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from danube.model.errors import InvalidSchemaError
from danube.schema import SchemaType, Source, parse

LIBRARIES = ("avro", "fastavro", "jsonschema_rs", "grpc_tools", "google.protobuf")


def test_importing_it_needs_none_of_the_libraries() -> None:
    code = "import sys; import danube.schema; print([name for name in sys.argv[1:] if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code, *LIBRARIES], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("kind", "library", "extra"),
    [(SchemaType.AVRO, "avro.name", "avro"), (SchemaType.JSON, "jsonschema_rs", "json")],
)
def test_a_missing_extra_is_named_with_its_installation(
    kind: SchemaType, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InvalidSchemaError, match=rf"pip install 'danube-broker\[{extra}\]'"):
        parse(Source(kind, '"string"'))
