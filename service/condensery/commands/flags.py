"""The settings as flags: made from ``Settings``, so that nothing is written twice."""

import argparse
from functools import partial
from typing import Any

from pydantic_core import PydanticUndefined

from condensery.settings import (
    VARIABLE_PREFIX,
    Settings,
    choices_of,
    describe_allowed,
    flag_of,
    group_of,
    is_secret,
)

FLAGS_USAGE = "%(prog)s [-h] [FLAG ...]"  # all of them would be twenty lines above every error
FLAGS_EXPLANATION = (
    "Each setting is also read from the environment, --max-items from CONDENSERY_MAX_ITEMS and so "
    "on; the command line wins. Keys are no flags, since command lines are seen by others: "
    "CONDENSERY_API_KEY holds one, --keys-file names a file of them; CONDENSERY_ANSWER_KEY is the "
    "one for --answer-with, CONDENSERY_INDEX_DATABASE_KEY that for --index-database."
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting that is no secret; flags that are not set are None.

    ``read_settings`` checks the values, so that a wrong value gets the same message wherever it was
    set.
    """
    groups: dict[str, Any] = {}
    for name in Settings.model_fields:
        if is_secret(name):
            refuse = _refuse_secret if name == "api_key" else partial(_refuse_other_key, name)
            parser.add_argument(flag_of(name), type=refuse, help=argparse.SUPPRESS)
            continue
        title = group_of(name)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        how: dict[str, Any] = {"default": None, "help": explain_setting(name).replace("%", "%%")}
        if Settings.model_fields[name].annotation is bool:
            how["action"] = argparse.BooleanOptionalAction
        elif choices := choices_of(name):
            how["metavar"] = "{" + ",".join(choices) + "}"
        else:
            how["metavar"] = name.split("_")[-1].upper()
        groups[title].add_argument(flag_of(name), **how)


def _refuse_secret(value: str) -> None:
    """Refuse a secret as a flag, without showing it."""
    raise argparse.ArgumentTypeError(
        "it is no flag, since command lines are seen by others: set CONDENSERY_API_KEY, or name a "
        "file of keys with --keys-file"
    )


def _refuse_other_key(name: str, value: str) -> None:
    """Refuse another server's key as a flag, without showing it."""
    variable = f"{VARIABLE_PREFIX}{name.upper()}"
    raise argparse.ArgumentTypeError(
        f"it is no flag, since command lines are seen by others: set {variable}"
    )


def read_flags(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings among the arguments, by field."""
    return {name: getattr(args, name, None) for name in Settings.model_fields}


def explain_setting(name: str) -> str:
    """Return what a setting is for, which numbers it may have, and its default."""
    field = Settings.model_fields[name]
    notes = []
    if field.annotation in (int, float):
        notes.append(describe_allowed(name).split(", ")[1])
    elif field.examples:
        notes.append(describe_allowed(name))
    if field.default not in (None, PydanticUndefined):
        notes.append(f"default: {format_setting(name, field.default)}")
    text = (field.description or "").removesuffix(".")
    return f"{text} ({'; '.join(notes)})" if notes else text


def format_setting(name: str, value: object) -> str:
    """Return a setting's value as people read it; of a secret, only whether there is one."""
    if value is None:
        return "not set"
    if is_secret(name):
        return "set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if name.endswith("_bytes") and isinstance(value, int):
        for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
            if value % size == 0:
                return f"{value} = {value // size} {unit}"
    return str(value)
