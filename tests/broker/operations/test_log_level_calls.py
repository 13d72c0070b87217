"""The level of a broker's log, changed by its client for a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from broker.broker_harness import running_broker

from danube.model.errors import InvalidArgumentError, LimitExceededError

pytestmark = pytest.mark.virtual

NAME = "danube.metadata"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("danube", NAME)]
    levels = [logger.level for logger in loggers]
    yield
    after = [logger.level for logger in loggers]
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    assert after == levels


async def test_a_level_is_changed_and_returns_by_itself(tmp_path: Path) -> None:
    logging.getLogger("danube").setLevel("WARNING")
    async with running_broker(tmp_path) as running, running.client() as client:
        changed = await client.admin.change_log_level("debug", logger=NAME, for_s=6)
        assert (changed.level, changed.former, changed.for_s, changed.broker) == ("debug", "warning", 6, "")
        assert logging.getLogger(NAME).isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("danube.wire").isEnabledFor(logging.INFO)
        await trio.sleep(5)
        changed = await client.admin.change_log_level("info", logger=NAME, for_s=6)
        assert (changed.level, changed.former) == ("info", "warning")
        await trio.sleep(5)
        assert logging.getLogger(NAME).getEffectiveLevel() == logging.INFO
        await trio.sleep(2)
        assert logging.getLogger(NAME).level == logging.NOTSET
        await client.admin.change_log_level("error", for_s=1e4)
        back = await client.admin.change_log_level("")
        assert (back.level, back.former, back.for_s) == ("warning", "warning", 0)
        await client.admin.change_log_level("debug")
    assert logging.getLogger("danube").level == logging.WARNING, "the broker has ended"
    logging.getLogger("danube").setLevel("NOTSET")


async def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"max_log_levels": 1}) as running, running.client() as client:
        with pytest.raises(InvalidArgumentError, match="'loud' is not debug"):
            await client.admin.change_log_level("loud")
        with pytest.raises(LimitExceededError, match="log_level_max_s"):
            await client.admin.change_log_level("debug", for_s=1e6)
        await client.admin.change_log_level("debug", logger=NAME)
        with pytest.raises(LimitExceededError, match="max_log_levels is 1"):
            await client.admin.change_log_level("debug", logger="danube.wire")
        assert logging.getLogger("danube.wire").level == logging.NOTSET
