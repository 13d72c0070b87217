"""The generated modules equal the compiler's output for the .proto files."""

import subprocess
import sys
from pathlib import Path

import pytest

import danube.compat.proto

PROTO = Path(danube.compat.proto.__file__).parent
SOURCES = sorted(path.name for path in PROTO.glob("*.proto"))


def test_compiling_again_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed; it is in the dependency group 'test'")
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *outputs, *SOURCES], check=True)
    for path in sorted(tmp_path.iterdir()):
        assert path.read_text() == (PROTO / path.name).read_text(), f"{path.name} is out of date"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in PROTO.glob("*_pb2*")}
