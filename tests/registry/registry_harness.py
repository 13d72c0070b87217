"""The REST interface of the schema registry over a registry in memory, without sockets."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import trio

from danube.http import Request, Response
from danube.registry import RegistryFace
from danube.registry.errors import CONTENT_TYPE
from danube.registry.target import registry_target
from danube.schema.book import Book, Change, Entry, Proposal, Registered
from danube.schema.examine import Examination, Finding, examine
from danube.schema.modes import Level, Policy
from danube.wire import Service

if TYPE_CHECKING:
    from danube.broker.faces import Served


class MemoryRegistry:
    """A registry of one process, which nothing else changes; a :class:`danube.broker.faces.ServedRegistry`."""

    def __init__(self) -> None:
        self.book = Book()
        self.revision = 0

    def store(self, change: Change) -> None:
        """Apply a change, as the metadata store would."""
        self.revision += 1
        for key, value in change.puts:
            self.book.apply(key, value, self.revision)
        for key in change.deletes:
            self.book.apply(key, None, self.revision)

    async def current(self) -> Book:
        await trio.lowlevel.checkpoint()
        return self.book

    fresh = current

    async def read(self, query: Callable[[Book], Any]) -> Any:
        return query(self.book)

    async def find(self, query: Callable[[Book], Any]) -> Any:
        return query(await self.current())

    async def examine(self, examination: Examination) -> Finding:
        await trio.lowlevel.checkpoint()
        return examine(examination)

    async def check(self, proposal: Proposal, version: int | None = None, level: Level | None = None) -> Finding:
        book = self.book
        return await self.examine(
            book.examination(proposal, level) if version is None else book.examination_with(proposal, version, level)
        )

    async def lookup(self, proposal: Proposal, *, deleted: bool = False) -> Entry | None:
        self.book.versions(proposal.subject, deleted=deleted)
        finding = await self.examine(self.book.examination(proposal, Level.NONE))
        return self.book.find(proposal, finding, deleted=deleted)

    async def register(
        self,
        proposal: Proposal,
        *,
        by: str = "",
        born: Policy = Policy.LENIENT,
        description: str = "",
        tags: tuple[str, ...] = (),
        number: int | None = None,
        version: int | None = None,
    ) -> Registered:
        finding = await self.examine(self.book.examination(proposal))
        found = self.book.register(
            proposal, finding, now_ms=1, born=born, created_by=by, number=number, version=version
        )
        self.store(found.change)
        return found

    async def change_with(self, prepare: Callable[[Book], tuple[Any, Change]]) -> tuple[Any, Change]:
        await trio.lowlevel.checkpoint()
        value, change = prepare(self.book)
        self.store(change)
        return value, change


class Bytes:
    """The body of a request."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def read(self, most_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.data

    async def chunks(self, most_bytes: int | None = None) -> AsyncIterator[bytes]:
        yield await self.read(most_bytes)


class Answer(NamedTuple):
    """What came back."""

    status: int
    value: Any
    headers: dict[str, str]


class Rest:
    """A client of the interface, without a network.

    Args:
        registry: by default an empty one in memory.
    """

    def __init__(self, registry: MemoryRegistry | None = None) -> None:
        self.registry = registry or MemoryRegistry()
        config = SimpleNamespace(cluster="test", http_allowed_hosts=("registry.example.org",))
        self.broker = SimpleNamespace(
            runtime=SimpleNamespace(config=config),
            registry=self.registry,
            guarded=_unguarded,
            has_security=False,
            started=True,
        )
        self.face = RegistryFace(cast("Served", self.broker))

    async def response(
        self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Response:
        """Send a request; return the whole response."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        found = {"host": "127.0.0.1:8081"} | ({"content-type": CONTENT_TYPE} if data else {})
        request = Request(
            method, registry_target(target.encode()), {**found, **(headers or {})}, Bytes(data), peer="127.0.0.1:9"
        )
        return await self.face.http(request)

    async def send(self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a request; return the decoded answer."""
        response = await self.response(method, target, body, headers)
        assert isinstance(response.body, bytes)
        assert response.content_type == CONTENT_TYPE
        try:
            value = json.loads(response.body)
        except ValueError:
            value = response.body.decode()
        return Answer(response.status, value, dict(response.headers))


def _unguarded(service: Service) -> Service:
    return service


def avro(name: str = "Order", *fields: tuple[str, Any]) -> str:
    """Return an Avro record; a field whose type is a list has null as its default."""
    rows = [
        {"name": each, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
        for each, kind in fields or [("id", "long")]
    ]
    return json.dumps({"type": "record", "name": name, "fields": rows}, separators=(",", ":"))


def descriptor(name: str = "Order", *fields: tuple[str, int], package: str = "shop") -> str:
    """Return a protobuf file with one message of int64 fields, as a descriptor in Base64."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name="order.proto", package=package, syntax="proto3")
    message = file.message_type.add(name=name)
    for each, number in fields or [("id", 1)]:
        message.field.add(name=each, number=number, type=3, label=1)
    return base64.b64encode(file.SerializeToString()).decode()
