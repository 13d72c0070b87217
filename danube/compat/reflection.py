"""``grpc.reflection``: describes the services of a port and their messages, for tools without our ``.proto`` files.

The versions v1 and v1alpha differ only in their name. Only the services of the port and their messages can be
requested. A failure is reported in the reply, and the stream continues. Native services are not listed, because their
messages are not protocol buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from danube.compat.proto import reflection_pb2, reflection_v1alpha_pb2
from danube.compat.service_index import ServiceIndex
from danube.model.errors import InvalidArgumentError, NotFoundError
from danube.wire import Context, Method, ServerStream, Service

__all__ = ["REFLECTION", "Reflection"]

_VERSIONS: Final = {
    "grpc.reflection.v1.ServerReflection": reflection_pb2,
    "grpc.reflection.v1alpha.ServerReflection": reflection_v1alpha_pb2,
}
REFLECTION: Final = tuple(_VERSIONS)
"""Names of the services."""


class Reflection:
    """Handlers of the services.

    Args:
        names: names of all services of the port, whose descriptor modules must have been imported.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._index = ServiceIndex(names)

    def service(self) -> Service:
        """Return the methods, by path."""
        paths = {f"/{name}/ServerReflectionInfo": pb for name, pb in _VERSIONS.items()}
        return {
            path: Method(path=path, kind="bidi", handler=partial(self._answer_all, pb), early=True)
            for path, pb in paths.items()
        }

    async def _answer_all(self, pb: Any, stream: ServerStream, _context: Context) -> None:
        while (message := await stream.receive()) is not None:
            request = stream.decode(pb.ServerReflectionRequest, message.data)
            message.release()
            response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
            try:
                self._index.answer(request, response)
            except (InvalidArgumentError, NotFoundError) as error:
                response.error_response.error_code = error.status
                response.error_response.error_message = error.message
            await stream.send(stream.encode(response))
