"""A process that ends without having closed its connection: it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from brokers import BrokerProcess

LEFT_OPEN = """
import sys, threading
from danube.client.sync import connect
from danube.model.errors import ClosedError

opening = connect(sys.argv[1], backend=sys.argv[2])
client = opening.__enter__()
topic = "/default/left-open"
producing = client.producer(topic)
producing.__enter__().send(b"one")
consuming = client.consumer(topic, subscription="s", start="earliest")
consumer = consuming.__enter__()
print(consumer.receive().payload, flush=True)

def wait() -> None:
    try:
        client.log_state([topic], beyond={topic: 1}, timeout_s=60)
    except ClosedError as error:
        print(error.code, flush=True)

threading.Thread(target=wait, daemon=True).start()
%s
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("import time; time.sleep(0.3)", 0), ("raise SystemExit(3)", 3)],
    ids=["at once", "while a thread waits", "with a code"],
)
def test_a_process_that_leaves_its_connection_open_ends(tmp_path: Path, backend: str, ending: str, code: int) -> None:
    with BrokerProcess(tmp_path) as broker:
        ended = subprocess.run(
            [sys.executable, "-c", LEFT_OPEN % ending, broker.url, backend], capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, ended.stderr) == (code, "")
        assert ended.stdout.startswith("b'one'\n")
        if "sleep" in ending:
            assert ended.stdout == "b'one'\nclosed\n"
