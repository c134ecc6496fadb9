"""The console's files: whole, of the right types, under a policy that they keep, without a key."""

import hashlib
import re
from importlib.resources import files

import pytest

from condensery.api.rest.console import CONSOLE_POLICY, PAGES, console_files
from condensery.auth import Key

FOLDER = files("condensery") / "console"
NAMES = sorted(entry.name for entry in FOLDER.iterdir())
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ["/", "/console", "/console/", "/console/models/a/b"])
async def test_a_browser_gets_the_console(client, path):
    reply = await client.get(path)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.text == text_of("index.html")


async def test_every_page_and_every_file_is_sent_as_what_it_is(client):
    for path in (*PAGES, *(name for name in NAMES if name != "index.html")):
        reply = await client.get(f"/console/{path}")
        assert reply.status_code == 200, path
        suffix = f".{path.rpartition('.')[2]}" if "." in path else ".html"
        assert reply.headers["content-type"].startswith(TYPES[suffix]), path
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["content-security-policy"] == CONSOLE_POLICY


async def test_tei_clients_post_where_the_console_is(client):
    reply = await client.post("/", json={"inputs": "a"})
    assert reply.status_code == 200
    assert len(reply.json()) == 1


async def test_the_head_alone_has_the_same_headers(client):
    whole, head = await client.get("/"), await client.head("/")
    assert head.status_code == 200
    for name in ("content-type", "etag", "content-security-policy"):
        assert head.headers[name] == whole.headers[name]


async def test_a_file_that_has_not_changed_is_not_sent_again(client):
    first = await client.get("/console/app.js")
    again = await client.get("/console/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == CONSOLE_POLICY
    other = await client.get("/console/app.js", headers={"if-none-match": '"of another version"'})
    assert other.content == first.content


@pytest.mark.parametrize(
    "path", ["nope", "app.js.map", "../auth.py", "%2e%2e/auth.py", "index.html", "Models"]
)
async def test_there_is_nothing_but_the_consoles_own(client, path):
    reply = await client.get(f"/console/{path}")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


async def test_files_need_no_key_and_what_they_ask_for_does(client, services):
    digest = hashlib.sha256(b"a-key-of-more-than-24-characters").digest()
    services.keys.replace([Key("one", frozenset({"infer"}), digest)])
    for path in ("/", "/console/live", "/console/app.js"):
        assert (await client.get(path)).status_code == 200
    assert (await client.get("/v1/models")).status_code == 401


def test_nothing_is_inline_evaluated_or_from_elsewhere():
    """What the policy forbids is not there to be forbidden."""
    frame = text_of("index.html")
    assert re.findall(r"<script(?![^>]* src=\"/console/[a-z]+\.js\")", frame) == []
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=", frame) == []
    for name in NAMES:
        text = text_of(name).replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", text) == [], name
        assert re.findall(r"\beval\(|new Function|innerHTML|\.style\b|document\.write", text) == []


def test_modules_import_modules_that_are_there():
    for name in NAMES:
        if name.endswith(".js"):
            for wanted in re.findall(r"from \"\./([a-z]+\.js)\"", text_of(name)):
                assert wanted in NAMES, f"{name} imports {wanted}"
    named = re.findall(r"(?:src|href)=\"/console/([a-z]+\.[a-z]+)\"", text_of("index.html"))
    assert set(named) <= set(NAMES)


def test_every_file_of_the_folder_is_served():
    assert sorted(console_files()) == NAMES
