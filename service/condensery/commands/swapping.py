"""``condensery models load | reload | unload | alias | status``: the models of a running server."""

import argparse

from condensery.commands.connecting import add_server, connect
from condensery.commands.printing import Parsers, say, table
from condensery.errors import InputError


def add_actions(actions: Parsers) -> None:
    """Add the actions that change what a server runs."""
    for name, run, what in (
        ("load", run_load, "let a server load a stored model, in place of the version that serves"),
        ("reload", run_reload, "let it load a model again, though it serves already"),
    ):
        loading = actions.add_parser(
            name,
            help=what,
            description="Load a model of the server's stores. The version that serves does so until"
            " the new one is checked and warm, and finishes what it has begun. One that can't be"
            " loaded changes nothing.",
        )
        loading.add_argument("name", metavar="NAME")
        loading.add_argument(
            "--version", metavar="N", help="in the store, a whole number (default: the highest)"
        )
        add_server(loading)
        loading.set_defaults(run=run)

    unload = actions.add_parser(
        "unload",
        help="let a server unload a model",
        description="Unload a model: its last requests are finished first, and its memory is free"
        " when this returns.",
    )
    unload.add_argument("name", metavar="NAME")
    unload.add_argument(
        "--force", action="store_true", help="though it is a default, or an index's encoder"
    )
    add_server(unload)
    unload.set_defaults(run=run_unload)

    alias = actions.add_parser(
        "alias",
        help="list, set and remove a server's aliases of models",
        description="Set aliases of models, or remove them, all at once; then list them. A restart"
        " keeps them.",
    )
    alias.add_argument("aliases", nargs="*", metavar="ALIAS=MODEL", help="ALIAS= removes one")
    add_server(alias)
    alias.set_defaults(run=run_alias)

    status = actions.add_parser("status", help="list a server's stored models, and which serve")
    add_server(status)
    status.set_defaults(run=run_status)


def run_load(args: argparse.Namespace) -> int:
    """Load a model."""
    return _load(args, again=False)


def run_reload(args: argparse.Namespace) -> int:
    """Load a model again."""
    return _load(args, again=True)


def _load(args: argparse.Namespace, *, again: bool) -> int:
    with connect(args) as client:
        loaded = client.load_model(args.name, version=args.version, again=again)
    info, previous = loaded.info, loaded.previous
    what = f"{info.name} version {info.version} ({info.fingerprint})"
    if not loaded.changed:
        print(f"{what} served already")
    elif previous is None:
        print(f"{what} serves, loaded in {loaded.seconds:.1f} s")
    else:
        print(f"{what} serves in place of version {previous.version}, in {loaded.seconds:.1f} s")
    _tell_stranded(loaded.stranded_indexes)
    return 0


def run_unload(args: argparse.Namespace) -> int:
    """Unload a model."""
    with connect(args) as client:
        gone = client.unload_model(args.name, force=args.force)
    print(f"{gone.name} version {gone.revision.version}: unloaded in {gone.seconds:.1f} s")
    _tell_stranded(gone.stranded_indexes)
    return 0


def run_alias(args: argparse.Namespace) -> int:
    """Change aliases, and print what there are."""
    changes: dict[str, str | None] = {}
    for given in args.aliases:
        alias, separator, target = given.partition("=")
        if not separator or not alias:
            raise InputError(f"{given!r} is not ALIAS=MODEL, nor ALIAS= to remove one")
        if alias in changes:
            raise InputError(f"{given!r}: {alias!r} is given twice")
        changes[alias] = target or None
    with connect(args) as client:
        if changes:
            found = client.set_aliases(changes)
        else:
            found = {one.name: one.alias_of for one in client.models() if one.alias_of}
    for alias, target in sorted(found.items()):
        print(f"{alias} -> {target}")
    return 0


def run_status(args: argparse.Namespace) -> int:
    """Print a line a stored version."""
    with connect(args) as client:
        found = client.stored_models()
    rows = [("NAME", "VERSION", "STATE", "REASON")]
    rows += [(one.name, one.version, one.state, one.reason) for one in found]
    print(table(rows))
    return 0


def _tell_stranded(indexes: tuple[str, ...]) -> None:
    if indexes:
        say(
            f"note: made by another encoder of that name, and refused until it serves again: "
            f"{', '.join(indexes)}"
        )
