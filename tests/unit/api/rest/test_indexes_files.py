"""``POST /v1/indexes/{name}/files``: what comes as a form is written as ``index add`` writes it."""

import asyncio
import gzip
import io
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fuzz.rest_mutations import Asked, cut, flip, snippet
from tests.unit.conftest import StandInEncoder, StandInRegistry, info
from tests.unit.index.lives import live

from condensery.api.rest import forms
from condensery.api.rest.app import build_app
from condensery.documents import files
from condensery.documents.files import name_upload
from condensery.errors import Overloaded, StorageFull
from condensery.index.store import IndexStore
from condensery.jobs.files import Spool
from condensery.jobs.services import Services
from condensery.metrics import Metrics

FILES = "/v1/indexes/kb/files"
DISPOSITION = b'content-disposition: form-data; name="files"; filename="a.txt"\r\n\r\n'
GUIDE = b"# Radium\n\nIt glows.\n\n# Helium\n\nIt rises.\n"


@pytest.fixture
async def kb(client):
    """An empty index, and what uploads files to it: pairs of a name and bytes."""
    await client.put("/v1/indexes/kb")

    async def upload(*files, status=200, **fields):
        parts = [("files", file) for file in files]
        reply = await client.post(FILES, files=parts, data=fields)
        assert reply.status_code == status, reply.text
        return reply.json()

    return upload


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names of what may be gone already


def form_of(*files: tuple[str, bytes], **fields: str) -> bytes:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    parts = [("files", file) for file in files]
    return httpx.Request("POST", "http://a", files=parts, data=fields, headers=headers).read()


async def stored(client) -> dict[str, Any]:
    found: dict[str, Any] = {}
    after = None
    while True:
        body = {"limit": 50, **({"after": after} if after else {})}
        page = (await client.post("/v1/indexes/kb/documents/scroll", json=body)).json()
        found |= {document["id"]: document for document in page["documents"]}
        if (after := page["next"]) is None:
            return found


def docx_of(*paragraphs: str) -> bytes:
    docx = pytest.importorskip("docx")
    document, content = docx.Document(), io.BytesIO()
    document.add_heading("Radium", 1)
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    document.save(content)
    return content.getvalue()


async def test_each_kind_of_file_is_written_under_its_name(client, kb):
    rows = [{"id": "own", "text": "of its own", "metadata": {"n": 1}}]
    added = await kb(
        ("guide/index.md", GUIDE),
        ("guide/sub/index.md", b"# Radium\n\nAnother one.\n"),
        ("plain.txt", b"No headings.\n"),
        ("page.html", b"<h1>Neon</h1><p>It shines.</p>"),
        ("rows.jsonl.gz", gzip.compress(json.dumps(rows[0]).encode())),
        ("list.json", json.dumps([{"id": "listed", "text": "in a list"}]).encode()),
        ("table.csv", b"text,year\nIt glows,1898\n"),
        ("word.docx", docx_of("It glows in Word.")),
    )
    assert [file["reason"] for file in added["files"]] == [None] * 8
    documents = await stored(client)
    assert set(documents) == {
        "guide/index.md#radium",
        "guide/index.md#helium",
        "guide/sub/index.md#radium",
        "plain.txt#part",
        "page.html#neon",
        "own",
        "listed",
        "table.csv#1",
        "word.docx#radium",
    }
    assert documents["guide/index.md#radium"]["text"] == "Radium\n\nIt glows."
    about = documents["guide/index.md#radium"]["metadata"]["file"]
    assert (about["name"], about["folder"]) == ("guide/index.md", "guide")
    assert documents["own"] == {**rows[0], "passages": None}
    assert {name: added[name] for name in ("index", "documents", "unchanged", "deleted")} == {
        "index": "kb",
        "documents": 9,
        "unchanged": 0,
        "deleted": 0,
    }


async def test_a_file_of_the_same_name_is_replaced_whole_and_others_stay(client, kb):
    await kb(("a/index.md", GUIDE), ("b/index.md", GUIDE))
    again = await kb(("a/index.md", GUIDE))
    assert (again["documents"], again["unchanged"]) == (0, 2)
    changed = await kb(("a/index.md", b"# Helium\n\nIt rises.\n\n# Neon\n\nIt shines.\n"))
    assert (changed["documents"], changed["deleted"]) == (2, 1)
    assert set(await stored(client)) == {
        "a/index.md#helium",
        "a/index.md#neon",
        "b/index.md#helium",
        "b/index.md#radium",
    }
    whole = await kb(("b/index.md", GUIDE), again="true")
    assert (whole["documents"], whole["unchanged"]) == (2, 0)


async def test_what_cant_be_read_is_listed_and_its_neighbours_are_written(client, kb):
    bad = b'{"id": "good", "text": "x"}\n{"id": "bad"}\n'
    added = await kb(
        ("a.md", GUIDE),
        ("latin.txt", "für".encode("latin-1")),
        ("a.zip", b"PK\3\4 not text"),
        ("README", b"no suffix"),
        ("bad.jsonl", bad),
        ("empty.md", b""),
        ("broken.pdf", b"%PDF-1.7 broken"),
        ("two\nlines.md", b"# Odd\n\nName.\n"),
        ("a.md", b"# Twice\n\nNot this.\n"),
        ("z.txt", b"The last one.\n"),
    )
    reasons = {file["name"]: file["reason"] for file in added["files"][:-2]}
    assert "not UTF-8" in reasons["latin.txt"]
    assert ".zip is no kind" in reasons["a.zip"]
    assert "is no kind" in reasons["README"]
    assert "line 2: text" in reasons["bad.jsonl"]
    assert "no text" in reasons["empty.md"]
    assert reasons["broken.pdf"]
    assert "came before" in added["files"][-2]["reason"]
    assert set(await stored(client)) == {
        "a.md#radium",
        "a.md#helium",
        "good",
        "two%0Alines.md#odd",
        "z.txt#part",
    }
    latin = await kb(("latin.txt", "für".encode("latin-1")), encoding="latin-1")
    assert latin["documents"] == 1


async def test_names_lead_nowhere_above_the_index(client, kb):
    await kb(
        ("/etc/passwd.txt", b"one"),
        ("../../up.txt", b"two"),
        ("a/../b//./c.txt", b"three"),
        ("..\\windows\\d.txt", b"four"),
        prefix="/notes/",
    )
    assert set(await stored(client)) == {
        "notes/etc/passwd.txt#part",
        "notes/up.txt#part",
        "notes/b/c.txt#part",
        "notes/windows/d.txt#part",
    }
    assert name_upload("..").path == name_upload("/").path == ""
    assert name_upload("guide/sub/a.md").folder == "guide"
    (unnamed,) = (await kb(("..", b"x")))["files"]
    assert unnamed["reason"]


async def test_columns_and_kinds_are_as_the_form_says(client, kb):
    table = b"key;title;body\nk1;One;first\n"
    await kb(("t.dat", table), format="csv", id_column="key", text_column=["title", "body"])
    assert (await stored(client))["k1"]["text"] == "One\nfirst"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"format": "zip"}, "format"),
        ({"encoding": "utf-9"}, "encoding"),
        ({"colour": "red"}, "colour"),
        ({"again": "perhaps"}, "again"),
        ({"prefix": ["a", "b"]}, "prefix"),
        ({"files": "a text"}, "files"),
        ({"id_column": "x" * 5000}, "id_column"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_written(client, kb, fields, param):
    refused = await kb(("a.md", GUIDE), status=400, **fields)
    assert refused["error"]["param"] == param
    assert await stored(client) == {}


async def test_a_form_without_files_or_with_too_many_is_refused(client, kb, monkeypatch):
    for parts in ([("files", ("", b""))], [("picture", ("a.md", GUIDE))]):
        reply = await client.post(FILES, files=parts)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == ("files" if len(parts[0][0]) == 5 else "picture")
    monkeypatch.setattr(forms, "MAX_FILES", 3)
    many = [(f"{number}.txt", b"x") for number in range(4)]
    assert (await kb(*many, status=400))["error"]["param"] == "files"
    assert (await kb(*many[:3]))["documents"] == 3


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (b'{"files": []}', "application/json"),
        (b"", "multipart/form-data"),
        (b"no form", "multipart/form-data; boundary=x"),
        (b'--x\r\ncontent-disposition: form-data; name="files"; filename="a.md"\r\n\r\n# A', None),
        (b"--x\r\ncontent-type: text/plain\r\n\r\nnameless\r\n--x--\r\n", None),
        (b"--x\r\nbad header\r\n\r\n", None),
        (b"--x--", "multipart/form-data; boundary=" + "x" * 300),
    ],
)
async def test_what_is_no_whole_form_is_refused(client, kb, body, media):
    headers = {"content-type": media or "multipart/form-data; boundary=x"}
    reply = await client.post(FILES, content=body, headers=headers)
    assert reply.status_code == 400, reply.text
    assert await stored(client) == {}


async def test_a_request_over_its_limit_is_refused_as_announced_and_as_it_grows(
    line, services, kb, client
):
    object.__setattr__(services.limits, "max_upload_bytes", 2000)
    headers = {"content-type": "multipart/form-data; boundary=x"}
    announced = await line(FILES, b"x" * 2001, headers=headers).run()
    growing = [b"--x\r\n", DISPOSITION, *[b"x" * 700] * 4]
    grown = await line(FILES, growing, headers=headers).run()
    huge = {**headers, "content-length": str(2 * 2**30), "expect": "100-continue"}
    early = await line(FILES, [b""], headers=huge).run()
    assert early.received == 0
    for asked in (announced, grown, early):
        assert (asked.status, asked.error["param"]) == (413, "body")
        assert "(max_upload_bytes)" in asked.error["message"]
    assert await stored(client) == {}


@pytest.mark.parametrize("announced", [True, False])
async def test_a_client_that_sends_far_too_much_reads_why(server, services, announced):
    object.__setattr__(services.limits, "max_upload_bytes", 2**20)
    size = 40 * 2**20  # more than is read before the reply

    async def body():
        yield b"--x\r\n" + DISPOSITION
        for _ in range(size // 2**20):
            yield bytes(2**20)

    headers = {"content-type": "multipart/form-data; boundary=x"}
    if announced:
        headers["content-length"] = str(size + len(b"--x\r\n" + DISPOSITION))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server}", timeout=60) as client:
        await client.put("/v1/indexes/kb")
        reply = await client.post(FILES, content=body(), headers=headers)
        assert reply.status_code == 413
        assert "(max_upload_bytes)" in reply.json()["error"]["message"]


async def test_a_file_over_the_limit_of_those_read_whole_is_listed(client, kb, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 50)
    added = await kb(("long.md", b"x" * 51), ("a.md", GUIDE), ("long.csv", b"text\n" + b"x\n" * 60))
    assert [file["documents"] for file in added["files"]] == [0, 2, 60]
    assert added["files"][0]["reason"]


async def test_a_body_counts_on_the_disk_and_not_in_memory(line, services, kb):
    """The index's limit of documents' bodies, and of all in flight, is far below."""
    services.admission.max_bytes = 1000
    body = [b"--x\r\n", DISPOSITION, *[b"a line of text\n" * 1000] * 20, b"\r\n--x--"]
    headers = {"content-type": "multipart/form-data; boundary=x"}
    beside = line("/embed", {"inputs": "a"})
    asked = line(FILES, body, headers=headers)
    await asyncio.gather(asked.run(), beside.run())
    assert (asked.status, beside.status) == (200, 200)
    assert services.admission.bytes == 0


async def test_a_client_that_leaves_leaves_nothing_behind(line, services, kb, client):
    headers = {"content-type": "multipart/form-data; boundary=x"}
    before = open_files()
    piece = b"text " * 2**18  # so that some of it is on the disk
    asked = line(FILES, [b"--x\r\n", DISPOSITION, piece], headers=headers, unfinished=True)
    asked.start()
    await asked.until(lambda: len(open_files()) > len(before) and not asked.pieces)
    asked.leave()
    await asked.end()
    assert open_files() == before
    assert services.uploads.receiving._value == services.uploads.AT_ONCE
    assert await stored(client) == {}


async def test_a_client_that_leaves_while_files_are_written_ends_that(
    line, services, kb, registry, client
):
    before = open_files()
    encoder = registry.encoders["words"]
    encoder.gate = asyncio.Event()
    body = form_of(("a.md", GUIDE))
    headers = {"content-type": "multipart/form-data; boundary=x"}
    asked = line(FILES, body, headers=headers)
    asked.start()
    await asked.until(lambda: encoder.waiting)
    asked.leave()
    await asked.end()
    assert (encoder.waiting, open_files()) == (0, before)
    encoder.gate.set()
    assert (await kb(("a.md", GUIDE)))["documents"] == 2


class Endless(io.RawIOBase):
    """A file of empty lines that ends where a test says so."""

    def __init__(self) -> None:
        self.reads, self.ended = 0, False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return 0

    def readinto(self, buffer: Any) -> int:
        self.reads += 1
        buffer[:] = b"\n" * len(buffer)
        return 0 if self.ended else len(buffer)


async def test_a_client_that_leaves_while_a_file_is_read_ends_that(
    line, services, kb, client, monkeypatch
):
    endless = Endless()
    monkeypatch.setattr(Spool, "open", lambda *_: io.BufferedReader(endless))
    headers = {"content-type": "multipart/form-data; boundary=x"}
    asked = line(FILES, form_of(("a.jsonl", b"{}"), ("b.jsonl", b"{}")), headers=headers)
    asked.start()
    try:
        await asked.until(lambda: endless.reads > 3)
        asked.leave()
        await asked.until(lambda: services.uploads.reading._value == services.uploads.READ_AT_ONCE)
    finally:
        endless.ended = True
    await asked.end()
    assert not services.uploads.lock("kb").locked()
    monkeypatch.undo()
    assert (await kb(("a.md", GUIDE)))["documents"] == 2


async def test_files_wait_where_the_model_is_busy(kb, registry):
    encoder = registry.encoders["words"]
    encoder.fails = Overloaded("full", retry_after_seconds=0.01)
    waiting = asyncio.create_task(kb(("a.md", GUIDE)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    encoder.fails = None
    assert (await waiting)["documents"] == 2


async def test_two_versions_of_a_file_at_once_leave_one_of_them_whole(client, kb):
    versions = [
        b"".join(b"# H%d\n\nversion %d\n\n" % (n, v) for n in range(v, v + 9)) for v in range(4)
    ]
    await asyncio.gather(*(kb(("a.md", version)) for version in versions))
    texts = {document["text"].split()[-1] for document in (await stored(client)).values()}
    assert (len(texts), len(await stored(client))) == (1, 9)


async def test_a_disk_that_is_full_is_said_so(client, kb, monkeypatch):
    def fail(_spool, _data):
        raise StorageFull("The disk is full.")

    monkeypatch.setattr(Spool, "write", fail)
    assert (await kb(("a.md", GUIDE), status=507))["error"]["code"] == "storage_full"


async def test_what_no_request_could_hold_is_refused_document_by_document(client, kb):
    lines = [
        b'{"id": "surrogate", "text": "\\ud800"}',
        b'{"id": "huge", "text": "x", "n": 99999999999999999999999}',
        b'{"id": "small", "text": "x", "n": 1e-999}',
        b'{"id": "deep", "text": "x", "n": ' + b"[" * 80 + b"]" * 80 + b"}",
        b'{"id": "good", "text": "x"}',
        b'{"id": "' + b"i" * 600 + b'", "text": "x"}',
    ]
    added = await kb(("a.jsonl", b"\n".join(lines)))
    assert added["files"][0]["documents"] == 2
    assert "surrogate" in added["files"][0]["reason"]
    assert set(await stored(client)) == {"good", "small"}


async def test_a_number_that_is_not_finite_is_refused_and_not_kept_as_null(client, kb):
    for number in ("1e999", "-1e999", "NaN", "Infinity"):
        line = f'{{"id": "a", "text": "x", "n": {{"m": [{number}]}}}}'
        added = await kb(("a.jsonl", f'{{"id": "b", "text": "y"}}\n{line}'.encode()))
        assert "line 2: not JSON" in added["files"][0]["reason"]
        assert number in added["files"][0]["reason"]
        body = f'{{"documents": [{line}]}}'
        assert (await client.post("/v1/indexes/kb/documents", content=body)).status_code == 400
    assert set(await stored(client)) == {"b"}


async def test_a_form_that_is_meddled_with_gets_a_reply_and_breaks_nothing(client, kb):
    fields = {"prefix": "p", "encoding": "utf-8", "again": "true"}
    good = form_of(
        ("a.md", GUIDE),
        ("t.csv", b"id,text\na,b\n"),
        ("l.jsonl", b'{"id": "x", "text": "y", "n": [1, {"a": 2}]}\n'),
        ("h.html", b"<h1>A</h1><p>b"),
        **fields,
    )
    dice = random.Random(5)
    headers = {"content-type": "multipart/form-data; boundary=x"}
    statuses = Counter()
    for _ in range(400):
        asked = Asked("POST", FILES.encode(), FILES, good)
        for _ in range(dice.choice((1, 1, 2, 3))):
            asked = dice.choice((snippet, snippet, cut, flip, flip, flip))(asked, dice)
        reply = await client.post(FILES, content=asked.body, headers=headers)
        statuses[reply.status_code] += 1
        assert reply.status_code in (200, 400), (asked.body, reply.text)
    assert statuses[200] > 50 < statuses[400]
    for wrong in ((b"files", b"\xe6iles"), (b"utf-8", b"utf\xff8"), (b"again", b"ag\xe6in")):
        reply = await client.post(FILES, content=good.replace(*wrong), headers=headers)
        assert reply.status_code == 400, reply.text
    assert await stored(client)


async def test_thousands_of_small_files_are_one_request(client, kb):
    added = await kb(*((f"{number}.txt", b"text %d" % number) for number in range(2000)))
    assert added["documents"] == len(added["files"]) == 2000


async def test_an_index_that_is_not_there_is_not_found_before_a_byte_is_read(line):
    asked = await line(FILES, [b"x"] * 3, headers={"content-type": "multipart/form-data"}).run()
    assert (asked.status, asked.received) == (404, 0)


def sections(version: int) -> bytes:
    """A file of one to five sections, by its version."""
    parts = (f"# Part {n}\n\nIt is as of {version}.\n" for n in range(1 + version % 5))
    return "\n".join(parts).encode()


def ids_of(version: int) -> set[str]:
    return {f"guide/{name}.md#part-{n}" for name in "ab" for n in range(1 + version % 5)}


async def upload_versions(data_dir: Path, say: Any, before: int, last: int) -> dict[str, int]:
    """Upload two files, version after version; returns the version that each document is of."""
    registry = StandInRegistry({"words": StandInEncoder(info("words", "encoder"))}, {})
    metrics = Metrics()
    with IndexStore(data_dir, metrics=metrics) as indexes:
        services = Services(registry=registry, indexes=indexes, metrics=metrics)
        services.health.start()
        transport = httpx.ASGITransport(app=build_app(services))
        async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
            (await client.put("/v1/indexes/kb")).raise_for_status()
            found = await stored(client)
            for version in range(before + 1, last + 1):
                say("begin")
                files = [("files", (f"guide/{name}.md", sections(version))) for name in "ab"]
                reply = await client.post(FILES, files=files)
                assert [file["reason"] for file in reply.json()["files"]] == [None, None]
                say("done", version)
                found = await stored(client)
    return {id: int(document["text"].split()[-1][:-1]) for id, document in found.items()}


def upload_for_ever(data_dir: Path, say: Any, before: int) -> None:
    asyncio.run(upload_versions(data_dir, say, before, 1_000_000))


def test_files_that_were_acknowledged_survive_kill_9(tmp_path: Path) -> None:
    draw = random.Random(3)
    version = 0
    for life in range(5):
        after, wait = draw.randint(1, 8), draw.uniform(0, 0.02)
        for line in live(upload_for_ever, tmp_path, version, after=after, wait=wait):
            version = int(line.split()[1]) if line.startswith("done") else version
        found = asyncio.run(upload_versions(tmp_path, print, version, version))
        assert {*found.values()} <= {version, version + 1}, f"life {life}: {version}, {found}"
        assert ids_of(version) & ids_of(version + 1) <= {*found}, f"life {life}"
        version += 1  # the same again makes whole what was cut short
        found = asyncio.run(upload_versions(tmp_path, print, version - 1, version))
        assert found == dict.fromkeys(ids_of(version), version), f"life {life}"
    left = {path.name for path in tmp_path.iterdir()} - {"indexes", "lock"}
    assert not {name for name in left if name.startswith("tmp")}
