"""Settings, read once from the command line and the environment, and told in words."""

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr, ValidationError

from condensery.errors import SettingError, shorten
from condensery.keys import LEAST_CHARACTERS
from condensery.options import LOCKS, Settings, default_data_dir, read_pair

__all__ = [
    "CLIENT_VARIABLES",
    "PREFIX",
    "Settings",
    "allowed",
    "choices_of",
    "default_data_dir",
    "flag_of",
    "group_of",
    "is_secret",
    "read_pair",
    "read_settings",
    "trace_settings",
    "variable_of",
]

PREFIX = "CONDENSERY_"
# Read by the commands that talk to a server, and not by the server.
CLIENT_VARIABLES = frozenset({"CONDENSERY_URL"})

# Kubernetes tells every pod of each Service, by variables named after it. Beside a Service called
# condensery they look like ours; nobody has set them, and CONDENSERY_PORT=tcp://... is no port.
_SERVICE_LINK = re.compile(
    rf"{PREFIX}(\w+_)?"
    r"(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*|PORT=\w+://.*)",
    re.DOTALL,
)


def read_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the environment, and over it the command line.

    Args:
        flags: Fields by name; None is a flag that was not given.

    Raises:
        SettingError: A value is not allowed, or the environment names a setting that does not
            exist; the message names the setting, where it was set, the value (unless it is a
            secret) and what is allowed.
    """
    return trace_settings(flags)[0]


def trace_settings(flags: Mapping[str, Any] | None = None) -> tuple[Settings, dict[str, str]]:
    """Read the settings as ``read_settings`` does, and tell where each value comes from.

    Returns:
        The settings, and by field "default", "environment variable NAME" or "flag --name".

    Raises:
        SettingError: As in ``read_settings``.
    """
    origins = dict.fromkeys(Settings.model_fields, "default")
    given: dict[str, Any] = _read_environment()
    origins |= {name: f"environment variable {variable_of(name)}" for name in given}
    for name, value in (flags or {}).items():
        if value is not None:
            given[name] = value
            origins[name] = f"flag {flag_of(name)}"
    try:
        return Settings(**given), origins
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else first["ctx"]["field"]
    problem = first["msg"] if first["type"] == "wrong" else f"it must be {allowed(name)}"
    value = "its value" if is_secret(name) else shorten(given[name])
    raise SettingError(
        f"{origins[name].split()[-1]}: {value} is not allowed: {problem}.",
        field=name,
        value=None if is_secret(name) else given[name],
    )


def variable_of(name: str) -> str:
    """Return the environment variable that gives a setting."""
    return f"{PREFIX}{name.upper()}"


def flag_of(name: str) -> str:
    """Return the flag that gives a setting."""
    return f"--{name.replace('_', '-')}"


def is_secret(name: str) -> bool:
    """Whether a setting's value is never shown, nor taken from the command line."""
    return name in Settings.model_fields and Settings.model_fields[name].annotation == (
        SecretStr | None
    )


def group_of(name: str) -> str:
    """Return the heading under which a setting is listed."""
    extra = Settings.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return str(extra["group"])


def allowed(name: str) -> str:
    """Say in words which values a setting may have."""
    if name not in Settings.model_fields:
        return "a setting that exists"
    field = Settings.model_fields[name]
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "allowed" in extra:
        return str(extra["allowed"])
    if is_secret(name):
        return f"{LEAST_CHARACTERS} characters or more"
    if choices := field.examples or choices_of(name):
        *others, last = map(repr, choices)
        return f"{', '.join(others)} or {last}"
    if field.annotation in (int, float):
        least, most = (
            next(getattr(one, side) for one in field.metadata if hasattr(one, side))
            for side in ("ge", "le")
        )
        return f"a {'whole ' if field.annotation is int else ''}number, {least} to {most}"
    if field.annotation is bool:
        return "true or false"
    return "a text that is not empty" if field.annotation is str else "a path"


def choices_of(name: str) -> tuple[str, ...]:
    """Return the values among which a setting is chosen; none where there are too many."""
    annotation = Settings.model_fields[name].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _read_environment() -> dict[str, str]:
    """Return what the environment sets, by field; what is empty is not set.

    Raises:
        SettingError: It names a setting that does not exist: a typo in CONDENSERY_KEYS_FILE must
            not leave every door open. Or keys or TLS are set and empty, for the same reason.
    """
    names = {variable_of(name): name for name in Settings.model_fields}
    given: dict[str, str] = {}
    for variable, value in sorted(os.environ.items()):
        if not variable.upper().startswith(PREFIX) or variable in CLIENT_VARIABLES:
            continue
        if _SERVICE_LINK.fullmatch(f"{variable}={value}"):
            continue
        if variable not in names:
            word = variable[len(PREFIX) :].lower()
            near = difflib.get_close_matches(word, Settings.model_fields, n=1)
            hint = f" Did you mean {variable_of(near[0])}?" if near else ""
            raise SettingError(
                f"{variable}: there is no such setting.{hint} `condensery serve --help` lists all."
            )
        if value:
            given[names[variable]] = value
        elif group_of(names[variable]) == LOCKS:
            raise SettingError(f"{variable}: it is set, and empty; give it a value, or unset it.")
    return given
