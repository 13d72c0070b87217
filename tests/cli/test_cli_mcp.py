"""``danube mcp`` with a real client of the protocol, over standard input and output of a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from typer.testing import CliRunner

import danube
from danube.cli._mcp.outputs import MAX_OUTPUT_CHARS
from danube.cli._mcp.tools import TOOLS
from danube.cli.app import app

READ_ONLY = [tool.name for tool in TOOLS if not tool.writes]
WRITES = ["publish", "seek", "skip", "replay"]


class Caller:
    """A connected client."""

    def __init__(self, session: ClientSession, instructions: str) -> None:
        self._session = session
        self.instructions = instructions

    async def tools(self):
        return {tool.name: tool for tool in (await self._session.list_tools()).tools}

    async def call(self, tool, **arguments):
        answer = await self._session.call_tool(tool, arguments)
        (content,) = answer.content
        assert not answer.is_error, content.text
        assert len(content.text) <= MAX_OUTPUT_CHARS + 200
        return json.loads(content.text)

    async def refused(self, tool, **arguments):
        answer = await self._session.call_tool(tool, arguments)
        assert answer.is_error
        return answer.content[0].text


@asynccontextmanager
async def caller(url: str, *options: str, **environment: str) -> AsyncIterator[Caller]:
    given = {"DANUBE_URL": url, "XDG_CONFIG_HOME": "/nonexistent", "PATH": os.environ["PATH"], **environment}
    if "PYTHONPATH" in os.environ:
        given["PYTHONPATH"] = os.environ["PYTHONPATH"]
    server = StdioServerParameters(command=sys.executable, args=["-m", "danube", "mcp", *options], env=given)
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        hello = await session.initialize()
        assert hello.server_info.name == "danube"
        yield Caller(session, hello.instructions or "")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


async def test_reading_searching_and_errors_that_help(broker):
    """One process for all of it: that is what takes time."""
    await fill(broker)
    async with caller(broker.url) as mcp:
        await look(mcp)
        await search(mcp)
        await ask_wrongly(mcp)


async def fill(broker):
    async with danube.connect(broker.url) as client:
        await client.admin.create_topic("/default/mcp-parts", partitions=2)
        async with client.producer("/default/mcp-parts") as producer:
            for number in range(40):
                payload = b'{"id": %d, "user": {"name": "%s"}}' % (number, b"ada" if number % 2 else b"Bob")
                await producer.send(payload, key=f"k{number}", attributes={"kind": "order"} if number < 10 else None)
        async with client.consumer("/default/mcp-parts", subscription="nightly", start="earliest"):
            pass
        async with client.producer("/default/mcp-large") as producer:
            await producer.send_many([b"x" * 3_000] * 60)
            await producer.send(b"\xff\xfe")
        await client.admin.create_topic("/default/search", partitions=2)
        async with client.producer("/default/search") as producer:
            payloads = [b'{"id": %d, "user": {"name": "%s"}}' % (n, b"ada" if n % 2 else b"Bob") for n in range(300)]
            await producer.send_many(payloads, keys=[f"k{number}" for number in range(300)])


async def look(mcp):
    tools = await mcp.tools()
    assert list(tools) == READ_ONLY
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert tools["read_messages"].input_schema["required"] == ["topic"]
    assert "read-only" in mcp.instructions

    explained = await mcp.call("explain")
    assert explained["well"] is True
    assert [each["subscription"] for each in explained["without_consumer_but_well"]] == ["nightly"]
    explained = await mcp.call("explain", topic="mcp-parts", subscription="nightly", absent="0.001s")
    assert explained["well"] is False
    assert explained["subscriptions"][0]["remedy"].startswith("start a consumer")
    lag = await mcp.call("lag_report", min_backlog=1)
    assert (lag["backlog_messages_in_all"], lag["subscriptions"][0]["partitions"]) == (40, 2)
    assert (await mcp.call("lag_report", topic="mcp-parts", subscription="none"))["subscriptions"] == []
    listed = await mcp.call("list_topics", contains="mcp-", limit=1)
    assert (listed["topics_in_all"], len(listed["topics"])) == (2, 1)
    described = await mcp.call("describe_topic", topic="mcp-parts")
    assert (described["topic"]["end_offset"], described["subscriptions"][0]["state"]) == (40, "no-consumer")
    assert described["policies"]
    assert (await mcp.call("config"))["broker"]["version"] == danube.__version__
    assert (await mcp.call("connections"))["connections"][0]["protocol"] == "native"
    assert (await mcp.call("storage_status"))["storages"]

    newest = (await mcp.call("read_messages", topic="mcp-parts", last=3))["messages"]
    assert [json.loads(each["payload"])["id"] for each in newest] == [37, 38, 39]
    first = (await mcp.call("read_messages", topic="mcp-parts-part-0", start="earliest", limit=2))["messages"]
    assert [(each["offset"], each["attributes"]) for each in first] == [
        (0, {"kind": "order"}),
        (1, {"kind": "order"}),
    ]
    assert len((await mcp.call("read_messages", topic="mcp-parts"))["messages"]) == 10
    odd = (await mcp.call("read_messages", topic="mcp-large", last=1))["messages"][0]
    assert (odd["payload"], odd["encoding"]) == ("//4=", "base64")
    large = await mcp.call("read_messages", topic="mcp-large", start="earliest", limit=60)
    assert large["omitted"]["messages"] + len(large["messages"]) == 60
    assert large["messages"][0]["payload_cut"] == "3,000 bytes in all; max_payload_chars shows more"


async def search(mcp):
    """A search goes on where it stopped."""
    found, asked, resume = [], 0, {}
    while True:
        answer = await mcp.call(
            "search_messages", topic="search", filter='value.user.name == "ada"', limit=40, **resume
        )
        asked += 1
        found += [json.loads(each["payload"])["id"] for each in answer["messages"]]
        if answer["complete"]:
            break
        resume = {"resume": answer["resume"]}
    assert sorted(found) == list(range(1, 300, 2)), "each once"
    assert asked == 4
    nine = await mcp.call("search_messages", topic="search", filter='key ^= "k29" and size > 5', limit=200)
    assert {each["key"] for each in nine["messages"]} == {"k29", *(f"k29{number}" for number in range(10))}
    assert nine["scanned_messages"] <= 300
    after = await mcp.call("search_messages", topic="search", filter="ada", start="latest")
    assert (after["messages"], after["complete"]) == ([], True)
    assert "filter" in await mcp.refused("search_messages", topic="search", filter='value.user == "')
    assert "position" in await mcp.refused("search_messages", topic="search", filter="x", resume="there")


async def ask_wrongly(mcp):
    missing = await mcp.refused("describe_topic", topic="/default/nothing")
    assert "topic '/default/nothing' does not exist" in missing
    assert "unknown field `topc`; parameters of this tool: topic, " in await mcp.refused("explain", topc=1)
    assert "Expected `int` <= 500" in await mcp.refused("lag_report", limit=501)
    assert "missing required field `topic`" in await mcp.refused("read_messages")
    assert "give last or start, not both" in await mcp.refused("read_messages", topic="x", last=1, start="latest")
    assert "is not earliest, latest, an offset" in await mcp.refused("read_messages", topic="x", start="soon")
    assert "there is no tool 'drop'; there are: explain" in await mcp.refused("drop")
    for tool in WRITES:
        assert "read-only; the user may start it with --allow-writes" in await mcp.refused(tool)


async def test_without_a_broker_it_says_so_and_goes_on():
    async with caller("danube://127.0.0.1:1") as mcp:
        for _ in range(2):
            assert "127.0.0.1:1" in await mcp.refused("list_topics")


async def test_writing_when_it_is_allowed(broker):
    topic = "/default/mcp-writes"
    async with danube.connect(broker.url) as client, caller(broker.url, "--allow-writes") as mcp:
        tools = await mcp.tools()
        assert list(tools) == READ_ONLY + WRITES
        assert [name for name, tool in tools.items() if tool.annotations.destructive_hint] == ["seek", "skip"]
        assert "does not exist" in await mcp.refused("publish", topic=topic, payload="x")
        stored = await mcp.call("publish", topic=topic, payload="x", create=True, key="k", attributes={"a": "b"})
        assert (stored["offset"], stored["stored"]) == (0, True)
        await mcp.call("publish", topic="mcp-writes", payload="//4=", encoding="base64")
        assert "no base64" in await mcp.refused("publish", topic=topic, payload="?", encoding="base64")
        policy = {"max_redelivery_count": 0, "poison": "dead_letter"}
        async with client.consumer(topic, subscription="s", start="earliest", policy=policy) as consumer:
            assert [(await consumer.receive()).payload for _ in range(2)] == [b"x", b"\xff\xfe"]
            who = await mcp.call("who_has_it", topic=topic, offset=0)
            assert [(each["subscription"], each["state"]) for each in who["subscriptions"]] == [("s", "in-flight")]
            assert "from 0 on" in await mcp.refused("who_has_it", topic=topic, offset=0, partition=1)
            assert "is the dead-letter topic itself" in await mcp.refused("replay", topic=topic, to=topic)
            await mcp.call("skip", topic=topic, subscription="s", messages=1)
            assert (await client.admin.describe_subscription(topic, "s"))[0].floor == 0, "a dry run"
            skipped = await mcp.call("skip", topic=topic, subscription="s", messages=2, dry_run=False)
            assert skipped["partitions"][0]["skipped_messages"] == 2
            planned = await mcp.call("seek", topic=topic, subscription="s", position="1")
            assert (planned["done"], planned["partitions"][0]["repeated_messages"]) == (False, 1)
            await mcp.call("seek", topic=topic, subscription="s", position="1", dry_run=False)
            again = await consumer.receive()
            assert again.offset == 1
            assert "nothing has failed yet" in await mcp.refused("replay", topic=f"{topic}-s-dlq")
            await client.admin.create_topic(f"{topic}-s-dlq")
            await again.nack(reason="no such customer")
            async with client.reader(f"{topic}-s-dlq", start="earliest") as letters:
                await letters.receive()
            planned = await mcp.call("replay", topic=f"{topic}-s-dlq")
            assert (planned["done"], planned["replayed_messages"]) == (False, 1)
            done = await mcp.call("replay", topic=f"{topic}-s-dlq", dry_run=False)
            assert (done["replayed_messages"], done["by_topic"]) == (1, {topic: 1})
            assert (await consumer.receive()).payload == b"\xff\xfe"


@pytest.mark.extended
def test_the_rights_are_those_of_the_context(tmp_path: Path):
    async def use(url, **environment):
        async with caller(url, "--allow-writes", **environment) as mcp:
            assert [each["topic"] for each in (await mcp.call("list_topics"))["topics"]] == ["/default/seen"]
            assert (await mcp.call("read_messages", topic="seen"))["messages"][0]["payload"] == "hello"
            assert "PermissionDeniedError" in await mcp.refused("publish", topic="seen", payload="x")
            assert "PermissionDeniedError" in await mcp.refused("connections")
            assert "may not see it" in await mcp.refused("describe_topic", topic="hidden")

    home = {"XDG_CONFIG_HOME": str(tmp_path / "home"), "DANUBE_URL": None}
    security, data, config = tmp_path / "security", tmp_path / "data", tmp_path / "danube.toml"

    def run(*arguments, **environment):
        done = CliRunner().invoke(app, arguments, env={**home, **environment})
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    places = ("--directory", str(security), "--data-dir", str(data), "--config", str(config))
    run("security", "init", "--host", "127.0.0.1", *places)
    with BrokerProcess(data, "--config", str(config), "--log-level", "warning") as broker:
        url, authority = f"danube+tls://127.0.0.1:{broker.port}", {"DANUBE_CA": str(security / "ca.pem")}
        admin = {"DANUBE_URL": url, **authority, "DANUBE_TOKEN": (security / "admin.token").read_text().strip()}
        run("topics", "create", "/default/hidden", **admin)
        run("produce", "/default/seen", "-m", "hello", **admin)
        run("grant", "viewer,consumer", "to", "service:assistant", "on", "/default/seen", **admin)
        token = run("tokens", "create", "service:assistant", "--expires", "1d", **admin)
        trio.run(partial(use, url, **authority, DANUBE_TOKEN=token))
        assert broker.terminate() == 0


def test_without_the_package_it_says_what_to_install():
    program = "import sys; sys.modules['mcp'] = None; import danube; sys.argv[1:] = ['mcp']; danube._command()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 65
    assert done.stdout == ""
    assert "run: pip install 'danube-broker[mcp]'" in done.stderr


@pytest.mark.extended
def test_ctrl_c_ends_it_though_standard_input_is_open():
    command = [sys.executable, "-m", "danube", "--url", "danube://127.0.0.1:1", "mcp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            # It has begun when it answers something, here a ping.
            process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()


@pytest.mark.extended
def test_the_end_of_standard_input_ends_it():
    command = [sys.executable, "-m", "danube", "--url", "danube://127.0.0.1:1", "mcp"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
