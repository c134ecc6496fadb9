"""``condensery index``: make, fill, search, empty and maintain indexes."""

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from condensery.commands.ask import add_filter_argument
from condensery.commands.common import (
    AnyClient,
    Parsers,
    add_action,
    add_json_argument,
    format_table,
    print_entry,
    print_note,
    print_result,
)
from condensery.commands.copying import add_copy
from condensery.commands.searching import add_query
from condensery.commands.terminal import confirm
from condensery.documents.files import KINDS
from condensery.errors import CondenseryError, InputError, shorten
from condensery.values import AliasAction, IndexInfo, Rebuild, StoredDocument

POLL_SECONDS = 0.5  # between looks at a rebuild


def add_option_argument(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add the argument that sets options of an index's kind."""
    parser.add_argument(
        "--option",
        action="append",
        type=read_option,
        metavar="NAME=N",
        help="of the kind: m, ef_construction, ef_search (hnsw); nlist, nprobe, pq_m, pq_bits"
        f" (ivf_pq); may be repeated{default}",
    )


def read_option(text: str) -> tuple[str, int]:
    """Read an option of an index's kind; the server checks its name."""
    name, _, value = text.partition("=")
    try:
        return name, int(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not NAME=NUMBER") from error


def add_index(parsers: Parsers) -> None:
    """Add ``index`` and its actions."""
    index = parsers.add_parser(
        "index",
        help="make, fill, search, empty and maintain indexes",
        description="Work with indexes.",
    )
    actions = index.add_subparsers(dest="action", metavar="ACTION", required=True)
    with add_action(actions, "create", run_create, "make an index") as create:
        create.add_argument("name", metavar="NAME")
        create.add_argument("--encoder", metavar="MODEL", help="the server's default else")
        create.add_argument("--kind", choices=("flat", "hnsw", "ivf_pq"), default="flat")
        add_option_argument(create)
        create.add_argument("--metric", choices=("ip", "l2"), default="ip")
        add_json_argument(create)
    add_document_actions(actions)
    description = "Delete an index and all it holds. On a terminal it asks first; a script does it."
    help = "delete an index and all it holds"
    with add_action(actions, "drop", run_drop, help, description) as drop:
        drop.add_argument("name", metavar="NAME")
        drop.add_argument("-y", "--yes", action="store_true", help="do not ask")
        add_json_argument(drop)
    with add_action(actions, "list", run_list, "list the indexes") as listing:
        add_json_argument(listing, "one JSON object an index")
    add_alias_actions(actions)
    add_snapshot_actions(actions)
    add_rebuild(actions)
    add_copy(actions)


def add_document_actions(actions: Parsers) -> None:
    """Add what is done with an index's documents."""
    description = (
        "Write documents from files and folders into an index, which is made if it is not there."
        " Of a file that changed all documents are replaced; what is there already, as it is, is"
        " passed over: a run that was cut short, here or on the server, goes on where it was when"
        " it is repeated. With status 4, something could not be read, and is listed."
    )
    help = "write documents from files and folders into an index"
    with add_action(actions, "add", run_add, help, description) as add:
        add_file_arguments(add)
    add_query(actions)
    with add_action(actions, "count", run_count, "count documents and passages") as count:
        count.add_argument("name", metavar="NAME")
        add_filter_argument(count)
        add_json_argument(count)
    with add_action(actions, "get", run_get, "print documents by id") as get:
        get.add_argument("name", metavar="NAME")
        get.add_argument("ids", nargs="+", metavar="ID")
    description = "Print documents by id, one JSON object a line, as `index add` reads them."
    help = "print all documents, or those that a filter chooses"
    with add_action(actions, "scroll", run_scroll, help, description) as scroll:
        scroll.add_argument("name", metavar="NAME")
        add_filter_argument(scroll)
        scroll.add_argument("--after", metavar="ID", help="begin after this one")
        scroll.add_argument("--limit", type=int, metavar="N", help="print so many at most")
        scroll.add_argument("--no-text", action="store_true", help="print no texts")
        vectors_help = "print passages with their vectors"
        scroll.add_argument("--vectors", action="store_true", help=vectors_help)
    help = "delete documents by id, or by a filter"
    with add_action(actions, "delete", run_delete, help) as delete:
        delete.add_argument("name", metavar="NAME")
        delete.add_argument("ids", nargs="*", metavar="ID")
        add_filter_argument(delete)
        add_json_argument(delete)


def add_file_arguments(add: argparse.ArgumentParser) -> None:
    """Add what says which files are added, and how they are read."""
    name_help = "the index; default: the name of the first path, without its suffix"
    add.add_argument("name", metavar="NAME", nargs="?", help=name_help)
    path_help = (
        "a folder, with all below it, or a file: Markdown, HTML, text, PDF, Word, JSON, JSON"
        " lines and tables with a row of names; - is standard input, JSON lines or a document a"
        " paragraph"
    )
    add.add_argument("paths", metavar="PATH", nargs="+", help=path_help)
    add.add_argument(
        "--glob",
        action="append",
        metavar="PATTERN",
        help="of folders, read only what matches, as ignore files have patterns: '*.md',"
        " 'guide/**', '!draft*'; may be repeated",
    )
    sync_help = "delete the documents of files that are gone from a folder"
    add.add_argument("--sync", action="store_true", help=sync_help)
    prefix_help = "what ids begin with; default: the name of the folder"
    add.add_argument("--prefix", metavar="NAME", help=prefix_help)
    again_help = "write also what is there already, as it is"
    add.add_argument("--again", action="store_true", help=again_help)
    add_json_argument(add, "one JSON object, with what became of each file,")
    add.add_argument("--format", choices=KINDS, help="default: by each file's suffix")
    encoding_help = "of text, where a file does not say; default: %(default)s"
    add.add_argument("--encoding", default="utf-8", help=encoding_help)
    add.add_argument(
        "--id-column", metavar="NAME", help="of tables and records, the id; default: id, or _id"
    )
    add.add_argument(
        "--text-column",
        action="append",
        metavar="NAME",
        help="of tables and records, the text; may be repeated; default: text",
    )


def run_add(args: argparse.Namespace, client: AnyClient) -> int:
    """Write what paths lead to; 4 if something of it could not be read."""
    from condensery.commands.adding import add_paths  # late: `--help` does without it

    return add_paths(args, client)


def run_create(args: argparse.Namespace, client: AnyClient) -> None:
    """Make an index."""
    info = client.create_index(
        args.name,
        encoder=args.encoder,
        kind=args.kind,
        metric=args.metric,
        options=None if args.option is None else dict(args.option),
    )
    text = f"{info.name}: {info.kind}, {info.metric}, {info.dims} dimensions, {info.encoder}"
    print_result(args, text, info)
    warn_of_outdated_prompts([info])


def run_count(args: argparse.Namespace, client: AnyClient) -> None:
    """Count an index's documents and passages, or those that a filter chooses."""
    documents, passages = client.count(args.name, filter=args.filter)
    counts = {"documents": documents, "passages": passages}
    print_result(args, f"{documents} documents, {passages} passages", counts)


def run_get(args: argparse.Namespace, client: AnyClient) -> int:
    """Print documents by id; without all of them the status is 1."""
    documents = client.get(args.name, args.ids)
    for document in documents:
        print_entry(**asdict(document))
    there = {document.id for document in documents}
    missing = [id for id in args.ids if id not in there]
    for id in missing:
        print_note(f"{args.name}: there is no document {shorten(id)}")
    return 1 if missing else 0


def run_scroll(args: argparse.Namespace, client: AnyClient) -> None:
    """Print documents, page by page."""
    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit: {args.limit} is not at least 1")
    left, after = args.limit, args.after
    while left is None or left > 0:
        page = client.scroll(
            args.name,
            filter=args.filter,
            after=after,
            with_text=not args.no_text,
            with_vectors=args.vectors,
        )
        for document in page.documents[:left]:
            print_document(document)
        if page.next is None:
            break
        after, left = page.next, None if left is None else left - len(page.documents)


def print_document(document: StoredDocument) -> None:
    """Print those parts of a stored document that the server sent."""
    entry: dict[str, Any] = {"id": document.id}
    if document.text is not None:
        entry["text"] = document.text
    entry["metadata"] = dict(document.metadata or {})
    if document.passages is not None:
        entry["passages"] = [
            {"id": p.id, "start": p.start, "end": p.end, "vector": p.vector.tolist()}
            for p in document.passages
        ]
    print_entry(**entry)


def run_delete(args: argparse.Namespace, client: AnyClient) -> None:
    """Delete documents."""
    deleted = client.delete(args.name, args.ids or None, filter=args.filter)
    of = f" of {len(args.ids)}" if args.ids else ""
    print_result(args, f"{deleted}{of} documents deleted", {"deleted": deleted})


def run_drop(args: argparse.Namespace, client: AnyClient) -> int:
    """Delete an index; on a terminal it asks first, and the status is 1 if the answer is no."""
    if not args.yes and sys.stdin.isatty():
        documents, _ = client.count(args.name)
        if not confirm(f"Delete the index {args.name} and its {documents:,} documents?"):
            print_note(f"{args.name}: not dropped")
            return 1
    client.drop_index(args.name)
    print_result(args, f"{args.name}: dropped", {"name": args.name, "deleted": True})
    return 0


def run_list(args: argparse.Namespace, client: AnyClient) -> None:
    """Print the indexes."""
    infos = client.list_indexes()
    rows = [
        (i.name, str(i.documents), str(i.passages), describe_kind(i), i.metric, i.encoder)
        for i in infos
    ]
    head = ("NAME", "DOCUMENTS", "PASSAGES", "KIND", "METRIC", "ENCODER")
    print_result(args, format_table([head, *rows]), *infos)
    warn_of_outdated_prompts(infos)


def describe_kind(info: IndexInfo) -> str:
    """Return an index's kind; one that is not trained yet is searched as a flat one."""
    until = "" if info.trains_at is None else f" (flat until it has {info.trains_at:,})"
    return f"{info.kind}{until}"


# Aliases, snapshots and rebuilds


ALIASES_JSON = "a JSON object for each alias that there is"


def add_alias_actions(actions: Parsers) -> None:
    """Add ``alias`` and its verbs."""
    alias = actions.add_parser(
        "alias",
        help="give indexes second names, and move them",
        description="Give indexes second names, which do wherever an index's name is asked for."
        " What one command changes is changed at one moment, or not at all.",
    )
    verbs = alias.add_subparsers(dest="verb", metavar="ACTION", required=True)
    help = "point aliases at indexes, moving those that are there"
    with add_action(verbs, "set", run_set_aliases, help) as assign:
        assign.add_argument("pairs", nargs="+", metavar="ALIAS=INDEX")
        add_json_argument(assign, ALIASES_JSON)
    with add_action(verbs, "delete", run_delete_aliases, "take aliases away") as delete:
        delete.add_argument("aliases", nargs="+", metavar="ALIAS")
        add_json_argument(delete, ALIASES_JSON)
    with add_action(verbs, "rename", run_rename_alias, "give an alias another name") as rename:
        rename.add_argument("alias", metavar="ALIAS")
        rename.add_argument("to", metavar="NEW")
        add_json_argument(rename, ALIASES_JSON)
    help = "list the aliases, and where they lead"
    with add_action(verbs, "list", run_list_aliases, help) as listing:
        add_json_argument(listing, ALIASES_JSON)


def add_snapshot_actions(actions: Parsers) -> None:
    """Add ``snapshot`` with its verbs, and ``restore``."""
    snapshot = actions.add_parser("snapshot", help="copy indexes, and list and delete the copies")
    verbs = snapshot.add_subparsers(dest="verb", metavar="ACTION", required=True)
    help = "copy an index as it is now, while it goes on"
    with add_action(verbs, "make", run_make_snapshot, help) as make:
        make.add_argument("name", metavar="NAME")
        add_json_argument(make)
    help = "list an index's snapshots, the newest first"
    with add_action(verbs, "list", run_list_snapshots, help) as listing:
        listing.add_argument("name", metavar="NAME")
        add_json_argument(listing, "one JSON object a snapshot")
    with add_action(verbs, "delete", run_delete_snapshots, "delete snapshots") as delete:
        delete.add_argument("name", metavar="NAME")
        delete.add_argument("ids", nargs="+", metavar="SNAPSHOT")
        add_json_argument(delete, "one JSON object a snapshot")
    description = (
        "Make an index of a snapshot. One that is there serves until the new one is whole; what was"
        " written to it since the snapshot is then gone."
    )
    help = "make an index of a snapshot"
    with add_action(actions, "restore", run_restore, help, description) as restore:
        restore.add_argument("name", metavar="NAME", help="the index whose snapshot it is")
        snapshot_help = "its id; default: the newest"
        restore.add_argument("snapshot", metavar="SNAPSHOT", nargs="?", help=snapshot_help)
        restore.add_argument("--into", metavar="NEW", help="make an index of this name instead")
        add_json_argument(restore)


def add_rebuild(actions: Parsers) -> None:
    """Add ``rebuild``."""
    description = (
        "Make an index anew for another encoder, while it serves and is written, and wait until it"
        " is done; or go on with that. If this command ends, the server goes on."
    )
    help = "make an index anew for another encoder, while it serves"
    with add_action(actions, "rebuild", run_rebuild, help, description) as rebuild:
        rebuild.add_argument("name", metavar="NAME")
        encoder_help = "the index's own, as it runs, else"
        rebuild.add_argument("--encoder", metavar="MODEL", help=encoder_help)
        rebuild.add_argument("--kind", help="as of a new index; default: as it is")
        rebuild.add_argument("--metric", help="as of a new index; default: as it is")
        add_option_argument(rebuild, "; default: as they are, if the kind is")
        add_json_argument(rebuild)
        instead = rebuild.add_mutually_exclusive_group()
        instead.add_argument("--no-wait", action="store_true", help="do not wait until it is done")
        instead.add_argument("--status", action="store_true", help="print how far it is instead")
        instead.add_argument("--cancel", action="store_true", help="cancel it instead")


def run_set_aliases(args: argparse.Namespace, client: AnyClient) -> None:
    """Point aliases at indexes."""
    actions = []
    for pair in args.pairs:
        alias, equals, index = pair.partition("=")
        if not equals:
            raise InputError(f"{shorten(pair)} is not ALIAS=INDEX")
        actions.append(AliasAction("create", alias, index))
    _update_aliases(args, client, actions)


def run_delete_aliases(args: argparse.Namespace, client: AnyClient) -> None:
    """Take aliases away."""
    _update_aliases(args, client, [AliasAction("delete", alias) for alias in args.aliases])


def run_rename_alias(args: argparse.Namespace, client: AnyClient) -> None:
    """Give an alias another name."""
    _update_aliases(args, client, [AliasAction("rename", args.alias, args.to)])


def run_list_aliases(args: argparse.Namespace, client: AnyClient) -> None:
    """Print the aliases."""
    aliases = client.aliases()
    rows = [(alias.alias, alias.target, alias.index or "(no more)") for alias in aliases]
    print_result(args, format_table([("ALIAS", "POINTS AT", "INDEX"), *rows]), *aliases)


def run_make_snapshot(args: argparse.Namespace, client: AnyClient) -> None:
    """Make a snapshot."""
    snapshot = client.create_snapshot(args.name)
    what = f"{snapshot.documents} documents, {_format_size(snapshot.bytes)}"
    print_result(args, f"{snapshot.index}: snapshot {snapshot.id}, {what}", snapshot)


def run_list_snapshots(args: argparse.Namespace, client: AnyClient) -> None:
    """Print the snapshots, and on standard error those that can't be used."""
    listing = client.list_snapshots(args.name)
    rows = [
        (s.id, _format_time(s.created), str(s.documents), _format_size(s.bytes), s.encoder)
        for s in listing.data
    ]
    head = ("SNAPSHOT", "MADE", "DOCUMENTS", "SIZE", "ENCODER")
    print_result(args, format_table([head, *rows]), *listing.data)
    for reason in listing.refused.values():
        print_note(reason)


def run_delete_snapshots(args: argparse.Namespace, client: AnyClient) -> None:
    """Delete snapshots."""
    for id in args.ids:
        client.delete_snapshot(args.name, id)
        text = f"{args.name}: snapshot {id} deleted"
        print_result(args, text, {"id": id, "deleted": True})


def run_restore(args: argparse.Namespace, client: AnyClient) -> None:
    """Make an index of a snapshot."""
    snapshot = args.snapshot
    if snapshot is None:
        snapshots = client.list_snapshots(args.name).data
        if not snapshots:
            raise InputError(f"{args.name} has no snapshot that can be used")
        snapshot = snapshots[0].id
    info = client.restore_snapshot(args.name, snapshot, into=args.into)
    text = f"{info.name}: restored from {snapshot}, {info.documents} documents"
    print_result(args, text, info)
    warn_of_outdated_prompts([info])


def warn_of_outdated_prompts(infos: Iterable[IndexInfo]) -> None:
    """Name the indexes that were embedded without prompts that their encoder has."""
    for info in infos:
        if info.prompts_outdated:
            print_note(
                f"{info.name}: an older version made it without all of the prompts of "
                f"{info.encoder}, and it is searched and written without them; "
                f"`condensery index rebuild {info.name}` makes it anew with them"
            )


def run_rebuild(args: argparse.Namespace, client: AnyClient) -> None:
    """Rebuild an index, print how far that is, or cancel it."""
    if args.cancel:
        client.cancel_rebuild(args.name)
        text = f"{args.name}: rebuild cancelled"
        print_result(args, text, {"index": args.name, "cancelled": True})
        return
    if args.status:
        rebuild = client.rebuild_status(args.name)
    else:
        rebuild = client.rebuild_index(
            args.name,
            encoder=args.encoder,
            kind=args.kind,
            metric=args.metric,
            options=None if args.option is None else dict(args.option),
        )
        if not args.no_wait:
            rebuild = _wait_for_rebuild(client, rebuild)
    print_result(args, _describe_rebuild(rebuild), rebuild)
    if rebuild.state == "failed":
        raise CondenseryError(f"{rebuild.index}: {rebuild.reason}")


def _wait_for_rebuild(client: AnyClient, rebuild: Rebuild) -> Rebuild:
    """Wait for a rebuild's end, and show how far it is."""
    with tqdm(total=rebuild.documents, unit="doc", desc=rebuild.index, disable=None) as bar:
        while rebuild.state == "running":
            time.sleep(POLL_SECONDS)
            rebuild = client.rebuild_status(rebuild.index)
            bar.update(max(0, rebuild.documents - rebuild.pending - bar.n))
    return rebuild


def _describe_rebuild(rebuild: Rebuild) -> str:
    what = f"{rebuild.encoder}, {rebuild.kind}, {rebuild.metric}"
    if rebuild.state == "done":
        same = "" if rebuild.overlap is None else f"; finds {rebuild.overlap:.0%} as before"
        return f"{rebuild.index}: rebuilt for {what}{same}"
    if rebuild.state == "failed":
        return f"{rebuild.index}: not rebuilt for {what}; {rebuild.pending} documents to do"
    return f"{rebuild.index}: being rebuilt for {what}; {rebuild.pending} documents to do"


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _format_size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _update_aliases(
    args: argparse.Namespace, client: AnyClient, actions: list[AliasAction]
) -> None:
    aliases = client.update_aliases(actions)
    words = {"create": "set to", "rename": "renamed", "delete": "deleted"}
    lines = (f"{a.alias}: {words[a.verb]} {a.target or ''}".rstrip() for a in actions)
    print_result(args, "\n".join(lines), *aliases)
