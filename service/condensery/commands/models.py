"""``condensery models``: what the stores hold and were measured at, and what a server runs."""

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from condensery.atomic_files import PRIVATE_UMASK, umask
from condensery.commands.common import (
    AnyClient,
    Parsers,
    add_action,
    add_json_argument,
    add_server_arguments,
    connect,
    format_table,
    print_note,
    print_result,
    require_extra,
)
from condensery.errors import CondenseryError, InputError
from condensery.names import INDEX_SEPARATOR
from condensery.values import SEARCH_MODES, ModelIndex, ModelInfo, ModelReport

if TYPE_CHECKING:
    from condensery.settings import Settings
    from condensery.store.manifest import StoredModel
    from condensery.store.store import ModelStore


def add_models(parsers: Parsers) -> None:
    """Add ``models`` and its actions."""
    models = parsers.add_parser(
        "models",
        help="list, show, verify and import stored models; load and unload them in a server",
        description="Work with the model stores, the one that is shipped and your own, and with"
        " the models that a server runs.",
    )
    actions = models.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_store_actions(actions)
    add_server_actions(actions)


def add_store_actions(actions: Parsers) -> None:
    """Add the actions that read and fill the stores; ``report`` may ask a server instead."""
    add_store_action = partial(add_action, actions, add_where=add_store_arguments)
    help = "list the stored models, broken ones with the reason"
    with add_store_action("list", run_list, help) as listing:
        json_help = "print one JSON object a model instead"
        listing.add_argument("--json", action="store_true", help=json_help)
    with add_store_action("show", run_show, "print a model's manifest, as JSON") as show:
        show.add_argument("name", metavar="NAME")
    help = "hash a model's files again, or every model's"
    with add_store_action("verify", run_verify, help) as verify:
        verify.add_argument("name", metavar="NAME", nargs="?")
    description = (
        "Print what a model was measured at when it was published: from the stores, or from a"
        " running server."
    )
    help = "print what a model was measured at: JSON, or its card"
    with add_store_action("report", run_report, help, description) as report:
        report.add_argument("name", metavar="NAME")
        report.add_argument("--format", choices=("json", "markdown"), default="json")
        plots_help = "write the plots there, as PNG"
        report.add_argument("--plots", type=Path, metavar="DIR", help=plots_help)
        add_server_arguments(report, needed=False)
    description = (
        "Write the generator of a pair of language models, adapters merged, as a directory that"
        " vLLM serves; condensery serve --generator-servers then sends it its vectors."
    )
    help = "write a pair's generator for a server of its own"
    with add_store_action("generator", run_generator, help, description) as generator:
        generator.add_argument("name", metavar="NAME")
        generator.add_argument("directory", type=Path, metavar="DIRECTORY")
        dtype_help = "of the weights; by default as they are stored"
        generator.add_argument(
            "--dtype", choices=("float32", "bfloat16", "float16"), help=dtype_help
        )
    description = (
        "Import a sentence-transformers model, a Hugging Face encoder, a language model as a"
        " retriever (LLM-Drop's directories, LoRA directories), a checkpoint of LLM2Comp's"
        " (mp_rank_00_model_states.pt), a published OSCAR pair (naver/oscar-*, naver/pisco-*), or a"
        " stored model, from its directory."
    )
    help = "import a model's directory"
    with add_store_action("import", run_import, help, description) as importing:
        importing.add_argument("path", type=Path, metavar="PATH")
        importing.add_argument("--name", required=True, help="the model's name in the store")
        importing.add_argument(
            "--pooling",
            choices=("mean", "cls", "last"),
            help="how tokens' vectors become a text's, of an encoder or language model whose"
            " directory does not say (default: last of a causal language model, mean of others)",
        )
        importing.add_argument(
            "--normalize",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="scale vectors to length 1, where the directory does not say (default: yes)",
        )
        add_retriever_arguments(importing)
        add_pair_arguments(importing)


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose your own store."""
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="your own store (default: DATA_DIR/models)"
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="as in condensery serve")


def add_retriever_arguments(importing: argparse.ArgumentParser) -> None:
    """Add the arguments that become ``RetrieverOptions``."""
    retrievers = importing.add_argument_group("retrievers made of language models")
    retrievers.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="a LoRA directory's base model (default: the directory that it names, looked for in"
        " it, then from here, then beside it); the language model of a checkpoint of LLM2Comp's",
    )
    retrievers.add_argument(
        "--query-prompt",
        metavar="TEXT",
        help="put before queries (default: EffiR's for a LoRA directory, else none)",
    )
    retrievers.add_argument(
        "--max-tokens",
        type=int,
        metavar="TOKENS",
        help="longest input (default: what network and tokenizer allow; 512 of a LoRA directory or"
        " a checkpoint of LLM2Comp's)",
    )
    retrievers.add_argument(
        "--add-eos",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="end each text with the end token where the tokenizer does not (default: no for a LoRA"
        " directory, as the published code reads it; else where the last token is the vector)",
    )


def add_pair_arguments(importing: argparse.ArgumentParser) -> None:
    """Add the arguments that become ``PairOptions``."""
    pairs = importing.add_argument_group("published OSCAR pairs")
    for half in ("generator", "compressor"):
        pairs.add_argument(
            f"--{half}-base",
            type=Path,
            metavar="DIR",
            help=f"the {half}'s base model (default: the directory that config.json names,"
            " looked for as for --base)",
        )
    pairs.add_argument(
        "--questions",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the compressor reads the question (default: yes; naver/pisco-*'s do not)",
    )
    pairs.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="of question and passage together, or of the passage where no question is read, beside"
        " what the layout puts around them (default: a passage as in training, and 64 for the"
        " question where it is read; the published code takes 128)",
    )
    pairs.add_argument(
        "--rounded-rope",
        action="store_true",
        default=None,
        help="round the compressor's rotary frequencies to bf16, as the published code does",
    )


def open_store(args: argparse.Namespace) -> "ModelStore":
    """Open the shipped store, and your own one that ``args`` or the environment name."""
    with require_extra("serve"):
        from condensery.store.store import ModelStore, shipped_store
    return ModelStore(shipped_store(), _read_settings(args).own_store)


def _read_settings(args: argparse.Namespace) -> "Settings":
    with require_extra("serve"):
        from condensery.settings import read_settings
    return read_settings({"store": args.store, "data_dir": args.data_dir})


def run_list(args: argparse.Namespace) -> int:
    """Print a line for each model, and on standard error for each broken one."""
    from condensery.store.manifest import StoredModel

    store = open_store(args)
    rows = [("NAME", "VERSION", "KIND", "METHOD", "DTYPE", "MiB", "LICENCE", "STORE")]
    broken = []
    for entry in store.list():
        if not isinstance(entry, StoredModel):
            broken.append(f"{entry.name}: refused: {entry.reason} ({entry.path})")
            continue
        manifest = entry.manifest
        size = sum((entry.path / file).stat().st_size for file in manifest.files) / 2**20
        where = "shipped" if entry.root == store.shipped else "own"
        rows.append(
            (
                entry.name,
                entry.version,
                manifest.kind,
                manifest.method,
                manifest.dtype,
                f"{size:.1f}",
                manifest.licence,
                where,
            )
        )
    names = [column.lower() for column in rows[0]]
    models = [dict(zip(names, row, strict=True)) for row in rows[1:]]
    print_result(args, format_table(rows), *models)
    for line in broken:
        print_note(line)
    return 0


def run_show(args: argparse.Namespace) -> int:
    """Print a manifest."""
    store = open_store(args)
    stored = store.open(args.name, check=False)
    content = stored.manifest.model_dump(mode="json") | {"path": str(stored.path)}
    print(json.dumps(content, indent=2, ensure_ascii=False))
    _note_base(store, stored)
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """Hash a model's files, or every model's; 1 if any is broken."""
    from condensery.store.manifest import StoredModel

    store = open_store(args)
    entries = [store.verify(args.name)] if args.name else store.list()
    intact = True
    for entry in entries:
        if isinstance(entry, StoredModel):
            files = len(entry.manifest.files)
            print(f"{entry.name} version {entry.version}: {files} files as they should be")
            _note_base(store, entry)
        else:
            intact = False
            print(f"{entry.name}: broken: {entry.reason}")
    return 0 if intact else 1


def _note_base(store: "ModelStore", stored: "StoredModel") -> None:
    """Say that a model can't be loaded here, for want of what it shares files with."""
    if not store.has_base(stored):
        about = stored.manifest
        print_note(
            f"note: {stored.name} can't be loaded: its base {about.base} with fingerprint"
            f" {about.base_fingerprint} is not in the store"
        )


def run_import(args: argparse.Namespace) -> int:
    """Import a directory."""
    with require_extra("serve"):
        from condensery.store.importing import import_model
        from condensery.store.pair_options import PairOptions
        from condensery.store.retriever_options import RetrieverOptions
    for flag, value in (("--max-length", args.max_length), ("--max-tokens", args.max_tokens)):
        if value is not None and value < 8:
            raise InputError(f"{flag}: {value} is not allowed: at least 8")
    with umask(PRIVATE_UMASK) if _read_settings(args).store_is_private else nullcontext():
        stored = import_model(
            open_store(args),
            args.path,
            args.name,
            pooling=args.pooling,
            normalize=args.normalize,
            pair=PairOptions(
                generator_base=args.generator_base,
                compressor_base=args.compressor_base,
                questions=args.questions,
                max_length=args.max_length,
                rounded_rope=args.rounded_rope,
            ),
            retriever=RetrieverOptions(args.base, args.query_prompt, args.max_tokens, args.add_eos),
        )
    print(f"{stored.name} version {stored.version} ({stored.manifest.kind}): {stored.path}")
    for note in stored.manifest.provenance.notes:
        print_note(f"note: {note}")
    return 0


def run_generator(args: argparse.Namespace) -> int:
    """Write a pair's generator."""
    with require_extra("serve"):
        from condensery.networks.dtypes import dtype_name
        from condensery.store.exporting import export_generator
    stored = open_store(args).open(args.name)
    written = export_generator(stored, args.directory, args.dtype)
    print(f"{args.directory}: the generator of {stored.name} in {dtype_name(written)}")
    print_note(
        f"serve it: vllm serve {args.directory} --served-model-name {stored.name}"
        " --enable-prompt-embeds --no-enable-prefix-caching"
    )
    return 0


def run_report(args: argparse.Namespace) -> int:
    """Print a report or a card."""
    if args.url is None and args.grpc is None:
        with require_extra("serve"):
            from condensery.store.reports import StoredReport
        stored = StoredReport(open_store(args).open(args.name, check=False))
        _print_report(args, stored.report, stored.card, stored.plot)
        return 0
    for field in ("store", "data_dir"):
        if getattr(args, field) is not None:
            name = field.replace("_", "-")
            raise InputError(f"--{name}: it can't be combined with --url or --grpc", field=field)
    with connect(args) as client:
        report, card = partial(client.report, args.name), partial(client.report_card, args.name)
        _print_report(args, report, card, partial(client.report_plot, args.name))
    return 0


def _print_report(
    args: argparse.Namespace,
    report: Callable[[], ModelReport],
    card: Callable[[], str],
    plot: Callable[[str], bytes],
) -> None:
    measured = report()
    if args.format == "markdown":
        print(card(), end="")
    else:
        print(json.dumps(asdict(measured), indent=2, ensure_ascii=False))
    if args.plots is not None:
        _write_plots(args.plots, {name: plot(name) for name in measured.plots})


def _write_plots(folder: Path, plots: dict[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in plots.items():
            (folder / f"{name}.png").write_bytes(content)
    except OSError as error:
        raise CondenseryError(f"--plots: {folder} can't be written: {error.strerror}") from error
    print_note(f"{len(plots)} plots in {folder}")


def add_server_actions(actions: Parsers) -> None:
    """Add the actions that change what a server runs."""
    description = (
        "Load a model of the server's stores. The version that serves does so until the new one is"
        " checked and warm, and finishes what it has begun. One that can't be loaded changes"
        " nothing."
    )
    for name, again, help in (
        ("load", False, "let a server load a stored model, in place of the version that serves"),
        ("reload", True, "let it load a model again, though it serves already"),
    ):
        with add_action(actions, name, run_load, help, description) as loading:
            loading.add_argument("name", metavar="NAME")
            version_help = "in the store, a whole number (default: the highest)"
            loading.add_argument("--version", metavar="N", help=version_help)
            loading.set_defaults(again=again)
            add_json_argument(loading)
    description = (
        "Unload a model: its last requests are finished first, and its memory is free when this"
        " returns."
    )
    help = "let a server unload a model"
    with add_action(actions, "unload", run_unload, help, description) as unload:
        unload.add_argument("name", metavar="NAME")
        force_help = "though it is a default, or an index's encoder"
        unload.add_argument("--force", action="store_true", help=force_help)
        add_json_argument(unload)
    description = (
        "Set aliases of models, or remove them, all at once; then list them. A restart keeps them."
        " With --index the alias carries an index, from which questions that name it are answered:"
        " a model that any chat client can be given by name."
    )
    help = "list, set and remove a server's aliases of models"
    with add_action(actions, "alias", run_alias, help, description) as alias:
        alias.add_argument("aliases", nargs="*", metavar="ALIAS=MODEL", help="ALIAS= removes one")
        alias.add_argument("--index", metavar="NAME", help="the index that a pair's alias carries")
        top_k_help = "passages to retrieve from it, for each question (default: 20)"
        alias.add_argument("--top-k", type=int, metavar="N", help=top_k_help)
        mode_help = "how it is searched (default: as the server is set)"
        alias.add_argument("--mode", choices=SEARCH_MODES, help=mode_help)
        add_json_argument(alias)
    help = "list a server's stored models, and which serve"
    with add_action(actions, "status", run_status, help) as status:
        add_json_argument(status, "one JSON object a stored version")


def run_load(args: argparse.Namespace, client: AnyClient) -> None:
    """Load a model; with ``again`` also one that serves already."""
    loaded = client.load_model(args.name, version=args.version, again=args.again)
    info, previous = loaded.model, loaded.previous
    model = f"{info.name} version {info.version} ({info.fingerprint})"
    if not loaded.changed:
        text = f"{model} served already"
    elif previous is None:
        text = f"{model} serves, loaded in {loaded.seconds:.1f} s"
    else:
        text = f"{model} serves in place of version {previous.version}, in {loaded.seconds:.1f} s"
    print_result(args, text, loaded)
    _note_stranded(loaded.stranded_indexes)


def run_unload(args: argparse.Namespace, client: AnyClient) -> None:
    """Unload a model."""
    unloaded = client.unload_model(args.name, force=args.force)
    text = f"{unloaded.id} version {unloaded.version}: unloaded in {unloaded.seconds:.1f} s"
    print_result(args, text, unloaded)
    _note_stranded(unloaded.stranded_indexes)


def run_alias(args: argparse.Namespace, client: AnyClient) -> None:
    """Change aliases, and print what there are."""
    changes: dict[str, str | None] = {}
    for argument in args.aliases:
        alias, separator, target = argument.partition("=")
        if not separator or not alias:
            raise InputError(f"{argument!r} is not ALIAS=MODEL, nor ALIAS= to remove one")
        if alias in changes:
            raise InputError(f"{argument!r}: the alias {alias!r} is set twice")
        changes[alias] = target or None
    if args.index is not None:
        changes = _add_index(changes, ModelIndex(args.index, args.top_k, args.mode))
    elif args.top_k is not None or args.mode is not None:
        raise InputError("--top-k and --mode say how an index is searched: give --index too")
    if changes:
        aliases = client.set_aliases(changes)
    else:
        aliases = {info.name: _target_of(info) for info in client.models() if info.alias_of}
    lines = [f"{alias} -> {target}" for alias, target in sorted(aliases.items())]
    if lines or args.json:
        print_result(args, "\n".join(lines), {"aliases": aliases})


def _add_index(changes: dict[str, str | None], index: ModelIndex) -> dict[str, str | None]:
    """Return changes whose one alias carries an index."""
    (alias, target), *others = [*changes.items()] or [("", None)]
    if others or target is None or INDEX_SEPARATOR in target:
        raise InputError(f"--index {index.name} needs one ALIAS=MODEL, which is to carry it")
    return {alias: f"{target}{INDEX_SEPARATOR}{index}"}


def _target_of(info: ModelInfo) -> str:
    return f"{info.alias_of}{INDEX_SEPARATOR}{info.index}" if info.index else f"{info.alias_of}"


def run_status(args: argparse.Namespace, client: AnyClient) -> None:
    """Print a line for each stored version."""
    models = client.stored_models()
    rows = [("NAME", "VERSION", "STATE", "REASON")]
    rows += [(model.name, model.version, model.state, model.reason) for model in models]
    print_result(args, format_table(rows), *models)


def _note_stranded(indexes: tuple[str, ...]) -> None:
    if indexes:
        print_note(
            f"note: made by another encoder of that name, and refused until it serves again: "
            f"{', '.join(indexes)}"
        )
