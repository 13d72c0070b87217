"""Compiles .proto files with Google's compiler, which is a library here: in the checker's process it may crash."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from danube.model.errors import InvalidSchemaError
from danube.schema.kinds import Needed, missing

__all__ = ["compile_proto"]

_FILE: Final = "schema.proto"
_ERRORS: Final = 5
"""Most lines of the compiler that an error has."""
_STDERR: Final = 2
_NOTE: Final = re.compile(r"warning|^WARNING: |^[IW]\d{4} ")
"""What is in lines that do not say why a file does not compile: warnings, and what the compiler logs for itself."""


def compile_proto(text: str, needs: tuple[Needed, ...]) -> bytes:
    """Compile a .proto file; return it and its imports as a ``FileDescriptorSet``, with the file itself last.

    Args:
        text: of the file.
        needs: files that it imports, by the paths that it imports them by.

    Raises:
        InvalidSchemaError: it does not compile; the message has what the compiler says. Or the compiler is missing.
    """
    try:
        from grpc_tools import protoc
    except ImportError:
        raise missing("a compiler for .proto files", "protobuf") from None
    from danube.schema.protobuf import proto_text_of

    with tempfile.TemporaryDirectory(prefix="danube-schema-") as directory:
        root = Path(directory)
        for each in needs:
            _write(root, each.name, proto_text_of(each.text))
        (root / _FILE).write_text(text, "utf-8")
        output = root / "descriptors"
        include = Path(protoc.__file__).parent / "_proto"
        with tempfile.TemporaryFile() as errors:
            with _stderr_in(errors):
                code = protoc.main(
                    ["protoc", f"-I{root}", f"-I{include}", "--include_imports", f"-o{output}", str(root / _FILE)]
                )
            if code:
                errors.seek(0)
                lines = errors.read().decode("utf-8", "replace").replace(f"{root}{os.sep}", "").splitlines()
                said = [line for line in lines if not _NOTE.search(line)] or ["it does not say why"]
                raise InvalidSchemaError(f"the .proto file does not compile: {'; '.join(said[:_ERRORS])}")
        return output.read_bytes()


def _write(root: Path, name: str, text: str) -> None:
    """Write an imported file below a directory."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or name == _FILE or not path.parts:
        raise InvalidSchemaError(f"a reference of a .proto file has the path of its import as its name, not {name!r}")
    target = root / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    except OSError as error:
        raise InvalidSchemaError(f"reference {name!r} cannot be the path of an import: {error.strerror}") from error


@contextmanager
def _stderr_in(file: IO[bytes]) -> Iterator[None]:
    """Collect what native code writes to standard error."""
    kept = os.dup(_STDERR)
    try:
        os.dup2(file.fileno(), _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
