"""A server with TLS over TCP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import trio

from danube.model.limits import Limits
from danube.model.tls import TlsConfig
from danube.wire import DEFAULT_CODECS, Codec, Method, Server, serve
from danube.wire.tls import ServerTls


@asynccontextmanager
async def tls_server(
    config: TlsConfig,
    methods: Mapping[str, Method],
    limits: Limits | None = None,
    timeout_s: float = 20.0,
    codecs: Mapping[str, Codec] = DEFAULT_CODECS,
) -> AsyncGenerator[tuple[Server, ServerTls, int], None]:
    """Serve methods with TLS; yield the server, its certificate and its port."""
    tls = ServerTls(config, time.time)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with trio.fail_after(timeout_s):
        async with trio.open_nursery() as nursery:

            async def run(task_status: trio.TaskStatus[Server]) -> None:
                await serve(listeners, [methods], limits, codecs=codecs, tls=tls, task_status=task_status)

            server: Server = await nursery.start(run)
            yield server, tls, listeners[0].socket.getsockname()[1]
            nursery.cancel_scope.cancel()
