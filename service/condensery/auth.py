"""Keys, what each may do, and the file that they come from.

What a request carries about its caller (id, key, timeout) is read here, for REST and gRPC alike.
"""

import fcntl
import hashlib
import hmac
import math
import os
import re
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import SecretStr

from condensery.atomic_files import sync_path
from condensery.errors import Forbidden, InputError, SettingError, Unauthenticated, shorten

KeyScope = Literal["infer", "index-write", "admin"]
KEY_SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)
MIN_KEY_CHARACTERS = 24  # of a key that is written as it is: 144 bits in base64, 96 in hexadecimal
DEFAULT_KEY_NAME = "default"  # of the key of the environment, or that was made at the start
KEY_FILE = "api-key"  # the file in the data directory that a key made at the start is kept in

MAX_REQUEST_ID_CHARS = 128
REQUEST_TIMEOUT_HEADER = "x-request-timeout-ms"

_HASHED = "sha256:"
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Key:
    """A key; only its hash is held.

    Attributes:
        name: Of its holder: in logs and messages, and whose share of the queue is counted.
        scopes: What it may do; ``admin`` may do everything.
        digest: SHA-256 of the key.
    """

    name: str
    scopes: frozenset[KeyScope]
    digest: bytes


class Keys:
    """The keys that are known; without any, none is needed."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return not self._keys

    @property
    def known(self) -> tuple[Key, ...]:
        """All of them, by their hashes."""
        return self._keys

    def replace(self, keys: Iterable[Key]) -> None:
        """Accept these keys, and no others, from now on."""
        self._keys = tuple(keys)

    def check(self, presented: str | None, scope: KeyScope) -> str | None:
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
        match: Key | None = None
        for key in self._keys:  # all of them: the time taken must not show which came close
            if hmac.compare_digest(key.digest, digest):
                match = key
        if match is None:
            raise Unauthenticated("The key is not known.")
        if scope not in match.scopes and "admin" not in match.scopes:
            raise Forbidden(
                f"The key {match.name!r} may {', '.join(sorted(match.scopes))}; this needs {scope}."
            )
        return match.name


def hash_key(key: str) -> bytes:
    """Return what is held of a key: its SHA-256."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def parse_key_name(text: str) -> str:
    """Return a key's name as it is.

    Raises:
        ValueError: It is not a name; the message does not hold it, as it may be a key out of place.
    """
    if not _KEY_NAME.fullmatch(text):
        raise ValueError(
            "a name is up to 64 of the letters a to z, digits, '.', '_' and '-', and begins with "
            "a letter or a digit"
        )
    return text


def parse_scopes(text: str) -> frozenset[KeyScope]:
    """Return the scopes named in ``text``, separated by commas.

    Raises:
        ValueError: One does not exist; the message does not hold it.
    """
    named = text.split(",")
    scopes = frozenset(scope for scope in KEY_SCOPES if scope in named)
    if not all(name in KEY_SCOPES for name in named):
        raise ValueError(
            f"scopes are {', '.join(KEY_SCOPES[:-1])} and {KEY_SCOPES[-1]}, separated by commas "
            "without blanks"
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
    if len(text) < MIN_KEY_CHARACTERS:
        raise ValueError(f"a key has at least {MIN_KEY_CHARACTERS} characters")
    # What no header carries as it is could never be presented.
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("a key is printable ASCII without blanks")
    return hash_key(text)


def make_key(name: str, scopes: frozenset[KeyScope]) -> tuple[str, str]:
    """Return a fresh key, and the line of a keys file that knows it by its hash."""
    key = secrets.token_urlsafe(32)
    listed = ",".join(scope for scope in KEY_SCOPES if scope in scopes)
    return key, f"{name} {listed} {_HASHED}{hash_key(key).hex()}"


def read_keys(path: Path) -> list[Key]:
    """Read a keys file: ``name scopes key`` a line, and ``#`` before comments.

    Raises:
        SettingError: The file can't be read, all users of the machine can read it, it is wrong, or
            holds no key; the message names the line and never holds any part of it, which may be a
            key out of place.
    """
    try:
        with path.open("rb") as file:
            keys = _parse_keys(path, _read_private(file.fileno(), path, "keys_file"))
    except OSError as error:
        raise _refuse(f"{path}: it can't be read: {error.strerror}") from error
    if not keys:
        raise _refuse(f"{path}: it holds no key, and nobody would need one")
    return keys


def add_key_line(path: Path, line: str) -> None:
    """Append a line to a keys file, which is made for its owner alone; synced on return.

    Raises:
        SettingError: As ``read_keys``, of the file with the line in it; it is as it was then.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # of two that add one name, one is refused
            text = _read_private(file.fileno(), path, "keys_file")
            added = f"{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
            _parse_keys(path, text + added)
            file.write(added.encode())
            os.fsync(file.fileno())
        sync_path(path.parent)
    except OSError as error:
        raise _refuse(f"{path}: it can't be written: {error.strerror}") from error


def load_or_make_key(path: Path) -> tuple[SecretStr, bool]:
    """Return the key that a file keeps; without the file, a fresh one is made and kept first.

    The file is its owner's alone, and on the disk when this returns. Whoever calls holds the lock
    of the data directory that it is in.

    Returns:
        The key, and whether it was made.

    Raises:
        SettingError: The file can't be read or written, all users of the machine can read it, or
            it holds no key.
    """
    try:
        if os.path.lexists(path):
            with path.open("rb") as file:
                key = _read_private(file.fileno(), path, "make_key").strip()
            parse_key(key)
            return SecretStr(key), False
        key = secrets.token_urlsafe(32)
        aside = path.with_name(f"{path.name}.partial")
        aside.unlink(missing_ok=True)  # a kill left it
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as partial:
            partial.write(f"{key}\n")
            partial.flush()
            os.fsync(partial.fileno())
        aside.rename(path)
        sync_path(path.parent)
    except OSError as error:
        raise _refuse(f"{path}: it can't be used: {error.strerror}", "make_key") from error
    except ValueError as error:
        problem = f"{path}: it holds no key: {error}; mend it, or remove it to have one made"
        raise _refuse(problem, "make_key") from None
    return SecretStr(key), True


def reload_keys(keys: Keys, path: Path | None, api_key: SecretStr | None) -> None:
    """Replace ``keys`` by the file's and the environment's; if any is wrong, none changes.

    Args:
        api_key: From the environment: may do everything, under the name "default".

    Raises:
        SettingError: As ``read_keys``; or the environment's key is in the file, too.
    """
    known = [] if path is None else read_keys(path)
    if api_key is not None:
        default = Key(
            DEFAULT_KEY_NAME, frozenset(KEY_SCOPES), parse_key(api_key.get_secret_value())
        )
        for key in known:
            if key.name == default.name or key.digest == default.digest:
                what = "name" if key.name == default.name else "key"
                raise _refuse(f"{path}: it holds the {what} of CONDENSERY_API_KEY; give it once")
        known.append(default)
    keys.replace(known)


def _read_private(handle: int, path: Path, field: str) -> str:
    """Return what an open file holds, unless all users of the machine can read or change it."""
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise _refuse(
            f"{path}: all users of this machine can read or change it, its mode is {mode:04o}; "
            "`chmod 600` keeps it to its owner, 640 to a group. Kubernetes mounts a secret so "
            "unless its volume says `defaultMode: 0440`",
            field,
        )
    with open(handle, "rb", closefd=False) as file:
        try:
            return file.read().decode("utf-8-sig")
        except UnicodeDecodeError:  # which holds the bytes
            raise _refuse(f"{path}: it is not UTF-8", field) from None


def _parse_keys(path: Path, text: str) -> list[Key]:
    keys: list[Key] = []
    lines: dict[str | bytes, int] = {}  # of each name and each key
    for number, line in enumerate(text.splitlines(), 1):
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
    return keys


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
    return Key(parse_key_name(parts[0]), parse_scopes(parts[1]), parse_key(parts[2]))


def _refuse(problem: str, field: str = "keys_file") -> SettingError:
    return SettingError.at(field, f"{problem}.")


def read_request_id(header: str | None) -> str:
    """Return the caller's id if it can stand in a header and a log line, else a new one."""
    if header and header.isascii() and header.isprintable() and len(header) <= MAX_REQUEST_ID_CHARS:
        return header
    return secrets.token_hex(16)


def read_key(authorization: str | None, api_key: str | None) -> str | None:
    """Return the request's key: ``Authorization``, with or without ``Bearer``, or ``x-api-key``."""
    key = (authorization or "").strip()
    scheme, _, rest = key.partition(" ")
    if scheme.lower() == "bearer":
        key = rest.strip()
    return key or (api_key or "").strip() or None


def check_any_key(keys: Keys, key: str | None, scope: KeyScope | None) -> str | None:
    """Return the name of the request's key; None where none is needed.

    Args:
        scope: What it must be allowed; None takes every known key.

    Raises:
        Unauthenticated, Forbidden: As ``Keys.check``.
    """
    if scope is not None:
        return keys.check(key, scope)
    try:
        return keys.check(key, "infer")
    except Forbidden:  # a key without `infer`, or `admin`, has what is left
        return keys.check(key, "index-write")


def read_timeout(header: str | None) -> float:
    """Return the seconds that a caller waits; infinite where the header is missing.

    Args:
        header: Milliseconds, the value of ``REQUEST_TIMEOUT_HEADER``.

    Raises:
        InputError: There is no such time.
    """
    if header is None:
        return math.inf
    digits = header.strip()
    if not (digits.isascii() and digits.isdigit()) or not digits.strip("0"):
        raise InputError.at(
            REQUEST_TIMEOUT_HEADER,
            f"{shorten(header)} is not a whole number of milliseconds, 1 or more.",
            header,
        )
    return int(digits.lstrip("0")[:18]) / 1000  # 18 digits are for ever, and so are more
