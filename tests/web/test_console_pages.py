"""The console in real Chromium, over a real broker: five journeys, its accessibility, and what hostile payloads do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from console_browser import (
    Console,
    axe,
    broker_url,
    chromium,
    console,
    console_of,
    orders,
    reloading,
    secured_broker,
    url_of,
)
from playwright.sync_api import Browser, expect

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

__all__ = ["axe", "broker_url", "chromium", "console"]

OFFSET = r"\d[\d,]*"


def shown_offsets(console: Console) -> list[int]:
    """Return the offsets of the rows in sight, from top to bottom."""
    texts = console.page.locator(".rows tbody button.link").all_inner_texts()
    return [int(text.replace(",", "")) for text in texts]


# --- Journeys


def test_find_a_message_by_its_key_link_it_and_export_it(console: Console) -> None:
    page = console.page
    console.call("POST", "topics", {"topic": "/default/finds"})
    console.publish("/default/finds", orders(400))
    console.open("/topics")
    page.get_by_role("link", name="/default/finds").click()
    expect(page.locator("#filter-state")).to_contain_text("200 messages loaded")
    page.get_by_label("Number of messages").select_option("500")
    expect(page.locator("#filter-state")).to_contain_text("400 messages loaded")

    page.get_by_label("Filter messages").fill(
        'key == "user-3" and value.total > 100 and header.type == "order.created"'
    )
    expect(page.locator("#filter-state")).to_contain_text("20 matches in the 400 messages loaded")
    assert shown_offsets(console)[:3] == [393, 383, 373], "the newest first"
    with page.expect_download() as waiting:
        page.locator("summary", has_text="Export").click()
        page.get_by_role("button", name="JSON lines").click()
    assert len(Path(waiting.value.path()).read_text().splitlines()) == 20

    page.get_by_role("button", name="383", exact=True).click()
    detail = page.get_by_label("Message", exact=True)
    expect(detail).to_contain_text("Offset 383")
    expect(detail).to_contain_text("191.5")
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_contain_text("Offset 383")
    expect(page.get_by_label("Filter messages")).to_have_value(re.compile("user-3"))

    page.get_by_label("Filter messages").fill("value.total ==")
    expect(page.locator("#filter-state")).to_contain_text("a value is missing after ==")


def test_a_live_tail_of_a_thousand_messages_has_no_gap_though_it_pauses(console: Console) -> None:
    page = console.page
    console.call("POST", "topics", {"topic": "/default/tailed"})
    console.open("/topics/default/tailed?from=live")
    expect(page.locator("#filter-state")).to_contain_text("live")
    expect(page.locator("#filter-state")).not_to_contain_text("connecting")
    for start in range(0, 400, 50):
        console.publish("/default/tailed", orders(50, start))
    expect(page.locator("#filter-state")).to_contain_text("400 messages loaded")
    page.get_by_role("button", name="Pause").click()
    for start in range(400, 800, 50):
        console.publish("/default/tailed", orders(50, start))
    expect(page.locator("#filter-state")).to_contain_text("paused, 400 messages wait")
    assert shown_offsets(console)[0] == 399
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("#filter-state")).to_contain_text("800 messages loaded")
    for start in range(800, 1000, 50):
        console.publish("/default/tailed", orders(50, start))
    expect(page.locator("#filter-state")).to_contain_text("1,000 messages loaded")
    with page.expect_download() as waiting:
        page.locator("summary", has_text="Export").click()
        page.get_by_role("button", name="CSV (1,000)").click()
    lines = Path(waiting.value.path()).read_text().splitlines()[1:]
    offsets = [int(line.split(",")[2]) for line in lines]
    assert offsets == list(range(999, -1, -1))


def test_publish_a_message_and_see_it(console: Console) -> None:
    page = console.page
    console.open("/topics")
    page.get_by_role("button", name="Create a topic").click()
    page.get_by_label("Name: /namespace/topic").fill("/default/written")
    expect(page.locator("dialog .cli code")).to_have_text("danube topics create /default/written")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="/default/written")).to_be_visible()
    page.get_by_role("button", name="Publish").click()
    page.get_by_label(re.compile("^Payload")).fill('{"hello": "world", "n": {{i}}}')
    page.get_by_label("Key; empty: none").fill("k-{{i}}")
    page.get_by_role("button", name="Add a header").click()
    page.get_by_label("Name of the header").fill("type")
    page.get_by_label("Value of the header").fill("greeting")
    page.get_by_label(re.compile("^Times")).fill("3")
    page.get_by_role("button", name="Publish 3").click()
    expect(page.get_by_text("3 messages are published")).to_be_visible()
    page.get_by_role("button", name="Load again").click()
    expect(page.locator("#filter-state")).to_contain_text("3 messages loaded")
    page.get_by_role("button", name="2", exact=True).click()
    detail = page.get_by_label("Message", exact=True)
    for text in ("k-3", "greeting", '"world"'):
        expect(detail).to_contain_text(text)
    detail.get_by_role("button", name="Send again").click()
    page.get_by_role("textbox", name="Payload").fill('{"hello": "edited"}')
    page.get_by_role("button", name="Publish", exact=True).last.click()
    expect(page.get_by_text("Published at offset 3")).to_be_visible()
    page.get_by_role("button", name="Load again").click()
    expect(page.locator(".rows")).to_contain_text("edited")


def test_seek_a_subscription_after_a_dry_run(console: Console) -> None:
    page = console.page
    console.call("POST", "topics", {"topic": "/default/sought"})
    console.publish("/default/sought", orders(100))
    console.subscribe("/default/sought", "billing", 40)
    console.open("/subscriptions")
    page.get_by_role("link", name="billing").click()
    expect(page.locator(".offset-line .marks")).to_contain_text("floor 40")
    page.get_by_role("button", name="Seek …").click()
    page.get_by_label("an offset").check()
    page.get_by_label("Offset", exact=True).first.fill("15")
    effect = page.locator(".effect")
    expect(effect).to_contain_text("it continues at offset 15")
    expect(effect).to_contain_text("25 acknowledged messages come again")
    expect(effect).to_contain_text("0 unacknowledged messages are left out")
    expect(effect).to_contain_text("85 messages are to be delivered then")
    expect(page.locator("dialog .cli code")).to_have_text("danube subscriptions seek /default/sought billing 15")
    page.get_by_role("button", name="Move it").click()
    expect(page.get_by_text("billing is moved")).to_be_visible()
    expect(page.locator(".offset-line .marks")).to_contain_text("floor 15")
    row = console.call("GET", "topics/default/sought/subscriptions/billing")["subscriptions"][0]
    assert (row["floor"], row["backlog_messages"]) == (15, 85)


def test_delete_a_topic_after_a_confirmation(console: Console) -> None:
    page = console.page
    console.call("POST", "topics", {"topic": "/default/unwanted"})
    console.publish("/default/unwanted", orders(5))
    console.open("/topics/default/unwanted")
    page.get_by_role("button", name="Delete …").click()
    button = page.get_by_role("button", name="Delete", exact=True)
    expect(button).to_be_disabled()
    expect(page.locator("dialog")).to_contain_text("5 messages")
    page.get_by_label("Type unwanted to confirm").fill("unwante")
    expect(button).to_be_disabled()
    page.get_by_label("Type unwanted to confirm").fill("unwanted")
    # In the meantime, the name gets another life: the topic that was looked at is the only one that may be deleted.
    found = console.call("GET", "topics/default/unwanted")["topic_id"]
    console.call("DELETE", "topics/default/unwanted", If_Match=f'"{found}"')
    console.call("POST", "topics", {"topic": "/default/unwanted"})
    page.route(
        "**/api/v1/topics/default/unwanted",
        lambda route: route.continue_() if route.request.method == "DELETE" else route.abort(),
    )
    button.click()
    expect(page.locator("dialog .problem")).to_contain_text("if-match")
    page.unroute_all()
    page.keyboard.press("Escape")
    page.reload()
    page.get_by_role("button", name="Delete …").click()
    page.get_by_label("Type unwanted to confirm").fill("unwanted")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("/default/unwanted is deleted")).to_be_visible()
    expect(page.get_by_role("heading", name="Topics", exact=True)).to_be_visible()
    assert "/default/unwanted" not in [row["topic"] for row in console.call("GET", "topics?limit=1000")["items"]]
    console.errors = [each for each in console.errors if "412" not in each and "ERR_FAILED" not in each]


def test_change_the_retention_of_a_topic_in_a_new_namespace_after_a_dry_run(console: Console) -> None:
    page = console.page
    console.open("/topics")
    page.get_by_role("button", name="Create a namespace").click()
    page.get_by_role("textbox", name="Name").fill("shop")
    expect(page.locator("dialog .cli code")).to_have_text("danube namespaces create shop")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_text("Namespace shop is created")).to_be_visible()
    console.call("POST", "topics", {"topic": "/shop/kept"})
    console.publish("/shop/kept", orders(30))
    console.open("/topics/shop/kept?tab=history")
    expect(page.locator("main")).to_contain_text("keeps all messages")
    page.get_by_role("button", name="Retention …").click()
    effect = page.locator(".effect")
    expect(effect).to_contain_text("it would remove 0 messages")
    page.get_by_label("Remove after days").fill("x")
    expect(page.get_by_role("button", name="Change it")).to_be_disabled()
    page.get_by_label("Remove after days").fill("7")
    expect(effect).to_contain_text("0 messages for good, and keep 30")
    command = "danube topics retention /shop/kept --max-age 604800s"
    expect(page.locator("dialog .cli code")).to_have_text(command)
    page.get_by_role("button", name="Change it").click()
    expect(page.locator("main")).to_contain_text("removes messages older than 7 d")
    assert console.call("GET", "topics/shop/kept")["retention"]["max_age_s"] == 7 * 86_400


def test_log_in_with_a_token_that_the_browser_does_not_keep(chromium: Browser, tmp_path: Path, axe: str) -> None:
    with secured_broker(tmp_path) as (broker, token), console_of(chromium, url_of(broker)) as console:
        page = console.page
        console.open("/topics")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Log in")
        dialog.get_by_label("Token").fill("no token")
        dialog.get_by_role("button", name="Log in").click()
        expect(dialog).to_contain_text("The login was refused")
        dialog.get_by_label("Token").fill(token)
        with reloading(page):
            dialog.get_by_role("button", name="Log in").click()
        expect(page.locator("main")).to_contain_text("/system/audit-b1")
        expect(page.locator("#side")).to_contain_text("user:admin")
        page.locator("#side").get_by_role("link", name="Security").click()
        for tab in ("Bindings", "Roles", "API keys", "Signing keys", "Revoked tokens", "Principals"):
            page.get_by_role("link", name=tab, exact=True).click()
            expect(page.locator("main table, main .empty")).to_be_visible()
            assert _violations(console, axe, f"/security, {tab}") == []
        expect(page.locator("main table")).to_contain_text("user:admin")
        console.open("/topics")
        page.get_by_role("button", name="Create a topic").click()
        page.get_by_label("Name: /namespace/topic").fill("/default/guarded")
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.get_by_role("heading", name="/default/guarded")).to_be_visible()
        kept = page.evaluate("JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie + location.href")
        assert token not in kept
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
        assert cookie["name"].startswith("__Host-danube-session-")
        assert cookie["value"] not in kept
        # A second window of the same browser has the same session; a login there gives both another one.
        other = page.context.new_page()
        other.goto(f"{console.url}#/topics")
        expect(other.locator("#side")).to_contain_text("user:admin")
        with reloading(other):
            other.get_by_role("button", name="Log out").click()
        expect(other.get_by_role("dialog")).to_contain_text("Log in")
        other.get_by_role("dialog").get_by_label("Token").fill(token)
        with reloading(other):
            other.get_by_role("dialog").get_by_role("button", name="Log in").click()
        expect(other.locator("#side")).to_contain_text("user:admin")
        other.close()
        page.get_by_role("button", name="Publish").click()
        page.get_by_role("textbox", name="Payload").fill("still logged in")
        page.get_by_role("button", name="Publish", exact=True).last.click()
        expect(page.get_by_text("Published at offset 0")).to_be_visible()
        with reloading(page):
            page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("dialog")).to_contain_text("Log in")
        assert page.context.cookies() == []
        assert [each for each in console.errors if "401" not in each and "403" not in each] == []


def test_replay_and_drop_dead_letters(console: Console) -> None:
    page = console.page
    console.call("POST", "topics", {"topic": "/default/failing"})
    console.fail("/default/failing", "fraud", ["card refused"] * 3 + ["no such user"] * 2)
    console.open("/subscriptions/default/failing/fraud")
    page.get_by_role("link", name="Dead letters", exact=True).click()
    reasons = page.locator(".reasons")
    expect(reasons).to_contain_text("5 wait")
    reasons.get_by_role("button", name="no such user").click()
    expect(page.locator("main table tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Replay these …").click()
    effect = page.locator(".effect")
    expect(effect).to_contain_text("2 letters would be replayed")
    expect(effect).to_contain_text("2 messages to /default/failing")
    command = "danube dlq replay /default/failing-fraud-dlq --reason 'no such user'"
    expect(page.locator("dialog .cli code")).to_have_text(command)
    page.get_by_label(re.compile("^To; empty")).fill("/default/nowhere")
    expect(page.locator("dialog .hint.warn")).to_contain_text("It cannot be told what would happen")
    expect(page.get_by_role("button", name="Replay", exact=True)).to_be_disabled()
    page.get_by_label(re.compile("^To; empty")).fill("")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_text("2 letters replayed to /default/failing")).to_be_visible()
    expect(reasons).to_contain_text("3 wait")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("main table tbody tr")).to_have_count(3)
    page.get_by_role("checkbox", name="Choose offset 1").check()
    page.get_by_role("button", name="Drop chosen …").click()
    command = "danube dlq drop /default/failing-fraud-dlq --offset 0:1"
    expect(page.locator("dialog .cli code")).to_have_text(command)
    expect(effect).to_contain_text("1 letter would be dropped")
    page.get_by_role("button", name="Drop", exact=True).click()
    expect(reasons).to_contain_text("2 wait")
    page.get_by_label("replayed and dropped ones, too").check()
    expect(page.locator("main table")).to_contain_text("done")
    left = console.call("GET", "topics/default/failing/subscriptions/fraud/dlq")
    assert [each["offset"] for each in left["letters"]] == [0, 2]
    assert console.call("GET", "topics/default/failing")["end_offset"] == 7
    # The refused dry run is the only thing that the browser reports.
    assert all("404" in each for each in console.errors)
    console.errors.clear()


def test_a_blocked_subscription_is_helped_from_the_overview(console: Console) -> None:
    page = console.page
    console.call("POST", "topics", {"topic": "/default/stuck"})
    path = "topics/default/stuck/subscriptions/ledger"
    console.call("POST", f"{path}:pull", {"start": "latest"})
    console.call("PATCH", f"{path}/policy", {"max_redelivery_count": 0, "poison": "block"})
    console.publish("/default/stuck", orders(1))
    (message,) = console.call("POST", f"{path}:pull", {"wait_s": 10})["messages"]
    console.call("POST", f"{path}:nack", {"ack_ids": [message["ack_id"]], "reason": "no such account"})
    console.open("/")
    item = page.locator(".attention li", has_text="ledger")
    expect(item).to_contain_text("blocked")
    item.get_by_role("button", name="Send it to dead letters …").click()
    page.get_by_role("button", name="Change it").click()
    expect(item).to_have_count(0)
    console.open("/subscriptions/default/stuck/ledger?tab=dead-letters")
    expect(page.locator(".reasons")).to_contain_text("no such account")


# --- All pages

PLACES = (
    "/",
    "/topics",
    "/topics/default/looked",
    "/topics/default/looked?at=0:3",
    "/topics/default/looked?from=live",
    "/topics/default/looked?tab=subscriptions",
    "/topics/default/looked?tab=producers",
    "/topics/default/looked?tab=history",
    "/topics/default/looked?tab=policies",
    "/topics/default/parts?tab=partitions",
    "/subscriptions",
    "/subscriptions/default/looked/billing",
    "/subscriptions/default/looked/billing?tab=dead-letters",
    "/subscriptions/default/looked/fraud?tab=dead-letters",
    "/schemas",
    "/schemas/looked-value",
    "/storage",
    "/jobs",
    "/connections",
    "/configuration",
    "/cluster",
    "/nowhere",
)


@pytest.fixture(scope="module")
def looked(chromium: Browser, broker_url: str) -> str:
    with console_of(chromium, broker_url) as maker:
        maker.call("POST", "topics", {"topic": "/default/looked"})
        maker.call("POST", "topics", {"topic": "/default/parts", "partitions": 3})
        maker.call("PATCH", "topics/default/looked/policies", {"message_ttl_s": 3600.0})
        maker.publish("/default/looked", orders(60))
        maker.subscribe("/default/looked", "billing", 20)
        maker.fail("/default/looked", "fraud", ["no such user", "card refused", "card refused"])
        for text in ('{"type": "object"}', '{"type": "object", "description": "of no shape"}'):
            maker.call("POST", "schemas/looked-value/versions", {"schema": {"schema_type": "json", "text": text}})
    return broker_url


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(theme: str, chromium: Browser, looked: str, axe: str) -> None:
    found = []
    with console_of(chromium, looked, theme) as console:
        for place in PLACES:
            console.open(place)
            console.page.wait_for_selector("main h1")
            expect(console.page.locator("main .loading")).to_have_count(0)
            found += _violations(console, axe, place)
        for place, button in (
            ("/topics/default/looked", "Publish"),
            ("/topics/default/looked", "Delete …"),
            ("/topics/default/looked?tab=policies", "Set … max_consumers"),
            ("/subscriptions/default/looked/fraud?tab=dead-letters", "Replay all …"),
            ("/schemas/looked-value", "Settings …"),
        ):
            console.open(place)
            console.page.get_by_role("button", name=button, exact=True).click()
            found += _violations(console, axe, button)
            console.page.keyboard.press("Escape")
        console.page.keyboard.press("/")
        found += _violations(console, axe, "search")
    assert not found, "\n".join(found)
    assert console.errors == []


def _violations(console: Console, axe: str, place: str) -> list[str]:
    """Return what axe-core finds on the page as it is."""
    console.page.evaluate(axe)
    said = console.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{place}: {each['id']} {node['target']} {node['failureSummary'][:200]}"
        for each in said["violations"]
        for node in each["nodes"]
    ]


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_no_page_is_wider_than_its_window(width: int, height: int, chromium: Browser, looked: str) -> None:
    with console_of(chromium, looked, "light", width, height) as console:
        for place in PLACES:
            console.open(place)
            console.page.wait_for_selector("main h1")
            expect(console.page.locator("main .loading")).to_have_count(0)
            assert console.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        assert console.errors == []


def test_keys_open_search_and_help_and_the_theme_is_remembered(console: Console, looked: str) -> None:
    page = console.page
    console.open("/")
    page.wait_for_selector("main h1")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keys")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("looked")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="/default/looked")).to_be_visible()
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert after != before
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after


# --- Hostile payloads

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    '{"a": "<svg onload=document.title=\'owned\'>", "<b>": {"__proto__": {"x": 1}}}',
    "javascript:document.title='owned'",
    "=cmd|' /C calc'!A0",
    "harmless \u202e\u2066exe.gpj\u2069",
    "\x00\x07\x1b[31mred",
)


def test_hostile_payloads_run_nothing(console: Console, tmp_path: Path) -> None:
    page = console.page
    console.call("POST", "topics", {"topic": "/default/hostile"})
    messages = [{"payload": text, "key": text, "attributes": {"type": text}} for text in HOSTILE]
    console.publish("/default/hostile", [*messages, {"payload": "<i>x" * 262_144, "key": "big"}])
    console.open("/topics/default/hostile")
    expect(page.locator("#filter-state")).to_contain_text(f"{len(messages) + 1} messages loaded")
    for offset in range(len(messages) + 1):
        page.get_by_role("button", name=str(offset), exact=True).click()
        detail = page.get_by_label("Message", exact=True)
        expect(detail).to_contain_text(f"Offset {offset}")
        for view in detail.get_by_role("group", name="View of the payload").get_by_role("button").all():
            view.click()
        assert page.locator("main img, main script, main iframe, main i i").count() == 0
        assert detail.locator("b, svg:not(.icon)").count() == 0
    expect(detail).to_contain_text("1.0 MiB")
    expect(detail).not_to_contain_text("Only the beginning")
    with page.expect_download() as waiting:
        detail.get_by_role("button", name="Download").click()
    assert Path(waiting.value.path()).read_text() == "<i>x" * 262_144
    shown = page.locator(".rows").inner_text()
    assert "\u202e" not in shown
    assert "\\u202e" in shown
    assert "owned" not in page.title()
    with page.expect_download() as waiting:
        page.locator("summary", has_text="Export").click()
        page.get_by_role("button", name=re.compile("^CSV")).click()
    rows = Path(waiting.value.path()).read_text()
    assert ",'=cmd|' /C calc'!A0," in rows
    assert not re.search(r"(^|,)\"?[=@+]", rows, re.MULTILINE)


def test_the_policy_of_the_page_refuses_what_it_did_not_bring(console: Console) -> None:
    page = console.page
    console.open("/")
    page.wait_for_selector("main h1")
    ran = page.evaluate(
        """() => new Promise((done) => {
          const script = document.createElement("script");
          script.textContent = "window.owned = true";
          document.body.append(script);
          const image = document.createElement("div");
          image.setAttribute("onclick", "window.owned = true");
          document.body.append(image);
          image.click();
          setTimeout(() => done(window.owned === true), 50);
        })"""
    )
    assert ran is False
    assert any("Content Security Policy" in each for each in console.errors)
    console.errors.clear()
