import hashlib
import hmac
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from condensery.auth import (
    Key,
    Keys,
    KeyScope,
    add_key_line,
    hash_key,
    load_or_make_key,
    make_key,
    parse_key,
    parse_scopes,
    read_keys,
    reload_keys,
)
from condensery.errors import Forbidden, SettingError, Unauthenticated

ALICE, BOB = "alices-own-and-long-secret", "bobs-own-and-longer-secret"
OPS = "the-operators-own-secret"
HASHED = "sha256:" + hashlib.sha256(OPS.encode()).hexdigest()
FILE = f"""\
# who  may what             with
alice  infer                {ALICE}
bob    infer,index-write    {BOB}   # until May

ops    admin                {HASHED}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


def refusal(path: Path, text: str | bytes) -> str:
    path.touch(0o600)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SettingError) as caught:
        read_keys(path)
    assert caught.value.field == "keys_file"
    return caught.value.message


def test_a_file_is_read_line_by_line_with_comments_and_hashes(file: Path) -> None:
    keys = Keys(read_keys(file))
    assert not keys.open
    assert keys.check(ALICE, "infer") == "alice"
    assert keys.check(BOB, "index-write") == "bob"
    assert keys.check(OPS, "admin") == "ops"
    assert all(len(key.digest) == 32 for key in read_keys(file))


def test_a_file_from_another_editor_is_read_alike(file: Path) -> None:
    expected = read_keys(file)
    file.write_bytes(b"\xef\xbb\xbf" + FILE.replace("\n", "\r\n").encode())
    assert read_keys(file) == expected


def test_without_keys_every_door_is_open() -> None:
    keys = Keys()
    assert keys.open
    assert keys.check(None, "admin") is None
    assert keys.check("whatever", "admin") is None


@pytest.mark.parametrize("presented", [None, "", ALICE + "x", ALICE[:-1], HASHED, "\udcff" * 20])
def test_no_key_or_an_unknown_one_opens_nothing(file: Path, presented: str | None) -> None:
    """The hash in the file is no key: who reads the file can't use it."""
    with pytest.raises(Unauthenticated) as caught:
        Keys(read_keys(file)).check(presented, "infer")
    assert not presented or presented not in caught.value.message


@pytest.mark.parametrize(
    ("key", "may"),
    [
        (ALICE, {"infer"}),
        (BOB, {"infer", "index-write"}),
        (OPS, {"infer", "index-write", "admin"}),
    ],
)
def test_a_key_opens_what_its_scopes_say_and_admin_opens_all(
    file: Path, key: str, may: set[KeyScope]
) -> None:
    keys = Keys(read_keys(file))
    scopes: list[KeyScope] = ["infer", "index-write", "admin"]
    for scope in scopes:
        if scope in may:
            assert keys.check(key, scope) is not None
            continue
        with pytest.raises(Forbidden, match=f"this needs {scope}") as caught:
            keys.check(key, scope)
        assert key not in caught.value.message


@pytest.mark.parametrize("presented", [ALICE, OPS, "nobodys-own-key-at-all-now"])
def test_a_key_is_compared_with_all_and_in_constant_time(
    file: Path, monkeypatch: pytest.MonkeyPatch, presented: str
) -> None:
    compared: list[tuple[Any, Any]] = []
    compare = hmac.compare_digest

    def note(a: Any, b: Any) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", note)
    known = read_keys(file)
    try:
        Keys(known).check(presented, "infer")
    except Unauthenticated:
        assert presented not in FILE
    assert [digest for digest, _ in compared] == [key.digest for key in known]
    assert {other for _, other in compared} == {hashlib.sha256(presented.encode()).digest()}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"carol {ALICE}x", "three parts; this has 2"),
        (f"carol infer {ALICE}x more", "three parts; this has 4"),
        (f"carol # infer {ALICE}x", "three parts; this has 1"),
        (f"carol read {ALICE}x", "scopes are infer, index-write and admin"),
        (f"carol infer, {ALICE}x", "scopes are infer, index-write and admin"),
        ("carol infer tooshort-secret", "at least 24 characters"),
        ("carol infer sha256:5ecre7", "64 hex digits"),
        ("carol infer sécret-of-very-many-letters", "printable ASCII"),
        (f"carol! infer {ALICE}x", "a name is up to 64"),
        (f"{ALICE}x{'y' * 64} infer carol", "a name is up to 64"),
        (f"alice infer {ALICE}x", "the name is that of line 2 too"),
        (f"carol infer {ALICE}", "the key is that of line 2 too"),
        (f"carol infer {OPS}", "the key is that of line 5 too"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_of_it_is_shown(
    file: Path, line: str, problem: str
) -> None:
    message = refusal(file, f"{FILE}\n{line}\n")
    assert message.startswith(f"keys_file: {file}, line 7: ")
    assert problem in message
    shown = message.removeprefix(f"keys_file: {file}").replace("infer, index-write", "")
    assert [part for part in line.split() if part != "#" and part in shown] == []


@pytest.mark.parametrize("text", ["", "# nobody yet\n\n", "\n"])
def test_a_file_without_a_key_is_refused_since_it_would_open_every_door(
    file: Path, text: str
) -> None:
    assert "it holds no key, and nobody would need one" in refusal(file, text)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SettingError, match=f"{path}: it can't be read: {why}"):
            read_keys(path)
    assert "it is not UTF-8" in refusal(tmp_path / "keys", b"alice infer \xff\xfe")


def test_a_fresh_key_opens_what_its_line_says_and_the_line_does_not_hold_it(tmp_path: Path) -> None:
    key, line = make_key("alice", parse_scopes("index-write,infer"))
    other, _ = make_key("alice", parse_scopes("infer"))
    assert key != other
    assert len(key) > 40
    assert key not in line
    assert line.startswith("alice infer,index-write sha256:")
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f"{line}\n")
    assert Keys(read_keys(path)).check(key, "index-write") == "alice"


def test_the_environments_key_may_do_everything_under_the_name_default(file: Path) -> None:
    keys = Keys()
    reload_keys(keys, None, SecretStr("the-environments-own-key"))
    assert keys.check("the-environments-own-key", "infer") == "default"
    assert keys.check("the-environments-own-key", "index-write") == "default"
    assert keys.check("the-environments-own-key", "admin") == "default"
    reload_keys(keys, file, SecretStr("the-environments-own-key"))
    assert keys.check("the-environments-own-key", "admin") == "default"
    assert keys.check(ALICE, "infer") == "alice"


def test_the_environments_key_can_be_given_as_its_hash() -> None:
    keys = Keys()
    reload_keys(keys, None, SecretStr(HASHED))
    assert keys.check(OPS, "admin") == "default"
    with pytest.raises(Unauthenticated):
        keys.check(HASHED, "infer")


def test_a_reload_takes_keys_away_and_brings_others(file: Path) -> None:
    keys = Keys()
    reload_keys(keys, file, None)
    assert keys.check(ALICE, "infer") == "alice"
    file.write_text(f"carol infer {ALICE}x\n")
    reload_keys(keys, file, None)
    assert keys.check(f"{ALICE}x", "infer") == "carol"
    with pytest.raises(Unauthenticated):
        keys.check(ALICE, "infer")


@pytest.mark.parametrize("text", ["", f"carol infer {ALICE}x\nnonsense\n", None])
def test_a_bad_file_leaves_the_keys_as_they_are(file: Path, text: str | None) -> None:
    keys = Keys()
    reload_keys(keys, file, SecretStr("the-environments-own-key"))
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(SettingError):
        reload_keys(keys, file, SecretStr("the-environments-own-key"))
    assert keys.check(ALICE, "infer") == "alice"
    assert keys.check("the-environments-own-key", "admin") == "default"


def test_the_environments_key_and_name_are_not_in_the_file_too(file: Path) -> None:
    keys = Keys()
    with pytest.raises(SettingError, match="it holds the key of CONDENSERY_API_KEY") as caught:
        reload_keys(keys, file, SecretStr(BOB))
    assert BOB not in caught.value.message
    file.write_text(f"default infer {ALICE}\n")
    with pytest.raises(SettingError, match="it holds the name of CONDENSERY_API_KEY"):
        reload_keys(keys, file, SecretStr(BOB))
    assert keys.open


def test_nothing_set_leaves_every_door_open() -> None:
    keys = Keys([Key("alice", frozenset({"infer"}), parse_key(ALICE))])
    reload_keys(keys, None, None)
    assert keys.open


def test_a_file_that_all_users_may_read_or_change_is_refused_and_a_groups_is_not(
    file: Path,
) -> None:
    keys = Keys()
    for mode in (0o600, 0o400, 0o640, 0o440):
        file.chmod(mode)
        reload_keys(keys, file, None)
        assert keys.check(ALICE, "infer") == "alice"
    for mode in (0o604, 0o444, 0o644, 0o602):
        file.chmod(mode)
        with pytest.raises(SettingError, match=f"its mode is {mode:04o}") as caught:
            reload_keys(keys, file, None)
        assert str(file) in caught.value.message
        assert "`defaultMode: 0440`" in caught.value.message  # a secret of Kubernetes' is 0644
    assert keys.check(ALICE, "infer") == "alice"


def test_a_plain_key_is_long_and_a_hash_is_taken_as_it_is() -> None:
    assert len(parse_key("k" * 24)) == 32
    with pytest.raises(ValueError, match="at least 24 characters"):
        parse_key("k" * 23)
    assert parse_key(f"sha256:{hash_key('short').hex()}") == hash_key("short")


def test_a_line_is_added_to_a_file_that_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    before = os.umask(0)
    try:
        add_key_line(path, f"alice infer {ALICE}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(f"alice infer {ALICE}")  # as an editor may leave it: no newline at the end
    add_key_line(path, f"bob infer,index-write {BOB}")
    assert [key.name for key in read_keys(path)] == ["alice", "bob"]
    text = path.read_text()
    for line in (f"alice infer {OPS}", f"carol infer {ALICE}", "carol fly away"):
        with pytest.raises(SettingError, match="line 3"):
            add_key_line(path, line)
    path.chmod(0o644)
    with pytest.raises(SettingError, match="its mode is 0644"):
        add_key_line(path, f"ops admin {OPS}")
    assert path.read_text() == text
    with pytest.raises(SettingError, match="no/folder: it can't be written"):
        add_key_line(Path("no/folder"), f"ops admin {OPS}")


def test_a_key_is_made_once_and_kept_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "api-key"
    (tmp_path / "api-key.partial").write_text("what a kill left")
    before = os.umask(0)
    try:
        key, made = load_or_make_key(path)
    finally:
        os.umask(before)
    secret = key.get_secret_value()
    assert made
    assert path.read_text() == f"{secret}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["api-key"]
    again, made = load_or_make_key(path)
    assert not made
    assert again.get_secret_value() == secret
    assert len(parse_key(secret)) == 32


def test_a_kept_key_that_is_damaged_or_seen_by_all_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "api-key"
    path.touch(0o600)
    for text in ("", "cut short\n", "\xff" * 30):
        path.write_text(text)
        with pytest.raises(SettingError, match=f"make_key: {path}: it holds no key") as caught:
            load_or_make_key(path)
        assert not text.strip() or text.strip() not in caught.value.message
        assert path.read_text() == text
    path.write_text(f"{ALICE}\n")
    path.chmod(0o644)
    with pytest.raises(SettingError, match=r"make_key: .* its mode is 0644"):
        load_or_make_key(path)
    with pytest.raises(SettingError, match=r"make_key: .*: it can't be used: No such file"):
        load_or_make_key(tmp_path / "no" / "api-key")
