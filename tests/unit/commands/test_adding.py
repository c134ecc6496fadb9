"""``condensery index add`` against a server in this process, whose encoder stands in for one."""

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.command_line import Ended, run

from condensery.api.rest.http import RestServer
from condensery.client.rest import AsyncClient, Client
from condensery.commands.adding import UNREAD_STATUS, finish_first, name_index
from condensery.documents.folders import Found
from condensery.documents.writing import BATCH_DOCUMENTS, FileWriter
from condensery.errors import InputError
from condensery.jobs.services import RequestLimits, Services
from condensery.values import Document, StoredDocument, Upserted


@pytest.fixture
def url(services: Services) -> Iterator[str]:
    """A server's address; it runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    served = replace(services, limits=RequestLimits(passage_tokens=12, passage_overlap=2))

    async def begin() -> RestServer:
        server = RestServer(served, listener)
        await server.started()
        return server

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of one name, a table and what is not read."""
    folder = tmp_path / "notes"
    for path, content in {
        "index.md": "# Radium\n\nIt glows.\n\n# Helium\n\nIt rises.\n",
        "sub/index.md": "# Radium\n\nAnother one.\n",
        "sub/plain.txt": "No headings here.\n",
        "sub/own.jsonl": '{"id": "own", "text": "of its own"}\n',
        "picture.png": "",
        "package.json": "{}",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return folder


def add(url: str, *arguments: str | Path, status: int = 0) -> Ended:
    return run("index", "add", *map(str, arguments), "--url", url, status=status)


def stored(url: str, name: str) -> dict[str, StoredDocument]:
    with Client(url) as client:
        documents: dict[str, StoredDocument] = {}
        after = None
        while True:
            page = client.scroll(name, after=after)
            documents |= {document.id: document for document in page.documents}
            if (after := page.next) is None:
                return documents


def test_a_folder_is_added_with_ids_of_its_paths(url: str, folder: Path) -> None:
    done = add(url, folder)
    assert done.stdout == "notes: 5 documents written, 5 passages\n"
    assert "2 files of other kinds were passed over: .png 1, .json 1" in done.stderr
    documents = stored(url, "notes")
    assert set(documents) == {
        "notes/index.md#radium",
        "notes/index.md#helium",
        "notes/sub/index.md#radium",
        "notes/sub/plain.txt#part",
        "own",
    }
    helium = documents["notes/index.md#helium"]
    assert helium.text == "Helium\n\nIt rises."
    assert helium.metadata is not None
    assert helium.metadata["heading"] == ["Helium"]
    about = dict(helium.metadata["file"])
    assert (about["name"], about["folder"]) == ("notes/index.md", "notes")
    assert documents["own"].metadata == {}


def test_what_is_there_is_passed_over_and_a_file_that_changed_is_replaced_whole(
    url: str, folder: Path
) -> None:
    add(url, folder)
    again = add(url, folder)
    assert again.stdout == "notes: 0 documents written, 0 passages; 5 were there already\n"
    (folder / "index.md").write_text("# Helium\n\nIt rises.\n\n# Neon\n\nIt shines.\n")
    changed = add(url, folder)
    assert changed.stdout == (
        "notes: 2 documents written, 2 passages; 3 were there already; 1 of before deleted\n"
    )
    assert {"notes/index.md#neon", "notes/index.md#helium"} <= set(stored(url, "notes"))
    assert "notes/index.md#radium" not in stored(url, "notes")
    everything = add(url, folder, "--again")
    assert everything.stdout == "notes: 5 documents written, 5 passages\n"


def test_a_file_whose_writing_was_cut_short_is_written_again(url: str, folder: Path) -> None:
    add(url, folder)
    for lost in ("notes/index.md#radium", "notes/index.md#helium"):
        with Client(url) as client:
            client.delete("notes", [lost])
        assert add(url, folder).stdout == (
            "notes: 1 documents written, 1 passages; 4 were there already\n"
        )
    assert len(stored(url, "notes")) == 5


def test_files_that_are_gone_are_deleted_with_sync_alone(url: str, folder: Path) -> None:
    add(url, folder)
    (folder / "index.md").unlink()
    (folder / "sub/plain.txt").write_bytes(b"\xff")
    add(url, folder, status=UNREAD_STATUS)
    assert "notes/index.md#radium" in stored(url, "notes")
    done = add(url, folder, "--sync", "--glob", "*.txt", status=UNREAD_STATUS)
    assert "2 of before deleted" in done.stdout
    assert set(stored(url, "notes")) == {
        "notes/sub/index.md#radium",
        "notes/sub/plain.txt#part",
        "own",
    }, "what can't be read, or no glob chose, is not gone"


def test_sync_leaves_other_folders_and_folders_without_files_alone(url: str, folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    (other / "a.txt").write_text("Other words.")
    add(url, "both", folder, other)
    (other / "a.txt").unlink()
    nothing = add(url, "both", other, "--sync", status=UNREAD_STATUS)
    assert "nothing to read" in nothing.stderr
    assert "other/a.txt#part" in stored(url, "both"), "as if a disk were not mounted"
    (other / "b.txt").write_text("New words.")
    add(url, "both", other, "--sync")
    assert {id for id in stored(url, "both") if id.startswith("other")} == {"other/b.txt#part"}
    assert len(stored(url, "both")) == 6
    with_file = add(url, "both", other / "b.txt", "--sync", status=1)
    assert "no folder is named" in with_file.stderr


def test_another_folder_of_the_same_name_overwrites_nothing(url: str, folder: Path) -> None:
    add(url, folder)
    twin = folder.parent / "elsewhere" / "notes"
    twin.mkdir(parents=True)
    (twin / "index.md").write_text("# Radium\n\nOf the twin.\n")
    before = stored(url, "notes")
    for paths in ((twin,), (twin / "index.md",), (folder, twin)):
        assert "--prefix" in add(url, "notes", *paths, status=1).stderr
    assert stored(url, "notes") == before
    add(url, "notes", twin, "--prefix", "twin")
    assert set(stored(url, "notes")) == {*before, "twin/index.md#radium"}
    (folder.parent / "moved").mkdir()
    moved = folder.rename(folder.parent / "moved" / "notes")
    add(url, "notes", moved, "--prefix", "notes")
    assert len(stored(url, "notes")) == 6


def test_a_file_alone_is_the_same_file_as_in_its_folder(url: str, folder: Path) -> None:
    add(url, folder)
    done = add(url, "notes", folder / "index.md", folder / "index.md")
    assert done.stdout == "notes: 0 documents written, 0 passages; 2 were there already\n"


def test_what_cant_be_read_is_listed_and_the_rest_is_written(url: str, folder: Path) -> None:
    (folder / "latin.txt").write_bytes("für".encode("latin-1"))
    (folder / "two\nlines.md").write_text("# Odd\n\nName.\n")
    (folder / "bad.jsonl").write_text('{"id": "good", "text": "x"}\n{"id": "bad"}\n')
    archive = folder / "a.zip"
    archive.write_bytes(b"PK")
    empty = folder / "empty.md"
    empty.write_text("# Only a heading\n")
    done = add(url, "notes", folder, archive, empty, status=UNREAD_STATUS)
    listed = [line for line in done.stderr.splitlines() if line.startswith("not read: ")]
    assert [line.split(": ")[1].rsplit("/")[-1] for line in listed] == [
        "a.zip",
        "bad.jsonl",
        "latin.txt",
    ]
    assert "line 2: text: is missing" in listed[1]
    assert {"good", "own", "notes/two%0Alines.md#odd"} <= set(stored(url, "notes"))
    latin = add(url, folder / "latin.txt", "--encoding", "latin-1")
    assert latin.stdout.startswith("latin: 1 documents written")
    named = add(url, "named", empty, status=UNREAD_STATUS)
    assert "there is no text in it" in named.stderr


def test_nothing_is_written_where_a_path_is_not_there(url: str, folder: Path) -> None:
    done = add(url, "n", folder, folder / "nowhere.md", status=1)
    assert "nowhere.md: can't be read: No such file" in done.stderr
    unnamed = add(url, folder / "index.md", folder / "sub/index.md", status=1)
    assert "goes the index's name" in unnamed.stderr
    assert stored_names(url) == []
    alone = add(url, "n", folder / "picture.png", status=UNREAD_STATUS)
    assert ".png is no kind that is read" in alone.stderr
    assert stored_names(url) == []


def stored_names(url: str) -> list[str]:
    with Client(url) as client:
        return [info.name for info in client.list_indexes()]


def test_a_document_that_the_server_refuses_does_not_keep_the_others_back(
    url: str, tmp_path: Path
) -> None:
    lines = [{"id": f"n{i}", "text": "words"} for i in range(10)]
    lines[6]["id"] = "x" * 600
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = add(url, file, status=UNREAD_STATUS)
    assert done.stdout == "lines: 9 documents written, 9 passages\n"
    assert "not read: document xxx" in done.stderr


def test_standard_input_is_alone_and_is_json_lines_or_paragraphs(url: str) -> None:
    arguments = ("index", "add", "in", "-", "--url", url)
    assert run(*arguments, stdin="one\n\ntwo\n").stdout == "in: 2 documents written, 2 passages\n"
    assert set(stored(url, "in")) == {"in-1", "in-2"}
    for more in (("x.md",), ("--sync",), ("--format", "csv")):
        run(*arguments[:4], *more, "--url", url, stdin="one\n", status=1)


def test_a_hundred_thousand_small_files_need_few_requests(tmp_path: Path) -> None:
    """Files share requests: here 2,000, of which each would cost one."""

    class Counting:
        requests = documents = 0

        def holds_any(self) -> bool:
            return False

        def upsert(self, documents: list[Document]) -> Upserted:
            self.requests += 1
            self.documents += len(documents)
            return Upserted(len(documents), len(documents))

    from condensery.documents.files import Reading
    from condensery.documents.folders import find_files, name_root

    for number in range(2000):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    found, index = Found(), Counting()
    find_files(found, tmp_path, name_root(tmp_path), Reading(), None)
    read: list[int] = []
    writer = FileWriter(index, on_progress=lambda size, _: read.append(size))  # type: ignore[arg-type]
    writer.write_files(found.files, Reading())
    writer.flush()
    assert sum(read) == sum(file.size for file in found.files)
    assert index.documents == 2000
    assert index.requests < 2 * 2000 / BATCH_DOCUMENTS


def test_ctrl_c_waits_for_the_documents_on_their_way_and_a_second_one_does_not() -> None:
    done: list[int] = []

    def write(presses: int) -> None:
        with finish_first():
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
            done.append(presses)

    with pytest.raises(KeyboardInterrupt):
        write(1)
    with pytest.raises(KeyboardInterrupt):
        write(2)
    assert done == [1]
    write(0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_was_written_before_a_failure_is_reported(url: str, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"id": f"n{i}", "text": "x" * 900}) + "\n" for i in range(30))
    content = f"{lines}not JSON\n"
    ended = run("index", "add", "in", "-", "--url", url, stdin=content, status=1)
    written = len(stored(url, "in"))
    assert 0 < written <= 30
    assert f"in: {written} documents were written before this stopped\n" in ended.stderr


def test_a_document_that_comes_again_goes_into_a_later_request(url: str, tmp_path: Path) -> None:
    file = tmp_path / "twice.jsonl"
    file.write_text(
        '{"id": "a", "text": "old"}\n{"id": "b", "text": "x"}\n{"id": "a", "text": "new"}\n'
    )
    assert "3 documents written" in add(url, file).stdout
    assert stored(url, "twice")["a"].text == "new"


def test_an_index_is_named_after_its_first_path(tmp_path: Path) -> None:
    assert name_index("some/My Notes (1).jsonl") == "my-notes-1"
    assert name_index("some/rows.csv.gz") == "rows"
    assert name_index("docs/") == "docs"
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert name_index(".") == tmp_path.name.lower().strip("-._")
    finally:
        os.chdir(before)
    for path in ("-", "日本.txt"):
        with pytest.raises(InputError, match="give NAME"):
            name_index(path)


def test_json_says_of_each_file_what_became_of_it(url: str, folder: Path) -> None:
    (folder / "latin.txt").write_bytes("für".encode("latin-1"))
    zip = folder / "a.zip"
    zip.write_bytes(b"PK")
    first, second = (
        json.loads(add(url, "notes", folder, zip, "--json", status=UNREAD_STATUS).stdout)
        for _ in range(2)
    )
    files = {file.pop("name"): file for file in first["files"]}
    assert files["notes/index.md"] == {"documents": 2, "unchanged": 0, "reason": None}
    assert files["notes/sub/own.jsonl"] == {"documents": 1, "unchanged": 0, "reason": None}
    assert "not UTF-8" in files["notes/latin.txt"]["reason"]
    assert ".zip is no kind" in files[str(zip)]["reason"]
    totals = {"documents": 5, "passages": 5, "unchanged": 0, "deleted": 0}
    assert {name: first[name] for name in totals} == totals
    assert (first["index"], second["documents"], second["unchanged"]) == ("notes", 0, 5)
    nothing = json.loads(add(url, "n", zip, "--json", status=UNREAD_STATUS).stdout)
    assert [file["name"] for file in nothing["files"]] == [str(zip)]


def files_below(folder: Path) -> dict[str, bytes | Path]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder.parent)): path for path in paths}


async def test_a_clients_files_become_what_the_command_makes_of_them(
    url: str, folder: Path
) -> None:
    files = files_below(folder)
    add(url, "notes", folder)
    with Client(url) as client:
        client.create_index("sent")
        added = client.add_files("sent", files)
        assert {file.name for file in added.files if file.reason} == {
            "notes/picture.png",
            "notes/package.json",
        }
        with pytest.raises(InputError, match="nowhere"):
            client.add_files("sent", {"a.md": folder / "nowhere.md"})
    for id, document in stored(url, "notes").items():
        sent = stored(url, "sent")[id]
        assert sent.text == document.text
        about = [{**(one.metadata or {})}.get("file", {}) for one in (sent, document)]
        assert about[0].get("hash") == about[1].get("hash")
        assert about[0].get("name") == about[1].get("name")
    passed_over = add(url, "sent", folder, "--prefix", "notes")
    assert passed_over.stdout == "sent: 0 documents written, 0 passages; 5 were there already\n"
    async with AsyncClient(url) as client:
        again = await client.add_files("sent", {"notes/sub/plain.txt": b"Other words."})
        assert (again.documents, again.deleted) == (1, 0)
        text = await client.add_files(
            "sent",
            {"t.dat": b"key,body\nk,x\n"},
            format="csv",
            id_column="key",
            text_column=["body"],
        )
        assert text.documents == 1
