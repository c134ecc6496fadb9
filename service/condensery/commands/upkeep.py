"""``condensery index alias``, ``snapshot``, ``restore`` and ``rebuild``: keeping indexes."""

import argparse
import time
from collections.abc import Callable, Iterable

from tqdm import tqdm

from condensery.commands.connecting import Connection, add_server, connect
from condensery.commands.printing import Parsers, say, table
from condensery.errors import CondenseryError, InputError, shorten
from condensery.upkeep import AliasAction, Rebuild
from condensery.values import IndexInfo

POLL_SECONDS = 0.5


def add_parsers(actions: Parsers, read_option: Callable[[str], tuple[str, int]]) -> None:
    """Add these actions to those of ``index``.

    Args:
        actions: Theirs.
        read_option: Reads an option of an index's kind.
    """
    alias = actions.add_parser(
        "alias",
        help="give indexes second names, and move them",
        description="Give indexes second names, which do wherever an index's name is asked for."
        " What one command changes is changed at one moment, or not at all.",
    )
    verbs = alias.add_subparsers(dest="verb", metavar="ACTION", required=True)
    assign = verbs.add_parser("set", help="point aliases at indexes, moving those that are there")
    assign.add_argument("pairs", nargs="+", metavar="ALIAS=INDEX")
    assign.set_defaults(run=run_set)
    delete = verbs.add_parser("delete", help="take aliases away")
    delete.add_argument("aliases", nargs="+", metavar="ALIAS")
    delete.set_defaults(run=run_delete)
    rename = verbs.add_parser("rename", help="give an alias another name")
    rename.add_argument("alias", metavar="ALIAS")
    rename.add_argument("to", metavar="NEW")
    rename.set_defaults(run=run_rename)
    listing = verbs.add_parser("list", help="list the aliases, and where they lead")
    listing.set_defaults(run=run_list_aliases)

    snapshot = actions.add_parser("snapshot", help="copy indexes, and list and delete the copies")
    parts = snapshot.add_subparsers(dest="verb", metavar="ACTION", required=True)
    make = parts.add_parser("make", help="copy an index as it is now, while it goes on")
    make.add_argument("name", metavar="NAME")
    make.set_defaults(run=run_make)
    copies = parts.add_parser("list", help="list an index's snapshots, the newest first")
    copies.add_argument("name", metavar="NAME")
    copies.set_defaults(run=run_list_snapshots)
    remove = parts.add_parser("delete", help="delete snapshots")
    remove.add_argument("name", metavar="NAME")
    remove.add_argument("ids", nargs="+", metavar="SNAPSHOT")
    remove.set_defaults(run=run_delete_snapshots)

    restore = actions.add_parser(
        "restore",
        help="make an index of a snapshot",
        description="Make an index of a snapshot. One that is there serves until the new one is"
        " whole; what was written to it since the snapshot is then gone.",
    )
    restore.add_argument("name", metavar="NAME", help="the index whose snapshot it is")
    restore.add_argument(
        "snapshot", metavar="SNAPSHOT", nargs="?", help="its id; default: the newest"
    )
    restore.add_argument("--into", metavar="NEW", help="make an index of this name instead")
    restore.set_defaults(run=run_restore)

    rebuild = actions.add_parser(
        "rebuild",
        help="make an index anew for another encoder, while it serves",
        description="Make an index anew for another encoder, while it serves and is written, and"
        " wait until it is done; or go on with that. If this command ends, the server goes on.",
    )
    rebuild.add_argument("name", metavar="NAME")
    rebuild.add_argument("--encoder", metavar="MODEL", help="the index's own, as it runs, else")
    rebuild.add_argument("--kind", help="as of a new index; default: as it is")
    rebuild.add_argument("--metric", help="as of a new index; default: as it is")
    rebuild.add_argument(
        "--option",
        action="append",
        type=read_option,
        metavar="NAME=NUMBER",
        help="of the kind, as of a new index; default: as they are, if the kind is",
    )
    instead = rebuild.add_mutually_exclusive_group()
    instead.add_argument("--no-wait", action="store_true", help="do not wait until it is done")
    instead.add_argument("--status", action="store_true", help="tell how far it is instead")
    instead.add_argument("--cancel", action="store_true", help="give it up instead")
    rebuild.set_defaults(run=run_rebuild)

    for action in (assign, delete, rename, listing, make, copies, remove, restore, rebuild):
        add_server(action)


def run_set(args: argparse.Namespace) -> int:
    """Point aliases at indexes."""
    actions = []
    for pair in args.pairs:
        alias, equals, index = pair.partition("=")
        if not equals:
            raise InputError(f"{shorten(pair)} is not ALIAS=INDEX")
        actions.append(AliasAction("create", alias, index))
    return _change(args, actions)


def run_delete(args: argparse.Namespace) -> int:
    """Take aliases away."""
    return _change(args, [AliasAction("delete", alias) for alias in args.aliases])


def run_rename(args: argparse.Namespace) -> int:
    """Give an alias another name."""
    return _change(args, [AliasAction("rename", args.alias, args.to)])


def run_list_aliases(args: argparse.Namespace) -> int:
    """Print the aliases."""
    with connect(args) as client:
        found = client.aliases()
    rows = [(one.alias, one.target, one.index or "(no more)") for one in found]
    print(table([("ALIAS", "POINTS AT", "INDEX"), *rows]))
    return 0


def run_make(args: argparse.Namespace) -> int:
    """Make a snapshot."""
    with connect(args) as client:
        made = client.create_snapshot(args.name)
    print(f"{made.index}: snapshot {made.id}, {made.documents} documents, {_size(made.bytes)}")
    return 0


def run_list_snapshots(args: argparse.Namespace) -> int:
    """Print the snapshots, and on the error output those that can't be used."""
    with connect(args) as client:
        found = client.list_snapshots(args.name)
    rows = [
        (one.id, _moment(one.created), str(one.documents), _size(one.bytes), one.encoder)
        for one in found.found
    ]
    print(table([("SNAPSHOT", "MADE", "DOCUMENTS", "SIZE", "ENCODER"), *rows]))
    for reason in found.refused.values():
        say(reason)
    return 0


def run_delete_snapshots(args: argparse.Namespace) -> int:
    """Delete snapshots."""
    with connect(args) as client:
        for one in args.ids:
            client.delete_snapshot(args.name, one)
            print(f"{args.name}: snapshot {one} deleted")
    return 0


def run_restore(args: argparse.Namespace) -> int:
    """Make an index of a snapshot."""
    with connect(args) as client:
        snapshot = args.snapshot
        if snapshot is None:
            found = client.list_snapshots(args.name).found
            if not found:
                raise InputError(f"{args.name} has no snapshot that can be used")
            snapshot = found[0].id
        made = client.restore_snapshot(args.name, snapshot, into=args.into)
    print(f"{made.name}: restored from {snapshot}, {made.documents} documents")
    warn_of_prompts([made])
    return 0


def warn_of_prompts(found: Iterable[IndexInfo]) -> None:
    """Say which indexes were embedded without prompts that their encoder has."""
    for one in found:
        if one.prompts_outdated:
            say(
                f"{one.name}: an older version made it without all of the prompts of {one.encoder},"
                " and it is asked and written without them; "
                f"`condensery index rebuild {one.name}` takes them"
            )


def run_rebuild(args: argparse.Namespace) -> int:
    """Rebuild an index, tell how that goes, or give it up."""
    with connect(args) as client:
        if args.cancel:
            client.cancel_rebuild(args.name)
            print(f"{args.name}: rebuild given up")
            return 0
        if args.status:
            told = client.rebuild_status(args.name)
        else:
            told = client.rebuild_index(
                args.name,
                encoder=args.encoder,
                kind=args.kind,
                metric=args.metric,
                options=None if args.option is None else dict(args.option),
            )
            if not args.no_wait:
                told = _watch(client, told)
    print(_tell(told))
    if told.state == "failed":
        raise CondenseryError(f"{told.index}: {told.reason}")
    return 0


def _watch(client: Connection, told: Rebuild) -> Rebuild:
    """Wait for a rebuild's end, and show how far it is."""
    with tqdm(total=told.documents, unit="doc", desc=told.index, disable=None) as bar:
        while told.state == "running":
            time.sleep(POLL_SECONDS)
            told = client.rebuild_status(told.index)
            bar.update(max(0, told.documents - told.pending - bar.n))
    return told


def _tell(told: Rebuild) -> str:
    what = f"{told.encoder}, {told.kind}, {told.metric}"
    if told.state == "done":
        same = "" if told.overlap is None else f"; finds {told.overlap:.0%} as before"
        return f"{told.index}: rebuilt for {what}{same}"
    if told.state == "failed":
        return f"{told.index}: not rebuilt for {what}; {told.pending} documents to do"
    return f"{told.index}: being rebuilt for {what}; {told.pending} documents to do"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _change(args: argparse.Namespace, actions: list[AliasAction]) -> int:
    with connect(args) as client:
        client.update_aliases(actions)
    words = {"create": "set to", "rename": "renamed", "delete": "deleted"}
    for one in actions:
        print(f"{one.alias}: {words[one.verb]} {one.target or ''}".rstrip())
    return 0
