"""A process that ends without having closed its connection: it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from brokers import BrokerProcess

LEFT_OPEN = """
import atexit, os, sys, threading
from danube.client.sync import _loop, connect
from danube.model.errors import ClosedError

def say(word: str) -> None:  # in one call: a daemon that Python stops within print() would take the process with it
    os.write(1, word.encode() + bytes([10]))

def join() -> None:  # registered before the connection is opened, so called after it was ended
    if "join" in sys.argv:
        _loop.EXIT_LINGER_S = 0.2
        waiting.join()
        try:
            client.logs.states([topic])
        except ClosedError as error:
            say("main: " + error.code)

atexit.register(join)
opening = connect(sys.argv[1], backend=sys.argv[2])
client = opening.__enter__()
topic = sys.argv[3]
producing = client.producer(topic)
producing.__enter__().send(b"one")
consuming = client.consumer(topic, subscription="s", start="earliest")
consumer = consuming.__enter__()
say(consumer.receive().payload.decode())

def wait() -> None:
    try:
        client.logs.states([topic], beyond={topic: 1}, timeout_s=60)
    except ClosedError as error:
        say("thread: " + error.code)

waiting = threading.Thread(target=wait, daemon=True)
waiting.start()
%s
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def leave_open(broker: BrokerProcess, *arguments: str, ending: str = "") -> tuple[int, str, str]:
    """Run a process that leaves its connection open; what it ended with, and what it said on both streams."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEFT_OPEN % ending, broker.url, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("name", "ending", "code"),
    [("once", "", 0), ("waits", "import time; time.sleep(0.3)", 0), ("code", "raise SystemExit(3)", 3)],
    ids=["at once", "while a thread waits", "with a code"],
)
def test_a_process_that_leaves_its_connection_open_ends(
    broker: BrokerProcess, backend: str, name: str, ending: str, code: int
) -> None:
    """And a daemon that waits for an answer isn't woken into the end of the interpreter."""
    assert leave_open(broker, backend, f"/default/{name}-{backend}", ending=ending) == (code, "one\n", "")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_that_is_joined_at_exit_hears_of_the_end(broker: BrokerProcess, backend: str) -> None:
    said = "one\nthread: closed\nmain: closed\n"
    assert leave_open(broker, backend, f"/default/join-{backend}", "join") == (0, said, "")


FORKED = """
if not os.fork():
    for call in (client.admin.list_topics, consumer.receive):
        try:
            call()
        except ClosedError as error:
            say(error.message)
    with connect(sys.argv[1], backend=sys.argv[2]) as own:
        with own.producer(topic) as producer:
            producer.send(b"two")
    sys.exit(5)
status = os.wait()[1]
say(consumer.receive().payload.decode())
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="allowed in CI: this system cannot fork")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_forked_process_is_refused_and_ends(broker: BrokerProcess, backend: str) -> None:
    """It has inherited the connection, and not the thread of its event loop; the first process goes on with both."""
    refused = "the connection belongs to the process that this one was forked from; open one in this process\n"
    said = f"one\n{refused}{refused}two\n"
    assert leave_open(broker, backend, f"/default/forked-{backend}", ending=FORKED) == (5, said, "")
