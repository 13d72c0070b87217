"""More journeys through the console in real Chromium, for ``tox -e long``: what people do on its pages, one by one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import BrokerProcess
from console_browser import (
    Console,
    broker_url,
    chromium,
    console,
    console_of,
    orders,
    reloading,
    secure_url,
    secured_broker,
    url_of,
)
from playwright.sync_api import Browser, expect
from ports import free_ports

pytestmark = pytest.mark.long

__all__ = ["broker_url", "chromium", "console"]


def make(console: Console, topic: str, messages: int = 0, **more: object) -> None:
    console.call("POST", "topics", {"topic": topic, **more})
    if messages:
        console.publish(topic, orders(messages))


def test_set_and_reset_a_policy(console: Console) -> None:
    page = console.page
    make(console, "/default/ruled")
    console.open("/topics/default/ruled?tab=policies")
    row = page.locator("tr", has_text="publish_rate")
    row.get_by_role("button", name="Set …").click()
    value = page.get_by_label(re.compile("^Value:"))
    value.fill("fast")
    expect(page.locator("dialog .error-text")).to_contain_text("is no rate")
    expect(page.get_by_role("button", name="Set it")).to_be_disabled()
    value.fill("100/s,1MiB/s")
    command = "danube policies set /default/ruled publish_rate=100/s,1MiB/s"
    expect(page.locator("dialog .cli code")).to_have_text(command)
    page.get_by_role("button", name="Set it").click()
    expect(row).to_contain_text("100/s,1MiB/s")
    expect(row).to_contain_text("this topic")
    own = console.call("GET", "topics/default/ruled/policies")["own"]
    assert own == {"publish_rate": {"messages_per_s": 100.0, "bytes_per_s": 1048576.0}}
    # What the broker refuses is shown as it says it.
    size = page.locator("tr", has_text="max_message_bytes")
    size.get_by_role("button", name="Set …").click()
    value.fill("0B")
    page.get_by_role("button", name="Set it").click()
    expect(page.locator("dialog .problem")).to_contain_text("max_message_bytes = 0 must be at least 1")
    page.keyboard.press("Escape")
    row.get_by_role("button", name="Reset …").click()
    expect(page.locator("dialog .cli code")).to_have_text("danube policies unset /default/ruled publish_rate")
    page.get_by_role("button", name="Reset it").click()
    expect(row).to_contain_text("not set")
    assert console.call("GET", "topics/default/ruled/policies")["own"] == {}
    assert all("400" in each for each in console.errors)
    console.errors.clear()


def test_skip_messages_of_a_subscription(console: Console) -> None:
    page = console.page
    make(console, "/default/skipped", 50)
    console.subscribe("/default/skipped", "billing", 10)
    console.open("/subscriptions/default/skipped/billing")
    page.get_by_role("button", name="Skip …").click()
    page.get_by_label(re.compile("^Messages from offset 10")).fill("15")
    expect(page.locator(".effect")).to_contain_text("15 unacknowledged messages are left out")
    page.get_by_role("button", name="Skip", exact=True).click()
    expect(page.get_by_text("it continues at offset 25")).to_be_visible()
    row = console.call("GET", "topics/default/skipped/subscriptions/billing")["subscriptions"][0]
    assert (row["floor"], row["backlog_messages"]) == (25, 25)


def test_change_the_policy_of_a_subscription(console: Console) -> None:
    page = console.page
    make(console, "/default/patient", 5)
    console.subscribe("/default/patient", "billing", 1)
    console.open("/subscriptions/default/patient/billing")
    page.get_by_role("button", name="Policy …").click()
    page.get_by_label("Ack timeout, s; 0: none").fill("90")
    page.get_by_label("A poison message").select_option("drop")
    command = "danube subscriptions policy /default/patient billing --poison drop --ack-timeout 90s"
    expect(page.locator("dialog .cli code")).to_have_text(command)
    page.get_by_role("button", name="Change it").click()
    expect(page.locator("main")).to_contain_text("1 min 30 s")
    row = console.call("GET", "topics/default/patient/subscriptions/billing")["subscriptions"][0]
    assert (row["policy"]["ack_timeout_s"], row["policy"]["poison"]) == (90, "drop")


def test_delete_a_subscription(console: Console) -> None:
    page = console.page
    make(console, "/default/left", 5)
    console.subscribe("/default/left", "old", 1)
    console.open("/subscriptions/default/left/old")
    page.get_by_role("button", name="Delete …").click()
    expect(page.locator("dialog")).to_contain_text("4 unacknowledged messages")
    page.get_by_label("Type old to confirm").fill("old")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("old is deleted")).to_be_visible()
    assert console.call("GET", "topics/default/left")["subscriptions"] == []


def test_suspend_a_principal_and_delete_its_key(chromium: Browser, tmp_path: Path) -> None:
    with secured_broker(tmp_path) as (broker, token), console_of(chromium, url_of(broker)) as console:
        page = console.page
        console.open("/security")
        page.get_by_role("dialog").get_by_label("Token").fill(token)
        with reloading(page):
            page.get_by_role("dialog").get_by_role("button", name="Log in").click()
        page.wait_for_selector("main table")
        for words in ("grant producer to service:api on namespace:default", "keys create service:api"):
            command = [sys.executable, "-m", "danube", *words.split(), "--url", secure_url(broker)]
            environment = os.environ | {"DANUBE_TOKEN": token, "DANUBE_CA": str(tmp_path / "secrets" / "ca.pem")}
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        page.reload()
        row = page.locator("tr", has_text="service:api")
        expect(row).to_contain_text("active")
        row.get_by_role("button", name="Suspend …").click()
        page.get_by_label("Why; for lists").fill("it floods")
        command = "danube principals suspend service:api --reason 'it floods'"
        expect(page.locator("dialog .cli code")).to_have_text(command)
        page.get_by_role("button", name="Suspend", exact=True).click()
        expect(row).to_contain_text("it floods")
        row.get_by_role("button", name="Resume …").click()
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(row).to_contain_text("active")
        row.get_by_role("button", name="Quota").click()
        expect(page.locator("dialog")).to_contain_text("no quota")
        page.keyboard.press("Escape")
        page.get_by_role("link", name="API keys").click()
        row.get_by_role("button", name="Delete …").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.locator("main")).to_contain_text("There are no API keys")
        # The last administrator cannot remove itself: the broker's own sentence says why.
        page.get_by_role("link", name="Bindings").click()
        page.locator("tr", has_text="user:admin").get_by_role("button", name="Remove …").click()
        page.get_by_role("button", name="Remove", exact=True).click()
        expect(page.locator("dialog .problem")).to_contain_text("409")


def test_seal_a_topic_and_see_where_its_messages_are(console: Console) -> None:
    page = console.page
    make(console, "/default/sealed", 200)
    console.open("/topics/default/sealed?tab=history")
    expect(page.locator(".layers + .legend")).to_contain_text("Journal: 200 messages")
    page.get_by_role("button", name="Seal …").click()
    page.get_by_role("button", name="Seal", exact=True).click()
    expect(page.locator(".layers + .legend")).to_contain_text("Journal: 0 messages")
    expect(page.locator(".layers + .legend")).to_contain_text("200 messages")
    assert console.call("GET", "topics/default/sealed")["sealed_offset"] == 200


def test_partitions_are_summed_and_shown_one_by_one(console: Console) -> None:
    page = console.page
    make(console, "/default/wide", 90, partitions=3)
    console.open("/topics")
    expect(page.locator("tr", has_text="/default/wide")).to_contain_text("90")
    page.get_by_role("link", name="/default/wide").click()
    page.get_by_role("link", name=re.compile("^Partitions")).click()
    rows = page.locator("main table tbody tr")
    expect(rows).to_have_count(3)
    numbers = [int(row.locator("td").nth(4).inner_text()) for row in rows.all()]
    assert sum(numbers) == 90


def test_a_list_is_filtered_sorted_and_saved(console: Console) -> None:
    page = console.page
    for number, messages in enumerate((30, 10, 20)):
        make(console, f"/default/listed{number}", messages)
    console.open("/topics")
    page.get_by_label("Filter topics").fill("listed")
    rows = page.locator("main table tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_role("button", name=re.compile("^Messages")).click()
    expect(rows.first).to_contain_text("/default/listed0")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="CSV").click()
    lines = Path(waiting.value.path()).read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["/default/listed0", "/default/listed2", "/default/listed1"]


def test_chosen_columns_are_remembered(console: Console) -> None:
    page = console.page
    make(console, "/default/columns", 1)
    console.open("/topics")
    page.wait_for_selector("main table")
    before = page.locator("main thead th").count()
    page.locator("summary", has_text="Columns").click()
    page.locator("details.menu input:not(:disabled):checked").first.uncheck()
    expect(page.locator("main thead th")).to_have_count(before - 1)
    page.reload()
    expect(page.locator("main thead th")).to_have_count(before - 1)


def test_a_setting_is_found_with_where_it_is_from(console: Console) -> None:
    page = console.page
    console.open("/configuration")
    page.wait_for_selector("main table")
    page.get_by_role("searchbox").first.fill("http_listen")
    expect(page.locator("main tr", has_text="http_listen")).to_contain_text("configured")


def test_search_opens_a_subscription_by_keys_alone(console: Console) -> None:
    page = console.page
    make(console, "/default/searched", 3)
    console.subscribe("/default/searched", "needle", 1)
    console.open("/")
    page.wait_for_selector("main h1")
    expect(page.locator("main")).to_contain_text("Largest backlogs")
    page.keyboard.press("/")
    page.keyboard.type("needle")
    expect(page.get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="needle")).to_be_visible()
    page.keyboard.press("Tab")
    page.locator("nav.tabs").get_by_role("link", name="Dead letters").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("This subscription has no dead letters")


def test_a_link_to_a_message_opens_it_and_its_payload_is_saved(console: Console) -> None:
    page = console.page
    make(console, "/default/linked", 30)
    console.open("/topics/default/linked?at=0:17")
    detail = page.get_by_label("Message", exact=True)
    expect(detail).to_contain_text("Offset 17")
    with page.expect_download() as waiting:
        detail.get_by_role("button", name="Download").click()
    assert '"id":17' in Path(waiting.value.path()).read_text()


def test_the_storage_is_checked(console: Console) -> None:
    page = console.page
    make(console, "/default/stored", 50)
    topic = "topics/default/stored"
    console.call("POST", f"{topic}:seal", {})
    console.open("/storage")
    page.get_by_role("button", name="Check", exact=True).first.click()
    hint = page.locator("main .hint")
    expect(hint).to_contain_text("All history is there.")
    expect(hint).to_contain_text("0 missing, 0 damaged")


def test_a_small_window_has_a_menu(chromium: Browser, broker_url: str) -> None:
    with console_of(chromium, broker_url, "dark", 390, 844) as console:
        page = console.page
        console.open("/")
        page.wait_for_selector("main h1")
        expect(page.locator("#side").get_by_role("link", name="Topics")).not_to_be_in_viewport()
        page.get_by_role("button", name="Menu").first.click()
        page.locator("#side").get_by_role("link", name="Topics").click()
        expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        expect(page.locator("#side").get_by_role("link", name="Topics")).not_to_be_in_viewport()
        assert console.errors == []


def test_the_console_waits_for_a_broker_that_is_restarted(chromium: Browser, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    listen = f"127.0.0.1:{port}"
    with (
        BrokerProcess(tmp_path / "data", http_listen=listen) as broker,
        console_of(chromium, url_of(broker)) as console,
    ):
        page = console.page
        make(console, "/default/kept", 5)
        console.open("/topics")
        expect(page.locator("main")).to_contain_text("/default/kept")
        broker.terminate()
        expect(page.locator(".offline")).to_contain_text("the broker does not answer")
        with BrokerProcess(tmp_path / "data", http_listen=listen):
            expect(page.locator(".offline")).to_have_count(0)
            expect(page.locator("main")).to_contain_text("/default/kept")
