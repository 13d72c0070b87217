"""A gRPC server that answers immediately and stores nothing: the cost of a unary call in a stack that is mostly C.

``python -m benchmarks._echo PORT`` serves ``danube.ProducerService/SendMessage`` with grpcio's asyncio server.
"""

from __future__ import annotations

import asyncio
import sys

import grpc

from danube.compat.proto import danube_api_pb2 as pb

__all__ = ["main"]


async def _send_message(request: pb.StreamMessage, _context: object) -> pb.MessageResponse:
    return pb.MessageResponse(request_id=request.request_id)


async def _serve(port: int) -> None:
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        _send_message,
        request_deserializer=pb.StreamMessage.FromString,
        response_serializer=pb.MessageResponse.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler("danube.ProducerService", {"SendMessage": method})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    """Serve until killed."""
    asyncio.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
