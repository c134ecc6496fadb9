"""``condensery settings``: what a server with these flags, in this environment, would run with."""

import argparse
import json

from condensery.commands.printing import Parsers, table


def add_parser(parsers: Parsers) -> None:
    """Add ``settings``, whose flags are made when it runs, as those of ``serve``."""
    parser = parsers.add_parser(
        "settings", help="print each setting and where it comes from", add_help=False
    )
    parser.set_defaults(run=run, takes_rest=True)


def run(args: argparse.Namespace) -> int:
    """Print the settings, or refuse them as ``serve`` would."""
    from condensery.api.ports import check_guarded
    from condensery.commands.flags import EXPLANATION, USAGE, add_flags, read_flags, show
    from condensery.keys import Keys, reload
    from condensery.settings import is_secret, trace_settings

    parser = argparse.ArgumentParser(
        prog="condensery settings",
        usage=USAGE,
        description="Print each setting, its value and where it comes from, as `condensery serve` "
        f"with the same flags would take it; a wrong one is refused. {EXPLANATION}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_flags(parser)
    given = parser.parse_args(args.rest)
    settings, origins = trace_settings(read_flags(given))
    keys = Keys()
    reload(keys, settings.keys_file, settings.api_key)  # refuses a keys file that is wrong
    makes_key = settings.make_key or settings.allow_no_keys
    check_guarded(settings.host, keys, allow_no_keys=makes_key)
    if given.json:
        values = {
            name: show(name, value) if is_secret(name) else value
            for name, value in settings.model_dump(mode="json").items()
        }
        content = {name: {"value": values[name], "from": origins[name]} for name in origins}
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        rows = [(name, show(name, getattr(settings, name)), origins[name]) for name in origins]
        print(table([("SETTING", "VALUE", "FROM"), *rows]))
    return 0
