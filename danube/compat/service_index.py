"""Describes services and their messages: answers to requests of ``grpc.reflection``. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import descriptor_pool

from danube.model.errors import InvalidArgumentError, NotFoundError

__all__ = ["ServiceIndex"]


class ServiceIndex:
    """The descriptions of some services, by file, symbol and message.

    Args:
        names: names of the services, whose descriptor modules must have been imported.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)
        pool: Any = descriptor_pool.Default()
        self._files: dict[str, Any] = {}
        self._messages: set[str] = set()
        self._symbols: dict[str, Any] = {}
        for name in self._names:
            self._add(pool.FindServiceByName(name).file)

    def _add(self, file: Any) -> None:
        if file.name not in self._files:
            self._files[file.name] = file
            messages = [*file.message_types_by_name.values()]
            enums = [*file.enum_types_by_name.values()]
            for message in messages:  # it grows during the loop
                messages += message.nested_types
                enums += message.enum_types
            self._messages.update(message.full_name for message in messages)
            services = file.services_by_name.values()
            self._symbols |= dict.fromkeys(_names_in(messages, enums, services), file)
            for needed in file.dependencies:
                self._add(needed)

    def answer(self, request: Any, response: Any) -> None:
        """Answer a ``ServerReflectionRequest``, by filling in the response.

        Raises:
            NotFoundError: it asks for something that does not belong to these services.
            InvalidArgumentError: it is empty.
        """
        asked = request.WhichOneof("message_request")
        if asked == "list_services":
            for name in self._names:
                response.list_services_response.service.add(name=name)
        elif asked == "file_by_filename":
            file = self._files.get(request.file_by_filename)
            if file is None:
                raise NotFoundError(f"file {request.file_by_filename!r} does not describe a service of this port")
            self._reply_with_files(file, response)
        elif asked == "file_containing_symbol":
            symbol = request.file_containing_symbol
            file = self._symbols.get(symbol.removeprefix("."))
            if file is None:
                raise NotFoundError(f"symbol {symbol!r} does not belong to a service of this port")
            self._reply_with_files(file, response)
        elif asked == "file_containing_extension":
            wanted = request.file_containing_extension
            raise NotFoundError(f"{wanted.containing_type!r} has no extension {wanted.extension_number}: none has any")
        elif asked == "all_extension_numbers_of_type":
            name = request.all_extension_numbers_of_type
            if name.removeprefix(".") not in self._messages:
                raise NotFoundError(f"message {name!r} does not belong to a service of this port")
            response.all_extension_numbers_response.base_type_name = name
        else:
            raise InvalidArgumentError("the request is empty; set one of the fields of message_request")

    @staticmethod
    def _reply_with_files(file: Any, response: Any) -> None:
        """Reply with a file and all its dependencies, each once."""
        found: dict[str, bytes] = {}
        files = [file]
        while files:
            file = files.pop()
            if file.name not in found:
                found[file.name] = file.serialized_pb
                files += file.dependencies
        response.file_descriptor_response.file_descriptor_proto.extend(found.values())


def _names_in(messages: Iterable[Any], enums: Iterable[Any], services: Iterable[Any]) -> Iterator[str]:
    for message in messages:
        yield message.full_name
        yield from (f"{message.full_name}.{inner.name}" for inner in (*message.fields, *message.oneofs))
    for enum in enums:
        yield enum.full_name
        # An enum value is in the scope of its enum's parent, as in C++.
        outside = enum.full_name.rpartition(".")[0]
        yield from (f"{outside}.{value.name}" for value in enum.values)
    for service in services:
        yield service.full_name
        yield from (method.full_name for method in service.methods)
