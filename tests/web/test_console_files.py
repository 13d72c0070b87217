"""The files of the console: served by name only, complete, within their budget, and nothing in them runs inline."""

from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import pytest
from web_harness import web_broker

from danube.model.policies import TopicPolicies
from danube.web.console import CONTENT_TYPES, ConsoleFiles
from danube.web.packaged import STATIC, console_files

BUDGET_BYTES = 305_000
VENDOR = STATIC / "vendor"
# A change of a vendored file is a change of this line, too: by hand, after its new version was looked at.
VENDORED = {
    "htm-preact.module.js": ("htm", "3.1.1", "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7")
}
SOURCES = sorted(path for path in STATIC.rglob("*.js") if VENDOR not in path.parents)


def names() -> list[str]:
    return sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file())


# --- Serving


def test_only_the_given_names_are_served() -> None:
    read: list[str] = []

    def contents(name: str) -> bytes:
        read.append(name)
        return name.encode()

    files = ConsoleFiles(["index.html", "js/app.js", "notes.md", "logo.svg"], contents)
    start = files.answer("/")
    assert start is not None
    assert (start.status, start.body, start.content_type) == (200, b"index.html", "text/html; charset=utf-8")
    assert ("Cache-Control", "no-cache") in start.headers
    for _ in range(2):
        script = files.answer("/static/js/app.js")
        assert script is not None
        assert script.content_type == "text/javascript; charset=utf-8"
    assert read == ["index.html", "js/app.js"], "each is read once"
    for path in (
        "/static/notes.md",
        "/static/",
        "/static",
        "/static/../face.py",
        "/static//etc/passwd",
        "/index.html",
        "/x",
    ):
        assert files.answer(path) is None, path
    assert read == ["index.html", "js/app.js"]


def test_every_file_of_the_package_is_served_with_its_type() -> None:
    files = console_files()
    for name in names():
        suffix = PurePosixPath(name).suffix
        found = files.answer(f"/static/{name}")
        if suffix == ".json":  # the list of vendored files is for people and tests
            assert found is None
            continue
        assert found is not None, name
        assert found.content_type == CONTENT_TYPES[suffix]
        assert found.body == (STATIC / name).read_bytes()


async def test_a_broker_serves_the_console_beside_its_api(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        start = await web.ask("GET", "/")
        assert start.status == 200
        assert start.headers["content-type"] == "text/html; charset=utf-8"
        policy = start.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert start.headers["x-content-type-options"] == "nosniff"
        tag = start.headers["etag"]
        assert (await web.ask("GET", "/", headers={"If-None-Match": tag})).status == 304
        packed = await web.ask("GET", "/static/js/app.js", headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert (await web.ask("GET", "/static/js/none.js")).status == 404
        assert (await web.ask("GET", "/static/%2e%2e/face.py")).status in (400, 404)
        assert (await web.ask("POST", "/", {})).status == 404
        assert (await web.ask("GET", "/", headers={"Host": "evil.example"})).status == 421, "no DNS rebinding"


# --- What is in the repository


def test_the_budget_is_kept() -> None:
    total = sum((STATIC / name).stat().st_size for name in names())
    assert total <= BUDGET_BYTES, f"{total:,} bytes; see what can be left out"


def test_vendored_files_are_those_of_their_packages() -> None:
    listed = json.loads((VENDOR / "VERSIONS.json").read_text())
    assert listed.keys() == VENDORED.keys()
    licenses = set()
    for name, (package, version, sha256) in VENDORED.items():
        row = listed[name]
        assert (row["package"], row["version"], row["sha256"]) == (package, version, sha256)
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == sha256
        licenses |= set(row["licenses"])
    present = {path.name for path in VENDOR.iterdir()}
    assert present == VENDORED.keys() | licenses | {"VERSIONS.json"}


class _Page(HTMLParser):
    """What a page refers to, and what would run or apply inline."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.inline: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.references += [str(given[name]) for name in ("src", "href") if name in given]
        self.inline += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        self._script = tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._script = False


def test_the_page_refers_to_files_that_exist_and_has_nothing_inline() -> None:
    page = _Page()
    page.feed((STATIC / "index.html").read_text())
    assert page.inline == []
    scripts = {f"static/{path.relative_to(STATIC).as_posix()}" for path in STATIC.rglob("*.js")}
    assert scripts <= set(page.references), "a module that is not preloaded is asked for late"
    for reference in page.references:
        assert (STATIC / reference.removeprefix("static/")).is_file(), reference


def imports_of(path: Path) -> set[Path]:
    found = re.findall(r'^(?:import|export)\b[^;]*?from "([^"]+)";', path.read_text(), re.MULTILINE | re.DOTALL)
    assert all(each.startswith(".") for each in found), f"{path.name}: a browser cannot find {found}"
    return {(path.parent / each).resolve() for each in found}


def test_every_script_is_reached_from_the_page_and_exists() -> None:
    reached: set[Path] = {STATIC / "js" / "theme.js"}
    left = [STATIC / "js" / "app.js"]
    while left:
        path = left.pop()
        if path in reached:
            continue
        assert path.is_file(), path
        reached.add(path)
        if VENDOR not in path.parents:
            left += imports_of(path)
    assert reached == set(STATIC.rglob("*.js"))


def test_imported_names_are_used_and_exported() -> None:
    for path in SOURCES:
        text = path.read_text()
        for names_, target in re.findall(r'^import \{([^}]*)\} from "([^"]+)";', text, re.MULTILINE):
            source = (path.parent / target).resolve().read_text()
            for name in (each.strip() for each in names_.split(",") if each.strip()):
                assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{path.name} does not use {name}"
                exported = rf"export (?:async )?(?:const|function|class) {name}\b|export \{{[^}}]*\b{name}\b"
                assert re.search(exported, source), f"{target} exports no {name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_script_makes_markup_or_code_of_text(path: Path) -> None:
    text = path.read_text()
    forbidden = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc")
    for each in forbidden:
        assert each not in text, f"{path.name} uses {each}"
    assert not re.search(r'\sstyle="', text), "styles are set by properties or classes"
    assert not re.search(r'\son[a-z]+="', text), "handlers are functions"
    assert "javascript:" not in text
    assert len(text.splitlines()) <= 500


def test_the_page_knows_each_policy_of_topics() -> None:
    table = re.search(r"export const POLICIES = \{(.*?)\n\};", (STATIC / "js" / "notation.js").read_text(), re.DOTALL)
    assert table is not None
    assert set(re.findall(r"^  (\w+): \{", table[1], re.MULTILINE)) == set(TopicPolicies.__struct_fields__)
