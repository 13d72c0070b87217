"""Odd messages to a storage server: success, or an error of the tree; memory is freed, and the server continues."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import strategies as st
from msgspec import inspect
from odd_messages import OddMessages, acceptable, drawn
from storage_server_harness import Serving, serving, until

from danube.model import storage_api as api
from danube.model.errors import DanubeError
from danube.storage import StorageBackend, open_backend
from danube.wire import connect_channel
from danube.wire.client import Channel

REQUESTS: dict[str, Any] = {
    api.StorageMethod.PUT: api.PutObject,
    api.StorageMethod.GET: api.GetObject,
    api.StorageMethod.GET_RANGES: api.GetRanges,
    api.StorageMethod.HEAD: api.HeadObject,
    api.StorageMethod.LIST: api.ListObjects,
    api.StorageMethod.DELETE: api.DeleteObjects,
    api.StorageMethod.ABANDON_UPLOADS: api.AbandonUploads,
    api.StorageMethod.DESCRIBE: api.Describe,
}
KEPT = "kept/object"
"""No request names it."""
VALID: dict[str, list[Any]] = {
    "data": [b"", b"x", b"x" * 70],
    "end": [None, 3],
    "key": ["a/b", "a"],
    "keys": [["a/b"], []],
    "limit": [1, 1000],
    "older_than_s": [3600.0],
    "prefix": ["a", "a/"],
    "ranges": [[0, 1], [0, 2, 1, 3]],
    "size_bytes": [0, 1, 70, 200_000],
    "space": ["space", ""],
    "start": [0],
    "start_after": ["", "a"],
}
ODD = OddMessages(
    VALID, ["a", "a/b", "a/../b", "/a", "a//b", ".", ".danube"], st.sampled_from([b"", b"x", b"x" * 70_000])
)


def conversation(path: str) -> st.SearchStrategy[list[bytes]]:
    """Return a request, and pieces of an object where the method takes some."""
    request = ODD.encoded(ODD.plausible(inspect.type_info(REQUESTS[path])))
    pieces = st.lists(st.sampled_from([b"", b"x", b"x" * 199_999]), max_size=3)
    return st.tuples(request, pieces if path == api.StorageMethod.PUT else st.just([])).map(
        lambda each: [each[0], *each[1]]
    )


async def converse(channel: Channel, path: str, messages: list[bytes]) -> None:
    """Send messages, and hear the server out."""
    try:
        async with channel.open_stream(path) as stream:
            for data in messages:
                stream.send_nowait(data)
            stream.end()
            while (answer := await stream.receive()) is not None:
                answer.release()
    except DanubeError as error:
        if not acceptable(error) or channel.closed:
            raise AssertionError(f"{path} {[data[:200] for data in messages]!r}: {error!r}") from error


async def ask(server: Serving, count: int) -> None:
    """Send odd messages of every method, and see that an object that was there before is there afterwards."""
    assert set(server.service.service()) == set(REQUESTS), "a method is missing here"
    await server.backend.put(KEPT, b"kept")
    for path, kind in REQUESTS.items():
        async with connect_channel("127.0.0.1", server.port) as channel:
            for data in ODD.spoilt(inspect.type_info(kind)):
                await converse(channel, path, [data])
            for messages in drawn(conversation(path), count):
                with trio.fail_after(30):
                    await converse(channel, path, messages)
            await channel.unary(api.StorageMethod.DESCRIBE, api.Describe(), api.StorageDescription)
    assert await server.backend.get(KEPT) == b"kept"
    await until(lambda: server.memory_held == 0)


@pytest.fixture(autouse=True)
def _no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    wrong = [each.getMessage() for each in caplog.get_records("call") if each.exc_info]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "count",
    [
        15,
        pytest.param(100, marks=[pytest.mark.extended, pytest.mark.timeout(600)]),
        pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_every_method_with_odd_messages(tmp_path: Path, kind: str, count: int) -> None:
    async with open_backend(f"disk://{tmp_path}/objects" if kind == "disk" else "memory://") as backend:
        assert isinstance(backend, StorageBackend)
        async with serving(backend, storage_server_stall_timeout_s=5.0) as server:
            await ask(server, count)
    if kind == "disk":
        assert os.listdir(tmp_path) == ["objects"], "something was put beside the directory"
