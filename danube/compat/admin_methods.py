"""Shared parts of the admin services: methods by name, and the mapping of their failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from danube.compat.methods import not_here, unary
from danube.compat.proto import danube_admin_pb2 as pb
from danube.compat.relay import Handler, Relay
from danube.model.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
)
from danube.wire import Context, Service

__all__ = ["failures_as_not_found", "methods", "relayed"]


def methods(
    service: str, handlers: Mapping[str, Callable[[Any, Context], Awaitable[Any]]], otherwise: str = ""
) -> Service:
    """Return the methods of a service of ``danube_admin``, by path.

    Args:
        service: its name, without the package.
        handlers: by the name of the method.
        otherwise: why all other methods are not implemented.
    """
    described = pb.DESCRIPTOR.services_by_name[service]
    found = []
    for method in described.methods:
        path, request = f"/{described.full_name}/{method.name}", getattr(pb, method.input_type.name)
        handler = handlers.get(method.name)
        found.append(unary(path, handler, request) if handler is not None else not_here(path, request, otherwise))
    return dict(found)


def relayed(service: str, handlers: Mapping[str, Handler], relay: Relay) -> dict[str, Handler]:
    """Return handlers that have calls executed by the broker that owns their topic.

    Args:
        service: its name, without the package.
        handlers: by the name of the method; they raise NotOwnerError at other brokers.
        relay: sends them there.
    """
    described = pb.DESCRIPTOR.services_by_name[service].methods_by_name
    return {
        name: relay.add(
            name, handler, getattr(pb, described[name].input_type.name), getattr(pb, described[name].output_type.name)
        )
        for name, handler in handlers.items()
    }


@contextmanager
def failures_as_not_found() -> Iterator[None]:
    """Report failures as NOT_FOUND, whatever the reason: these tools expect that from upstream.

    The message states the reason. Temporary failures and bugs of the broker keep their own status.
    """
    try:
        yield
    except (AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, LimitExceededError) as error:
        raise NotFoundError(error.message) from error
