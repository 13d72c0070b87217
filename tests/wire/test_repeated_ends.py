"""A peer that connects again and again in the same wrong way does not fill the log."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import trio

from danube.wire import Server

pytestmark = pytest.mark.virtual


async def test_the_same_reason_is_logged_once_a_minute(caplog):
    caplog.set_level(logging.INFO, "danube.wire")
    server = Server([])
    for number in range(30):
        server.log_end(SimpleNamespace(connection_id=number, peer="p:1"), "the peer speaks HTTP/1")
        await trio.sleep(5)
    server.log_end(SimpleNamespace(connection_id=99, peer="q:1"), "another reason")
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "connection 0 of p:1 ends: the peer speaks HTTP/1",
        "connection 12 of p:1 ends: the peer speaks HTTP/1 (and 11 more for the reason logged before)",
        "connection 24 of p:1 ends: the peer speaks HTTP/1 (and 11 more for the reason logged before)",
        "connection 99 of q:1 ends: another reason (and 5 more for the reason logged before)",
    ]
