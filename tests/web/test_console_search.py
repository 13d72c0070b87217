"""The console in real Chromium: a search of a whole topic, a filter that cannot be read, and who has a message."""

from __future__ import annotations

import re

import pytest
from console_browser import Console, axe, broker_url, chromium, console, console_of, orders
from playwright.sync_api import Browser, expect

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

__all__ = ["axe", "broker_url", "chromium", "console"]


def test_search_a_whole_topic_and_see_who_has_a_message(console: Console) -> None:
    page = console.page
    console.call("POST", "topics", {"topic": "/default/searched"})
    console.publish("/default/searched", orders(1_500))
    console.subscribe("/default/searched", "billing", 3)
    console.open("/topics/default/searched?tab=messages")
    state, box = page.locator("#filter-state"), page.get_by_label("Filter messages")
    expect(state).to_contain_text("200 messages loaded")

    box.fill("value.id == and value.total")
    expect(state).to_contain_text("a value is missing after ==")
    expect(page.locator(".pointer")).to_have_text(re.compile(r"value\.id == and value\.total\n {12}\^"))
    expect(page.get_by_role("button", name="Search all")).to_be_disabled()

    box.fill('value.user.name == "user-2" and value.id < 30')
    expect(page.locator(".rows")).to_contain_text("No loaded message matches")
    box.press("Enter")
    expect(state).to_contain_text("3 matches")
    expect(state).to_contain_text("1,500 of 1,500 messages searched · searched to the end")
    expect(page.locator(".rows tbody button.link")).to_have_text(["2", "12", "22"])

    page.get_by_role("button", name="2", exact=True).click()
    who = page.get_by_label("Who has it")
    expect(who).to_contain_text("billing")
    expect(who).to_contain_text("acknowledged")
    page.get_by_role("button", name="12", exact=True).click()
    expect(who).to_contain_text(re.compile("in flight at consumer|not delivered yet|waits for"))

    box.fill("value.id >= 0")
    box.press("Enter")
    expect(state).to_contain_text("a search ends after 1,000 matches")
    page.get_by_role("button", name="Search on").click()
    expect(state).to_contain_text("1,500 matches")
    page.get_by_role("button", name="Close the search").click()
    expect(state).to_contain_text("200 messages loaded")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_in_a_search(theme: str, chromium: Browser, broker_url: str, axe: str) -> None:
    with console_of(chromium, broker_url, theme) as shown:
        topic = f"/default/judged-{theme}"
        shown.call("POST", "topics", {"topic": topic})
        shown.publish(topic, orders(20))
        shown.subscribe(topic, "billing", 1)
        shown.open(f"/topics{topic}?tab=messages&at=0:0&q=user-3")
        shown.page.get_by_role("button", name="Search all").click()
        expect(shown.page.locator("#filter-state")).to_contain_text("2 matches")
        expect(shown.page.get_by_label("Who has it")).to_contain_text("acknowledged")
        shown.page.evaluate(axe)
        found = shown.page.evaluate("axe.run()")
        assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
        shown.page.get_by_label("Filter messages").fill("value.x ==")
        expect(shown.page.locator(".pointer")).to_be_visible()
        found = shown.page.evaluate("axe.run()")
        assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
        assert shown.errors == []
