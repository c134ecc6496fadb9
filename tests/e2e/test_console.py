"""The console in a real browser: what people do on each page, with a key, under its own policy.

One server and one browser for all of it. Every page is looked at for the rules of accessibility
that a program can check, in light, in dark and on a phone's width; nothing may be asked of another
host, and the browser may complain of nothing.
"""

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import LiveServer, serving

playwright = pytest.importorskip("playwright.sync_api", reason="the extra `browser` is missing")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
SCOPES = ("infer", "index-write", "admin")
KEYS = {scope: f"a-key-that-is-only-for-{scope}" for scope in SCOPES}
WAIT_MS = 60_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with keys and the models that are shipped."""
    folder = tmp_path_factory.mktemp("console")
    listed = folder / "keys"
    listed.touch(0o600)
    listed.write_text("".join(f"{scope}-key {scope} {key}\n" for scope, key in KEYS.items()))
    with serving(folder / "models", folder, "--keys-file", str(listed)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as tools:
        # No sandbox: root, as whom a container's tests run, can't have one.
        opened = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Tab:
    """A tab, with what its browser complained of and whom it asked.

    Args:
        key: The API key that is kept in it; "" is none.
    """

    def __init__(self, browser: Any, url: str, key: str = "", **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(base_url=url, **options)
        self.context.set_default_timeout(WAIT_MS)
        if key:
            kept = f"if (!sessionStorage.length) sessionStorage['condensery-key'] = {key!r}"
            self.context.add_init_script(kept)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page = self.open()

    def open(self) -> Any:
        page = self.context.new_page()
        page.on("console", lambda said: self._hear(said.type, said.text))
        page.on("pageerror", lambda error: self._hear("error", str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        return page

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def close(self) -> None:
        self.context.close()
        elsewhere = [url for url in self.asked if not url.startswith((self.url, "blob:"))]
        assert elsewhere == []


@pytest.fixture
def tabs(server: LiveServer, browser: Any) -> Iterator[Any]:
    """Return a function that opens a tab; what they complained of and did not expect fails."""
    opened: list[Tab] = []

    def open_tab(key: str = KEYS["admin"], **options: Any) -> Tab:
        opened.append(Tab(browser, server.url, key, **options))
        return opened[-1]

    yield open_tab
    for tab in opened:
        tab.close()
        assert tab.complaints == []


def forgive(tab: Tab, *patterns: str) -> None:
    """Take out complaints that a test provoked: Chromium logs each reply of 400 and more."""
    for pattern in patterns:
        assert any(re.search(pattern, text) for text in tab.complaints), tab.complaints
    tab.complaints[:] = [
        text for text in tab.complaints if not any(re.search(p, text) for p in patterns)
    ]


def ask(page: Any, question: str = "How many traits did Mendel study?") -> None:
    page.goto("/")
    page.locator("option[value=samples]").first.wait_for(state="attached")
    page.get_by_label("Index", exact=True).select_option("samples")
    page.get_by_label("Question").fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator(".waterfall").first.wait_for()


def test_a_question_is_answered_with_its_place_its_cost_and_its_times(tabs):
    page = tabs().page
    ask(page)
    assert page.locator(".answer").inner_text() == "seven"
    passage = page.locator(".passage").first
    assert "gregor-mendel" in passage.inner_text()
    assert passage.locator("mark").inner_text() == "seven"
    stages = page.locator(".waterfall").inner_text()
    for stage in ("queue", "tokenise", "retrieve", "compress", "first token", "rest", "total"):
        assert stage in stages
    assert re.search(r"\d+ tokens of 1 passage became 8 vectors", page.inner_text("main"))
    assert "GFLOPs" in page.inner_text("main")
    page.get_by_text("All that the search found").click()
    page.locator(".passage.brief").nth(19).wait_for()


def test_compressed_and_plain_stand_side_by_side_in_one_click(tabs):
    page = tabs().page
    page.goto("/")
    page.locator("option[value=samples]").first.wait_for(state="attached")
    page.get_by_role("button", name="Compare with plain text").click()
    page.get_by_role("heading", name="From plain text").wait_for()
    assert page.locator(".answer").count() == 2
    assert "words in common (F1)" in page.inner_text("main")


def test_pasted_documents_are_asked_and_what_they_hold_is_text(tabs):
    page = tabs().page
    page.goto("/")
    page.get_by_label("pasted documents").check()
    hostile = "<img src=x onerror=alert(1)> The bridge of Porto was opened in 1886."
    page.get_by_label("Documents", exact=True).fill(f"{hostile}\n\nThe Danube is long.")
    page.get_by_label("Question").fill("When was the bridge of Porto opened?")
    page.get_by_label("Question").press("Control+Enter")
    page.locator(".waterfall").first.wait_for()
    assert hostile in page.locator(".passage .text").first.inner_text()
    assert page.locator("main img").count() == 0


def test_keyboard_alone_asks_and_goes_from_page_to_page(tabs):
    page = tabs().page
    page.goto("/")
    page.locator("option[value=samples]").first.wait_for(state="attached")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("Where was van Gogh born?")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Ask":
            break
    page.keyboard.press("Enter")
    page.locator(".waterfall").first.wait_for()
    page.get_by_role("link", name="Live").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert page.url.endswith("/console/live")
    page.go_back()
    assert page.get_by_label("Question").input_value() == "Where was van Gogh born?"
    assert page.locator(".waterfall").first.is_visible(), "what was there is still there"


def test_live_shows_what_the_server_did_meanwhile(tabs):
    page = tabs().page
    ask(page)
    page.get_by_role("link", name="Live").click()
    page.locator(".chart").first.wait_for()
    titles = page.locator(".chart figcaption span").all_inner_texts()
    assert {"Requests", "Queue", "Batch fill", "Tokens", "Cache room", "Memory"} <= {*titles}
    assert re.search(
        r"requests\s+[1-9]", page.inner_text('[aria-label="Since the server\'s start"]')
    )
    assert "oscar-mini" in page.inner_text("table")
    kept = page.evaluate("JSON.parse(sessionStorage['condensery-live']).length")
    page.reload()
    page.locator(".chart").first.wait_for()
    assert page.evaluate("JSON.parse(sessionStorage['condensery-live']).length") >= kept


def test_a_key_is_asked_for_once_and_stays_in_its_tab(tabs):
    tab = tabs(key="")
    page = tab.page
    page.goto("/")
    page.get_by_role("textbox", name="Key").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    page.get_by_text("does not know the key").wait_for()
    page.get_by_role("textbox", name="Key").fill(KEYS["infer"])
    page.keyboard.press("Enter")
    page.locator("option[value=samples]").first.wait_for(state="attached")
    assert not page.locator("dialog").is_visible()
    page.reload()
    page.locator("option[value=samples]").first.wait_for(state="attached")
    assert KEYS["infer"] not in page.content()
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    other = tab.open()
    other.goto("/")
    other.get_by_role("textbox", name="Key").wait_for()
    forgive(tab, "401")


def test_without_a_server_it_says_so_and_keeps_what_was_typed(tabs):
    tab = tabs()
    page = tab.page
    page.goto("/")
    page.locator("option[value=samples]").first.wait_for(state="attached")
    page.get_by_label("Question").fill("A question of some length?")
    tab.context.set_offline(True)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator(".failure", has_text="No reply from").wait_for()
    assert page.get_by_label("Question").input_value() == "A question of some length?"
    tab.context.set_offline(False)
    page.get_by_role("button", name="Try again").click()
    page.locator(".waterfall").first.wait_for()
    page.locator("#server", has_text="ready").wait_for()
    forgive(tab, "ERR_INTERNET_DISCONNECTED")


def test_an_answer_that_breaks_off_keeps_its_words_and_says_why(tabs):
    tab = tabs()
    page = tab.page
    part = {"content": [{"type": "text", "payload": {"value": "sev"}}]}
    cut = f"event: message\ndata: {json.dumps({'delta': part})}\n\n"
    failed = {"error": {"message": "The model failed.", "code": "model_fault"}}
    bodies = [cut, f"{cut}event: error\ndata: {json.dumps(failed)}\n\n"]
    replies = iter(bodies)
    events = {"content_type": "text/event-stream"}
    page.route("**/v1/rag/answer", lambda route: route.fulfill(body=next(replies), **events))
    page.goto("/")
    page.locator("option[value=samples]").first.wait_for(state="attached")
    for reason in ("the connection ended", "The model failed."):
        page.get_by_role("button", name="Ask", exact=True).click()
        page.locator(".failure", has_text=reason).wait_for()
        assert page.locator(".answer").inner_text() == "sev"


def test_texts_are_compared_by_two_encoders_and_ranked(tabs):
    page = tabs().page
    page.goto("/console/embed")
    page.locator("option[value=minilm-l6-effir]").first.wait_for(state="attached")
    page.get_by_label("Texts, one a line").fill("a river\na stream of water\na tax form")
    page.get_by_role("button", name="Compare the texts").click()
    page.locator(".matrix").nth(1).wait_for()
    for matrix in page.locator(".matrix").all():
        rows = [row.locator("td").all_inner_texts() for row in matrix.locator("tbody tr").all()]
        values = [[float(value) for value in row] for row in rows]
        assert [values[i][i] for i in range(3)] == [1, 1, 1]
        assert values[0][1] == values[1][0] > values[0][2]
    page.get_by_label("Query, for a ranked list").fill("flowing water")
    page.get_by_role("button", name="Rank them").click()
    page.locator("table", has_text="moved").nth(1).wait_for()
    for ranking in page.locator("tbody").all():
        assert "a tax form" in ranking.locator("tr").last.inner_text()


def test_an_index_is_made_filled_asked_kept_and_rebuilt(tabs, tmp_path):
    tab = tabs()
    page = tab.page
    page.on("dialog", lambda question: question.accept())
    page.goto("/console/indexes")
    page.get_by_text("Make an index").click()
    page.get_by_label("Name").fill("notes")
    page.get_by_role("button", name="Make it").click()
    page.wait_for_url("**/console/indexes/notes")
    (tmp_path / "guide.md").write_text("# Porto\n\nThe city has six bridges.\n")
    years = [
        {"id": "a", "text": "The office moved.", "year": 2026},
        {"id": "b", "text": "Radium.", "year": 1898},
    ]
    (tmp_path / "years.jsonl").write_text("".join(json.dumps(line) + "\n" for line in years))
    (tmp_path / "picture.bin").write_bytes(bytes(range(256)))
    page.locator("#upload-files").set_input_files(sorted(tmp_path.glob("*.*")))
    page.get_by_text("3 documents written of 3 files; 1 of them could not be read").wait_for()
    assert "not read" in page.locator("tr", has_text="picture.bin").inner_text()

    for mode in ("dense", "bm25", "hybrid"):
        page.get_by_label("Find by").select_option(mode)
        page.get_by_label("Look for").fill("bridges")
        page.get_by_role("button", name="Find").click()
        page.locator(".passage", has_text="six bridges").first.wait_for()
    page.get_by_role("button", name="Add a condition").first.click()
    page.get_by_label("Field of the metadata").fill("year")
    page.get_by_label("Comparison").select_option("gte")
    page.get_by_label("Value").fill("2000")
    page.get_by_label("Look for").fill("office")
    page.get_by_role("button", name="Find").click()
    page.get_by_text("1 passage in").wait_for()
    page.get_by_text("Browse its documents").click()
    page.get_by_text("3 documents, 3 passages").wait_for()

    page.get_by_label("Alias", exact=True).fill("live")
    page.get_by_label("Leads to").select_option("notes")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_text("live leads to notes.").wait_for()
    page.get_by_role("button", name="Make one").click()
    page.get_by_text("A snapshot is made").wait_for()
    page.get_by_text("Rebuild, also for another encoder").click()
    page.get_by_role("button", name="Rebuild", exact=True).click()
    page.get_by_text("Rebuilt for minilm-l6").wait_for()
    forgive(tab, "404")  # of the rebuild, before there was one


def test_a_second_tab_hears_of_a_write_and_replaces_nothing_unasked(tabs):
    tab = tabs()
    first, second = tab.page, tab.open()
    asked: list[str] = []
    second.on("dialog", lambda question: (asked.append(question.message), question.dismiss()))
    for page in (first, second):
        page.goto("/console/indexes/samples")
        page.get_by_text("Type a document").click()
        page.get_by_label("Id", exact=True).fill("two-tabs")
        page.get_by_label("Text", exact=True).fill("from the second")
    first.get_by_label("Text", exact=True).fill("from the first")
    first.get_by_role("button", name="Add the document").click()
    first.get_by_text("Added: 1 passage").wait_for()
    second.get_by_text("Another tab changed index samples").wait_for()
    assert second.get_by_label("Text", exact=True).input_value() == "from the second"
    with second.expect_event("dialog"):
        second.get_by_role("button", name="Add the document").click()
    assert "from the first" in asked[0]
    assert second.get_by_label("Text", exact=True).input_value() == "from the second"
    first.on("dialog", lambda question: question.accept())  # it has nothing to lose any more


def test_models_are_verified_named_unloaded_and_loaded_again(tabs):
    page = tabs().page
    page.on("dialog", lambda question: question.accept())
    page.goto("/console/models")
    page.get_by_role("button", name="Verify minilm-l6-shrp").click()
    page.get_by_text("Every file is what its hash says.").wait_for()
    page.get_by_label("Alias", exact=True).fill("best")
    page.get_by_label("Leads to").fill("oscar-mini@samples")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("button", name="Remove the alias best").click()
    page.get_by_role("button", name="Remove the alias best").wait_for(state="detached")
    page.get_by_role("button", name="Unload minilm-l6-shrp").click()
    # Exactly: "Unload ..." holds these words too.
    page.get_by_role("button", name="Load minilm-l6-shrp 3", exact=True).click()
    page.get_by_text("minilm-l6-shrp 3 serves, loaded in").wait_for()
    page.get_by_role("link", name="oscar-mini").click()
    page.locator("article table").first.wait_for()
    # An image has no source until its bytes have come, and decode() fails then instead of waiting.
    # wait_for_function would evaluate a string once more, which the page's policy forbids.
    plot = page.locator("article img[src]").first
    assert plot.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100


def test_a_key_without_the_scope_is_told_so_and_loses_nothing(tabs, tmp_path):
    tab = tabs(KEYS["infer"])
    page = tab.page
    page.goto("/console/indexes/samples")
    (tmp_path / "a.txt").write_text("A text.")
    page.locator("#upload-files").set_input_files(tmp_path / "a.txt")
    failed = page.locator(".failure", has_text="index-write")
    failed.wait_for()
    page.get_by_text("Type a document").click()
    page.get_by_label("Id", exact=True).fill("mine")
    page.get_by_label("Text", exact=True).fill("A text of mine.")
    page.get_by_role("button", name="Add the document").click()
    page.locator("form .failure", has_text="index-write").wait_for()
    assert page.get_by_label("Text", exact=True).input_value() == "A text of mine."
    page.get_by_label("Id", exact=True).fill("")
    page.get_by_label("Text", exact=True).fill("")
    page.goto("/console/models")
    page.locator("td", has_text="oscar-pair").wait_for()
    assert "admin" in page.locator("[aria-label='Stored models']").inner_text()
    forgive(tab, "403")


PAGES = {
    "ask": ("/", ".empty"),
    "embed": ("/console/embed", "option[value=minilm-l6]"),
    "indexes": ("/console/indexes", "td"),
    "index": ("/console/indexes/samples", ".drop"),
    "models": ("/console/models", "td"),
    "model": ("/console/models/oscar-mini", "article table"),
    "live": ("/console/live", ".chart"),
}
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 360, "height": 740}},
}


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_can_be_read_by_all_in(tabs, look, subtests, tmp_path):
    tab = tabs(**LOOKS[look])
    for name, (path, there) in PAGES.items():
        with subtests.test(name):
            tab.page.goto(path)
            tab.page.locator(there).first.wait_for(state="attached")
            assert tab.page.title().endswith("Condensery")
            found = axe.Axe().run(tab.page).response["violations"]
            assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == []
            wide = "document.documentElement.scrollWidth - innerWidth"
            assert tab.page.evaluate(wide) <= 0, "it must be scrolled sideways"
            tab.page.screenshot(path=tmp_path / f"{name}-{look}.png", full_page=True)


def test_the_policy_stops_what_a_page_must_not_run(tabs):
    """The browser itself enforces it: a script that somebody smuggled in does not run."""
    tab = tabs()
    page = tab.page
    page.goto("/")
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            try { script.textContent = "window.ran = 1"; } catch { window.refused = 1; }
            document.head.append(script);
        }"""
    )
    assert page.evaluate("window.ran") is None
    with pytest.raises(playwright.Error, match=r"TrustedHTML|Trusted"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    tab.complaints.clear()  # the browser said so
