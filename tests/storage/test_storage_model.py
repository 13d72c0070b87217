"""The built-in backends against a model: ranges of every shape, and listings of random sets of keys."""

from __future__ import annotations

import tempfile
import uuid
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.model.errors import StorageNotFoundError, StorageRangeError
from danube.storage import MemoryBackend, Storage, open_backend
from danube.storage.disk import open_disk


@asynccontextmanager
async def memory():
    yield MemoryBackend()


@asynccontextmanager
async def directory():
    with tempfile.TemporaryDirectory() as name:
        async with open_disk(Path(name)) as backend:
            yield backend


def generic():
    return open_backend(f"fsspec+memory://{uuid.uuid4().hex}")


BACKENDS = pytest.mark.parametrize("opening", [memory, directory, generic])


def run(work):
    """Run under Trio of its own: Hypothesis calls the same test function many times."""
    trio.run(work)


@BACKENDS
@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=40), st.lists(st.tuples(st.integers(0, 45), st.none() | st.integers(0, 45)), max_size=8))
def test_ranges(opening, data, ranges):
    async def work():
        async with opening() as backend:
            await backend.put("k", data)
            for start, end in ranges:
                if end is not None and end < start:
                    continue
                behind = start > len(data) or (end is not None and end > len(data))
                if start != end and behind:
                    with pytest.raises(StorageRangeError):
                        await backend.get("k", start, end)
                else:
                    assert await backend.get("k", start, end) == data[start:end]
            closed = [(start, end) for start, end in ranges if end is not None and start <= end]
            if all(start == end or end <= len(data) for start, end in closed):
                assert await backend.get_ranges("k", closed) == [data[start:end] for start, end in closed]
            else:
                with pytest.raises(StorageRangeError):
                    await backend.get_ranges("k", closed)

    run(work)


KEYS = st.lists(st.text("ab-0_!", min_size=1, max_size=2), min_size=1, max_size=3).map("/".join)
PREFIXES = st.just("") | KEYS | KEYS.map(lambda key: key[:1])


def apart(keys):
    return {key for key in keys if not any(other.startswith(key + "/") for other in keys)}


@BACKENDS
@settings(deadline=None, max_examples=40)
@given(
    st.sets(KEYS, max_size=12).map(apart),
    st.sets(KEYS, max_size=4),
    st.lists(st.tuples(PREFIXES, KEYS | st.just(""), st.integers(1, 5)), max_size=6),
)
def test_listings(opening, keys, deleted, questions):
    async def work():
        async with opening() as backend:
            storage = Storage(backend, random=Random(1))
            for key in keys:
                await storage.put(key, key.encode())
            await storage.delete(sorted(deleted))
            left = sorted(keys - deleted)
            assert [item.key async for page in storage.list_all() for item in page.objects] == left
            for prefix, after, limit in questions:
                expected = [key for key in left if key.startswith(prefix) and key > after]
                page = await storage.list(prefix, start_after=after, limit=limit)
                assert [item.key for item in page.objects] == expected[:limit]
                assert page.more == (len(expected) > limit)
            for key in keys | deleted:
                if key in left:
                    assert await storage.get(key) == key.encode()
                else:
                    with pytest.raises(StorageNotFoundError):
                        await storage.get(key)

    run(work)
