"""Keys, what each may do, and the file that they come from."""

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import SecretStr

from condensery.errors import Forbidden, SettingError, Unauthenticated

Scope = Literal["infer", "index-write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
LEAST_CHARACTERS = 16
DEFAULT_NAME = "default"  # of the key that the environment gives

_HASHED = "sha256:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """One key; only its hash is held.

    Attributes:
        name: Of whoever holds it: in logs and messages, and who shares the queue fairly.
        scopes: What it may do; ``admin`` may do everything.
        digest: SHA-256 of the key.
    """

    name: str
    scopes: frozenset[Scope]
    digest: bytes


class Keys:
    """The keys that are known; with none, every door is open."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return not self._keys

    def replace(self, keys: Iterable[Key]) -> None:
        """Know these from now on."""
        self._keys = tuple(keys)

    def check(self, presented: str | None, scope: Scope) -> str | None:
        """Return the name of the key presented, or None where none is needed.

        Raises:
            Unauthenticated: None came, or an unknown one.
            Forbidden: It lacks ``scope``.
        """
        if self.open:
            return None
        if not presented:
            raise Unauthenticated(
                "This needs a key: `Authorization: Bearer <key>` or `x-api-key: <key>`."
            )
        digest = hash_key(presented)
        found: Key | None = None
        for key in self._keys:  # all of them: how long it takes must not tell which came close
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise Unauthenticated("The key is not known.")
        if scope not in found.scopes and "admin" not in found.scopes:
            raise Forbidden(
                f"The key {found.name!r} may {', '.join(sorted(found.scopes))}; this needs {scope}."
            )
        return found.name


def hash_key(key: str) -> bytes:
    """Return what is held of a key: its SHA-256."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def parse_name(text: str) -> str:
    """Return a key's name as it is.

    Raises:
        ValueError: It is none; the message does not hold it, as it may be a key out of place.
    """
    if not _NAME.fullmatch(text):
        raise ValueError(
            "a name is up to 64 of the letters a to z, digits, '.', '_' and '-', and begins with "
            "a letter or a digit"
        )
    return text


def parse_scopes(text: str) -> frozenset[Scope]:
    """Return the scopes named in ``text``, separated by commas.

    Raises:
        ValueError: One does not exist; the message does not hold it.
    """
    named = text.split(",")
    scopes = frozenset(scope for scope in SCOPES if scope in named)
    if not all(name in SCOPES for name in named):
        raise ValueError(
            f"scopes are {', '.join(SCOPES[:-1])} and {SCOPES[-1]}, separated by commas without "
            "blanks"
        )
    return scopes


def parse_key(text: str) -> bytes:
    """Return the hash of a key, which is written as it is, or as ``sha256:`` and its hash.

    Raises:
        ValueError: It is neither; the message does not hold it.
    """
    if text.startswith(_HASHED):
        hexadecimal = text.removeprefix(_HASHED)
        if not re.fullmatch("[0-9a-fA-F]{64}", hexadecimal):
            raise ValueError(f"after {_HASHED} come the 64 hex digits of the key's hash")
        return bytes.fromhex(hexadecimal)
    if len(text) < LEAST_CHARACTERS:
        raise ValueError(f"a key has at least {LEAST_CHARACTERS} characters")
    # What no header carries as it is could never be presented.
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("a key is printable ASCII without blanks")
    return hash_key(text)


def make_key(name: str, scopes: frozenset[Scope]) -> tuple[str, str]:
    """Return a fresh key, and the line of a keys file that knows it by its hash."""
    key = secrets.token_urlsafe(32)
    listed = ",".join(scope for scope in SCOPES if scope in scopes)
    return key, f"{name} {listed} {_HASHED}{hash_key(key).hex()}"


def read_keys(path: Path) -> list[Key]:
    """Read a keys file: ``name scopes key`` a line, and ``#`` before comments.

    Raises:
        SettingError: The file can't be read, is wrong, or holds no key; the message names the line
            and never holds any part of it, which may be a key out of place.
    """
    keys: list[Key] = []
    lines: dict[str | bytes, int] = {}  # of each name and each key
    for number, line in enumerate(_read_lines(path), 1):
        try:
            if (key := _parse_line(line)) is None:
                continue
            for field, value in (("name", key.name), ("key", key.digest)):
                if value in lines:
                    raise ValueError(f"the {field} is that of line {lines[value]} too")
                lines[value] = number
        except ValueError as error:
            raise _refuse(f"{path}, line {number}: {error}") from None
        keys.append(key)
    if not keys:
        raise _refuse(f"{path}: it holds no key, and would leave every door open")
    return keys


def reload(keys: Keys, path: Path | None, api_key: SecretStr | None) -> None:
    """Let ``keys`` know the file's keys and the environment's; if one is wrong, none changes.

    Args:
        keys: What the doors ask.
        path: Of the keys file, if there is one.
        api_key: From the environment: may do everything, under the name "default".

    Raises:
        SettingError: As ``read_keys``; or the environment's key is in the file, too.
    """
    known = [] if path is None else read_keys(path)
    if api_key is not None:
        default = Key(DEFAULT_NAME, frozenset(SCOPES), parse_key(api_key.get_secret_value()))
        for key in known:
            if key.name == default.name or key.digest == default.digest:
                what = "name" if key.name == default.name else "key"
                raise _refuse(f"{path}: it holds the {what} of CONDENSERY_API_KEY; give it once")
        known.append(default)
    keys.replace(known)


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                _log.warning("keys_file_readable_by_everyone", extra={"file": str(path)})
            return file.read().splitlines()
    except OSError as error:
        raise _refuse(f"{path}: it can't be read: {error.strerror}") from error
    except UnicodeDecodeError:  # which holds the bytes
        raise _refuse(f"{path}: it is not UTF-8") from None


def _parse_line(line: str) -> Key | None:
    parts: list[str] = []
    for part in line.split():
        if part.startswith("#"):
            break
        parts.append(part)
    if not parts:
        return None
    if len(parts) != 3:
        raise ValueError(f"a line is `name scopes key`, three parts; this has {len(parts)}")
    return Key(parse_name(parts[0]), parse_scopes(parts[1]), parse_key(parts[2]))


def _refuse(problem: str) -> SettingError:
    return SettingError(f"keys_file: {problem}.", field="keys_file")
