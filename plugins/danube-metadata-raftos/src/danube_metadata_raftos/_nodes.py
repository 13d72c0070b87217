"""raftos's nodes, in a thread with an asyncio loop of its own.

raftos 0.2.6 was written for Python 3.5: what it uses of asyncio and is gone is replaced in its modules. Its default
serializer cannot read its own log, so JSON is used. The state of its nodes is a class attribute, which is wrong as soon
as two of them are in one process: the leader is found among the nodes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from danube.model.errors import ConfigurationError

__all__ = ["COUNT", "RaftosNodes", "import_raftos"]

COUNT: Final = 3
"""How many nodes there are. With two or four, raftos counts half of them as a majority."""
_LOOK_S: Final = 0.02


class _Asyncio:
    """asyncio as raftos knows it."""

    futures = SimpleNamespace(InvalidStateError=asyncio.InvalidStateError)

    @staticmethod
    def Queue(loop: asyncio.AbstractEventLoop) -> asyncio.Queue[Any]:  # noqa: N802 - asyncio's name
        """Return a queue; the loop is the running one."""
        assert loop is asyncio.get_running_loop()
        return asyncio.Queue()

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


def import_raftos() -> Any:
    """Return raftos, made usable.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import raftos
        from raftos import serializers, server, state
    except ImportError as error:
        raise ConfigurationError(
            f"the metadata engine 'raftos' needs raftos, which is not installed ({error}): pip install --no-deps"
            " raftos==0.2.6. It is for demonstration only"
        ) from error
    server.asyncio = state.asyncio = _Asyncio()
    raftos.configure({"serializer": serializers.JSONSerializer})
    return raftos


class RaftosNodes:
    """Three nodes on loopback ports.

    Args:
        directory: for their logs; empty, because raftos cannot go on with old ones.
        heartbeat_s: seconds between a leader's heartbeats; without one, 5 to 15 times that later there is an election.
        secret: for the encryption of datagrams.
    """

    def __init__(self, directory: Path, heartbeat_s: float, secret: bytes) -> None:
        self._raftos = import_raftos()
        self._settings = {
            "log_path": f"{directory}/",
            "heartbeat_interval": heartbeat_s,
            "secret_key": secret,
            "cryptor": self._raftos.conf.default_cryptor,
        }
        self._loop = asyncio.new_event_loop()
        self._nodes: list[Any] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="raftos", daemon=True)

    def start(self) -> None:
        """Start the thread and the nodes. Blocks until their sockets are open."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    async def _open(self) -> None:
        logging.getLogger("raftos").setLevel(logging.WARNING)
        self._raftos.configure(self._settings)
        # Ports are chosen by the system: each node is opened at port 0 first, to learn a free one.
        loop = asyncio.get_running_loop()
        held = [
            (await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)))[0]
            for _ in range(COUNT)
        ]
        places = [transport.get_extra_info("sockname") for transport in held]
        for transport in held:
            transport.close()
        await asyncio.sleep(0)
        for host, port in places:
            node = self._raftos.server.Node(address=(host, port), loop=loop)
            await node.start()
            for place in places:
                if place != (host, port):
                    node.update_cluster(place)
            self._nodes.append(node)
        self._nodes[0].state.to_candidate()  # without a wait for an election timeout: there is no leader yet

    def replicate(self, value: str, done: Callable[[], None]) -> asyncio.Future[None]:
        """Let the leader write a value, as soon as there is one. ``done`` is called in the thread, when it is applied.

        Cancel what is returned to wait no longer; the leader may write the value nevertheless.
        """

        async def write() -> None:
            while True:
                for node in self._nodes:
                    if isinstance(node.state.state, self._raftos.state.Leader):
                        await node.state.state.execute_command({"change": value})
                        done()
                        return
                await asyncio.sleep(_LOOK_S)

        return asyncio.run_coroutine_threadsafe(write(), self._loop)  # type: ignore[return-value]

    def stop(self) -> None:
        """End the nodes and the thread. Blocks until they have ended."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        logging.getLogger("raftos").setLevel(logging.CRITICAL)  # it reports each socket that is closed as an error
        for node in self._nodes:
            node.stop()
            if node in type(node).nodes:
                type(node).nodes.remove(node)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
