"""``condensery index``: make, fill, ask and empty indexes."""

import argparse
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from condensery.commands import upkeep
from condensery.commands.asking import add_filter, add_search
from condensery.commands.connecting import Connection, add_server, connect
from condensery.commands.documents import STDIN, guess_format, open_lines, parse
from condensery.commands.printing import Parsers, say, shorten_line, table
from condensery.errors import CondenseryError, InputError, shorten
from condensery.values import Document, IndexInfo, StoredDocument

# A request: enough texts to fill the server's batches, and well under its limit of bytes.
BATCH_DOCUMENTS = 128
BATCH_CHARS = 500_000


def add_parser(parsers: Parsers) -> None:
    """Add ``index`` and its actions."""
    index = parsers.add_parser(
        "index", help="make, fill, ask and empty indexes", description="Work with indexes."
    )
    actions = index.add_subparsers(dest="action", metavar="ACTION", required=True)

    create = actions.add_parser("create", help="make an index")
    create.add_argument("name", metavar="NAME")
    create.add_argument("--encoder", metavar="MODEL", help="the server's default else")
    create.add_argument("--kind", choices=("flat", "hnsw", "ivf_pq"), default="flat")
    create.add_argument(
        "--option",
        action="append",
        default=[],
        type=read_option,
        metavar="NAME=N",
        help="of the kind: m, ef_construction, ef_search (hnsw); nlist, nprobe, pq_m, pq_bits"
        " (ivf_pq); may be repeated",
    )
    create.add_argument("--metric", choices=("ip", "l2"), default="ip")
    create.set_defaults(run=run_create)

    add = actions.add_parser(
        "add",
        help="write documents from a file into an index",
        description="Write documents from a file into an index, which is made if it is not there."
        " Documents of the same ids are replaced. Those that are there already, as they are in the"
        " file, are passed over: a run that was cut short, here or on the server, goes on where it"
        " was when it is repeated.",
    )
    add.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="the index; default: the file's name without its suffix",
    )
    add.add_argument(
        "file",
        metavar="FILE",
        help="JSON lines with id, text and perhaps metadata (.jsonl, .ndjson); or plain text,"
        " a document a paragraph; - is standard input",
    )
    add.add_argument("--format", choices=("jsonl", "text"), help="default: by the file's suffix")
    add.add_argument(
        "--again", action="store_true", help="write also what is there already, as it is"
    )
    add.set_defaults(run=run_add)

    query = actions.add_parser("query", help="find the passages nearest to a text")
    query.add_argument("name", metavar="NAME")
    query.add_argument("text", metavar="TEXT")
    query.add_argument("--top-k", type=int, default=10, metavar="N", help="default: %(default)s")
    add_search(query)
    query.add_argument("--json", action="store_true", help="print one JSON object a passage")
    query.set_defaults(run=run_query)

    count = actions.add_parser("count", help="count documents and passages")
    count.add_argument("name", metavar="NAME")
    add_filter(count)
    count.set_defaults(run=run_count)

    get = actions.add_parser("get", help="print documents by id")
    get.add_argument("name", metavar="NAME")
    get.add_argument("ids", nargs="+", metavar="ID")
    get.set_defaults(run=run_get)

    scroll = actions.add_parser(
        "scroll",
        help="print all documents, or those that a filter chooses",
        description="Print documents by id, one JSON object a line, as `index add` reads them.",
    )
    scroll.add_argument("name", metavar="NAME")
    add_filter(scroll)
    scroll.add_argument("--after", metavar="ID", help="begin after this one")
    scroll.add_argument("--limit", type=int, metavar="N", help="print so many at most")
    scroll.add_argument("--no-text", action="store_true", help="print no texts")
    scroll.add_argument("--vectors", action="store_true", help="print passages with their vectors")
    scroll.set_defaults(run=run_scroll)

    delete = actions.add_parser("delete", help="delete documents by id, or by a filter")
    delete.add_argument("name", metavar="NAME")
    delete.add_argument("ids", nargs="*", metavar="ID")
    add_filter(delete)
    delete.set_defaults(run=run_delete)

    drop = actions.add_parser("drop", help="delete an index and all it holds")
    drop.add_argument("name", metavar="NAME")
    drop.set_defaults(run=run_drop)

    listing = actions.add_parser("list", help="list the indexes")
    listing.set_defaults(run=run_list)

    for action in (create, add, query, count, get, scroll, delete, drop, listing):
        add_server(action)
    upkeep.add_parsers(actions, read_option)


def run_create(args: argparse.Namespace) -> int:
    """Make an index."""
    with connect(args) as client:
        info = client.create_index(
            args.name,
            encoder=args.encoder,
            kind=args.kind,
            metric=args.metric,
            options=dict(args.option) or None,
        )
    print(f"{info.name}: {info.kind}, {info.metric}, {info.dims} dimensions, {info.encoder}")
    upkeep.warn_of_prompts([info])
    return 0


def read_option(text: str) -> tuple[str, int]:
    """Read an option of an index's kind; which there are the server says."""
    name, _, value = text.partition("=")
    try:
        return name, int(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not NAME=NUMBER") from error


def run_add(args: argparse.Namespace) -> int:
    """Write a file's documents, batch by batch."""
    name = args.name or name_index(args.file)
    with open_lines(args.file) as lines, connect(args) as client:
        first = next(lines, None)
        if first is None:
            raise InputError(f"{args.file}: is empty")
        form = args.format or guess_format(args.file, first)
        prefix = name if args.file == STDIN else Path(args.file).stem
        read = parse(itertools.chain([first], lines), form, prefix)
        make_index(client, name)
        return write(client, name, read, file_size(args.file), again=args.again)


def write(
    client: Connection,
    name: str,
    read: Iterable[tuple[Document, int]],
    size: int | None,
    *,
    again: bool = False,
) -> int:
    """Write documents as they are read; what was written before an error stays, and is said.

    Args:
        client: Open.
        name: The index.
        read: Each document, and the bytes read with it.
        size: Bytes of all; None if nobody knows.
        again: Write also those that are there already.
    """
    documents = passages = there = at = 0
    look = not again and client.count(name)[0] > 0
    try:
        with tqdm(total=size, unit="B", unit_scale=True, desc=name, disable=None) as bar:
            for batch, end in batches(read):
                new = missing(client, name, batch) if look else batch
                there += len(batch) - len(new)
                if new:
                    written = client.upsert(name, new)
                    documents += written.documents
                    passages += written.passages
                bar.set_postfix_str(f"{documents} documents", refresh=False)
                bar.update(end - at)
                at = end
    except (CondenseryError, KeyboardInterrupt):
        say(f"{name}: {documents} documents were written before this stopped")
        raise
    already = f"; {there} were there already" if there else ""
    print(f"{name}: {documents} documents written, {passages} passages{already}")
    return 0


def missing(client: Connection, name: str, batch: list[Document]) -> list[Document]:
    """Return the documents that an index has not, or has otherwise."""
    there = {one.id: one for one in client.get(name, [one.id for one in batch])}
    return [one for one in batch if there.get(one.id) != one]


def run_query(args: argparse.Namespace) -> int:
    """Print the passages found."""
    with connect(args) as client:
        hits = client.query(
            args.name, args.text, top_k=args.top_k, search=args.search, filter=args.filter
        )
    for hit in hits:
        passage = hit.passage
        if args.json:
            entry = {
                "score": hit.score,
                "id": passage.id,
                "document_id": passage.document_id,
                "text": passage.text,
                "start": passage.start,
                "end": passage.end,
                "metadata": dict(passage.metadata),
            }
            print_entry(**entry)
        else:
            print(f"{hit.score:.3f}  {passage.id}  {shorten_line(passage.text)}")
    return 0


def run_count(args: argparse.Namespace) -> int:
    """Print how much an index holds, or a filter chooses of it."""
    with connect(args) as client:
        documents, passages = client.count(args.name, filter=args.filter)
    print(f"{documents} documents, {passages} passages")
    return 0


def run_get(args: argparse.Namespace) -> int:
    """Print documents by id; without all of them the status is 1."""
    with connect(args) as client:
        found = client.get(args.name, args.ids)
    for document in found:
        print_entry(id=document.id, text=document.text, metadata=dict(document.metadata))
    missing = [one for one in args.ids if all(document.id != one for document in found)]
    for one in missing:
        say(f"{args.name}: there is no document {shorten(one)}")
    return 1 if missing else 0


def run_scroll(args: argparse.Namespace) -> int:
    """Print documents, page by page."""
    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit: {args.limit} is not at least 1")
    left, after = args.limit, args.after
    with connect(args) as client:
        while left is None or left > 0:
            page = client.scroll(
                args.name,
                filter=args.filter,
                after=after,
                with_text=not args.no_text,
                with_vectors=args.vectors,
            )
            for document in page.documents[:left]:
                print_stored(document)
            if page.next is None:
                break
            after, left = page.next, None if left is None else left - len(page.documents)
    return 0


def print_stored(document: StoredDocument) -> None:
    """Print a document as it is stored, as far as it was asked for."""
    entry: dict[str, Any] = {"id": document.id}
    if document.text is not None:
        entry["text"] = document.text
    entry["metadata"] = dict(document.metadata or {})
    if document.passages is not None:
        entry["passages"] = [
            {"id": one.id, "start": one.start, "end": one.end, "vector": one.vector.tolist()}
            for one in document.passages
        ]
    print_entry(**entry)


def print_entry(**entry: Any) -> None:
    """Print an object on one line."""
    print(json.dumps(entry, ensure_ascii=False))


def run_delete(args: argparse.Namespace) -> int:
    """Delete documents."""
    with connect(args) as client:
        deleted = client.delete(args.name, args.ids or None, filter=args.filter)
    of = f" of {len(args.ids)}" if args.ids else ""
    print(f"{deleted}{of} documents deleted")
    return 0


def run_drop(args: argparse.Namespace) -> int:
    """Delete an index."""
    with connect(args) as client:
        client.drop_index(args.name)
    print(f"{args.name}: dropped")
    return 0


def run_list(args: argparse.Namespace) -> int:
    """Print the indexes."""
    with connect(args) as client:
        found = client.list_indexes()
    rows = [
        (i.name, str(i.documents), str(i.passages), describe_kind(i), i.metric, i.encoder)
        for i in found
    ]
    print(table([("NAME", "DOCUMENTS", "PASSAGES", "KIND", "METRIC", "ENCODER"), *rows]))
    upkeep.warn_of_prompts(found)
    return 0


def describe_kind(info: IndexInfo) -> str:
    """Return an index's kind, and whether it waits to become one."""
    waits = "" if info.trains_at is None else f" (flat until it has {info.trains_at:,})"
    return f"{info.kind}{waits}"


def make_index(client: Connection, name: str) -> None:
    """Make the index unless it (or an alias of the name) is there, whatever its settings."""
    names = [info.name for info in client.list_indexes()]
    if name not in [*names, *(one.alias for one in client.aliases())]:
        client.create_index(name)
        say(f"{name}: index created")


def batches(
    read: Iterable[tuple[Document, int]],
) -> Iterator[tuple[list[Document], int]]:
    """Yield documents by batches, with the bytes read so far.

    An id that comes twice begins a new batch, so that the later document replaces the earlier.
    """
    batch: dict[str, Document] = {}
    chars, at = 0, 0
    for document, end in read:
        full = len(batch) == BATCH_DOCUMENTS or chars + len(document.text) > BATCH_CHARS
        if batch and (full or document.id in batch):
            yield list(batch.values()), at
            batch, chars = {}, 0
        batch[document.id] = document
        chars += len(document.text)
        at = end
    if batch:
        yield list(batch.values()), at


def name_index(file: str) -> str:
    """Make an index's name of a file's: lower case, and nothing that a name can't hold."""
    if file == STDIN:
        raise InputError("standard input makes no index name; give NAME before it")
    name = re.sub(r"[^a-z0-9._-]+", "-", Path(file).stem.lower()).strip("-._")
    if not name:
        raise InputError(f"{file}: makes no index name; give NAME before it")
    return name[:64]


def file_size(file: str) -> int | None:
    """Return a file's bytes; None for a pipe."""
    path = Path("/dev/stdin") if file == STDIN else Path(file)
    return path.stat().st_size if path.is_file() else None
