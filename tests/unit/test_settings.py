import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from condensery.errors import SettingError
from condensery.settings import (
    CLIENT_VARIABLES,
    Settings,
    default_data_dir,
    describe_allowed,
    flag_of,
    read_names,
    read_settings,
    trace_settings,
    variable_of,
)

PACKAGE = Path(__file__).parents[2] / "service" / "condensery"
KEY = "0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.upper().startswith("CONDENSERY_")]:
        monkeypatch.delenv(variable)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate, its key, the same key under a password, and another key."""
    folder = tmp_path_factory.mktemp("pems")
    for command in (
        "ecparam -name prime256v1 -out curve.pem",
        "req -x509 -newkey ec:curve.pem -nodes -subj /CN=localhost -keyout key.pem -out cert.pem",
        "ec -in key.pem -out locked.pem -aes128 -passout pass:password",
        "ecparam -genkey -name prime256v1 -noout -out other.pem",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder


def refusal(flags: dict[str, Any] | None = None) -> str:
    with pytest.raises(SettingError) as caught:
        read_settings(flags)
    return caught.value.message


def test_defaults_are_those_that_the_readme_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/there")
    settings = read_settings()
    assert (settings.host, settings.port, settings.grpc_port) == ("127.0.0.1", 8080, 8081)
    assert settings.data_dir == Path("/there/condensery")
    assert settings.own_store == Path("/there/condensery/models")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_data_dir() == Path.home() / ".local/share/condensery"


def test_the_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_PORT", "9000")
    monkeypatch.setenv("CONDENSERY_STORE", "/models")
    assert read_settings({"port": None}).port == 9000
    assert read_settings({"port": "9001"}).port == 9001
    assert read_settings().own_store == Path("/models")


def test_where_each_value_comes_from_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_PORT", "9000")
    monkeypatch.setenv("CONDENSERY_MAX_ITEMS", "7")
    monkeypatch.setenv("CONDENSERY_WORKERS", "")
    settings, origins = trace_settings({"max_items": "8", "host": None})
    assert (settings.port, settings.max_items) == (9000, 8)
    assert list(origins) == list(Settings.model_fields)
    assert origins["port"] == "environment variable CONDENSERY_PORT"
    assert origins["max_items"] == "flag --max-items"
    assert origins["workers"] == origins["host"] == "default"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("dtype", "float16", "it must be 'auto', 'float32' or 'bfloat16'"),
        ("device", "tpu", "it must be 'auto', 'cpu', 'cuda' or 'cuda:1'"),
        ("port", "tcp", "it must be a whole number, 0 to 65535"),
        ("grpc_port", "70000", "it must be a whole number, 0 to 65535"),
        ("max_body_bytes", "1", "it must be a whole number, 1024 to 1073741824"),
        ("workers", "-1", "it must be a whole number, 0 to 1024"),
        ("grace_seconds", "nan", "it must be a number, 0 to 3600"),
        ("log_level", "loud", "it must be 'debug', 'info', 'warning' or 'error'"),
        ("samples", "perhaps", "it must be true or false"),
    ],
)
def test_a_wrong_value_is_named_with_its_source_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, problem: str
) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings({name: value})
    assert caught.value.message == f"{flag_of(name)}: '{value}' is not allowed: {problem}."
    assert (caught.value.field, caught.value.value) == (name, value)
    monkeypatch.setenv(variable_of(name), value)
    assert refusal() == f"{variable_of(name)}: '{value}' is not allowed: {problem}."


def test_every_number_has_a_least_and_a_most_that_hold() -> None:
    """Those that hang together keep company, so that each is refused for its own sake alone."""
    company = {"max_body_bytes": {"max_inflight_bytes": 2**40}, "max_inflight_bytes": {}}
    company["max_inflight_bytes"] = {"max_body_bytes": 1024}
    seen = 0
    for name, field in Settings.model_fields.items():
        if field.annotation not in (int, float):
            continue
        seen += 1
        least, most = map(float, describe_allowed(name).split(", ")[1].split(" to "))
        others = company.get(name, {})
        for bound, beyond in ((least, least - 1), (most, most + 1)):
            kept = Settings.model_validate({name: field.annotation(bound), **others})
            assert getattr(kept, name) == bound
            with pytest.raises(ValidationError):
                Settings.model_validate({name: field.annotation(beyond), **others})
    assert seen > 15


def test_every_setting_says_what_it_is() -> None:
    short = [name for name, field in Settings.model_fields.items() if not field.description]
    assert short == []


def test_a_flag_that_does_not_exist_is_refused() -> None:
    assert refusal({"colour": "red"}).startswith("--colour: 'red' is not allowed")


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("CONDENSERY_KEY_FILE", "CONDENSERY_KEYS_FILE"),
        ("CONDENSERY_APIKEY", "CONDENSERY_API_KEY"),
        ("CONDENSERY_MAX_BODY_SIZE", "CONDENSERY_MAX_BODY_BYTES"),
        ("condensery_port", "CONDENSERY_PORT"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, variable: str, hint: str
) -> None:
    monkeypatch.setenv(variable, "a secret")
    message = refusal()
    assert message.startswith(f"{variable}: there is no such setting. Did you mean {hint}?")
    assert "a secret" not in message


def test_a_variable_near_to_none_is_refused_without_a_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CONDENSERY_QQQQQQQQ", "1")
    assert "Did you mean" not in refusal()


def test_what_the_other_commands_read_from_the_environment_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = {
        variable
        for folder in ("commands", "client", "methods")
        for file in (PACKAGE / folder).rglob("*.py")
        for variable in re.findall('"(CONDENSERY_[A-Z_]+)"', file.read_text())
    }
    assert "CONDENSERY_URL" in named
    for variable in named:
        monkeypatch.setenv(variable, KEY)
    read_settings()
    assert named - {variable_of(name) for name in Settings.model_fields} == CLIENT_VARIABLES


def test_what_kubernetes_tells_about_a_service_of_our_name_is_no_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = "tcp://10.0.0.11:8080"
    for variable, value in {
        "PORT": address,
        "GRPC_PORT": address,
        "SERVICE_HOST": "10.0.0.11",
        "SERVICE_PORT": "8080",
        "SERVICE_PORT_REST": "8080",
        "GRPC_SERVICE_HOST": "10.0.0.12",
        "PORT_8080_TCP": address,
        "PORT_8080_TCP_PROTO": "tcp",
        "PORT_8080_TCP_PORT": "8080",
        "PORT_8080_TCP_ADDR": "10.0.0.11",
    }.items():
        monkeypatch.setenv(f"CONDENSERY_{variable}", value)
    settings, origins = trace_settings()
    assert (settings.port, settings.grpc_port) == (8080, 8081)
    assert set(origins.values()) == {"default"}
    assert "--port: 'tcp://10.0.0.11:8080'" in refusal({"port": address})


@pytest.mark.parametrize(
    "name", ["api_key", "keys_file", "make_key", "allow_no_keys", "tls_cert", "tls_key"]
)
def test_a_lock_that_is_set_and_empty_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(variable_of(name), "")
    assert refusal().startswith(f"{variable_of(name)}: it is set, and empty")


@pytest.mark.parametrize(
    "key",
    [
        "secret-too-bad",
        "sécret-of-very-many-letters",
        "two words with long blanks",
        "sha256:s3cr3t",
    ],
)
def test_a_key_that_is_not_allowed_is_refused_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("CONDENSERY_API_KEY", key)
    with pytest.raises(SettingError) as caught:
        read_settings()
    message = caught.value.message
    assert message.startswith("CONDENSERY_API_KEY: its value is not allowed: ")
    assert key not in message
    assert key not in repr(vars(caught.value))
    assert caught.value.__context__ is None  # pydantic's own error holds the value


def test_a_key_is_not_shown_by_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_API_KEY", KEY)
    settings = read_settings()
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == KEY
    assert KEY not in f"{settings} {settings!r} {settings.model_dump(mode='json')}"
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"api_key": KEY[:23]})
    assert KEY[:23] not in str(caught.value)


def test_models_to_start_with_are_names_each_once() -> None:
    kept = read_settings({"models": " one, two,one "}).models
    assert kept == "one,two,one"
    assert read_names(kept) == ("one", "two")
    for wrong in ("", " ", "one,,two", "one,"):
        message = refusal({"models": wrong})
        assert message.startswith(f"--models: '{wrong}' is not allowed: a name is empty; ")
        assert message.endswith("it must be names of models, commas between them.")


@pytest.mark.parametrize(
    ("proxies", "kept"),
    [
        ("10.0.0.1", "10.0.0.1"),
        (" 10.0.0.0/8 ,::1,fd00::/8", "10.0.0.0/8,::1,fd00::/8"),
    ],
)
def test_trusted_proxies_are_addresses_and_networks(proxies: str, kept: str) -> None:
    assert read_settings({"trusted_proxies": proxies}).trusted_proxies == kept
    assert read_settings().trusted_proxies is None


@pytest.mark.parametrize("proxies", ["*", "proxy.example", "10.0.0.1/8", "10.0.0.1,", " "])
def test_a_proxy_that_is_no_address_is_refused(proxies: str) -> None:
    """Names and the star too: a typo must not trust everybody, nor silently nobody."""
    message = refusal({"trusted_proxies": proxies})
    assert message.startswith(f"--trusted-proxies: '{proxies}' is not allowed: ")
    assert message.endswith("it must be addresses or networks, commas between them.")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "cors_origin",
            ["*", "https://app.example.com , http://localhost:3000", "chrome-extension://abcdef"],
            [
                "null",
                "app.example.com",
                "https://app.example.com/",
                "https://*.example.com",
                " ",
                ",",
            ],
        ),
        (
            "allowed_hosts",
            ["*", "rag.example.com, *.example.org", "::1,[fd00::1],10.0.0.7"],
            ["rag.example.com:8080", "https://rag.example.com", "a*.example.com", "[::1]:80", "a,"],
        ),
    ],
)
def test_origins_and_hosts_are_read_at_the_start(
    name: str, good: list[str], bad: list[str]
) -> None:
    """A name that would never match must not shut out those it was meant for, without a word."""
    for text in good:
        kept = getattr(read_settings({name: text}), name)
        assert kept == ",".join(part.strip() for part in text.split(","))
    for text in bad:
        assert refusal({name: text}).startswith(f"{flag_of(name)}: '{text}' is not allowed: ")


def test_two_doors_can_not_have_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal({"port": "8081"}) == (
        "--port: '8081' is not allowed: it must be other than grpc_port, 8081."
    )
    monkeypatch.setenv("CONDENSERY_GRPC_PORT", "9000")
    assert refusal({"port": "9000"}).startswith("CONDENSERY_GRPC_PORT: '9000' is not allowed")
    assert read_settings({"port": "0", "grpc_port": "0"}).port == 0


def test_the_longest_request_must_find_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_MAX_BODY_BYTES", str(2**27))
    assert refusal() == (
        "CONDENSERY_MAX_BODY_BYTES: '134217728' is not allowed: "
        "it must be at most max_inflight_bytes, 67108864."
    )
    assert refusal({"max_inflight_bytes": str(2**26)}) == (
        "--max-inflight-bytes: '67108864' is not allowed: "
        "it must be at least max_body_bytes, 134217728."
    )
    assert read_settings({"max_inflight_bytes": str(2**27)}).max_body_bytes == 2**27


def test_a_certificate_and_its_key_go_together(pems: Path) -> None:
    cert, key = pems / "cert.pem", pems / "key.pem"
    settings = read_settings({"tls_cert": cert, "tls_key": str(key)})
    assert (settings.tls_cert, settings.tls_key) == (cert, key)
    assert refusal({"tls_cert": str(cert)}) == (
        f"--tls-cert: '{cert}' is not allowed: it needs tls_key beside it."
    )
    assert refusal({"tls_key": str(key)}) == (
        f"--tls-key: '{key}' is not allowed: it needs tls_cert beside it."
    )


@pytest.mark.parametrize("key", ["other.pem", "locked.pem", "cert.pem"])
def test_a_key_that_does_not_fit_the_certificate_is_refused(pems: Path, key: str) -> None:
    message = refusal({"tls_cert": str(pems / "cert.pem"), "tls_key": str(pems / key)})
    assert message.startswith(f"--tls-key: '{pems / key}' is not allowed: it must be the key of")
    assert f"{pems / 'cert.pem'}" in message


def test_a_certificate_that_can_not_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, pems: Path
) -> None:
    monkeypatch.setenv("CONDENSERY_TLS_CERT", str(pems))
    monkeypatch.setenv("CONDENSERY_TLS_KEY", str(pems / "nowhere"))
    assert refusal() == (
        f"CONDENSERY_TLS_CERT: '{pems}' is not allowed: it can't be read: Is a directory."
    )
    monkeypatch.setenv("CONDENSERY_TLS_CERT", str(pems / "cert.pem"))
    assert "CONDENSERY_TLS_KEY" in refusal()
    assert "it can't be read: No such file or directory" in refusal()


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("https://api.example.com/v1/", "https://api.example.com/v1"),
        ("http://[::1]:11434/openai", "http://[::1]:11434/openai"),
    ],
)
def test_the_server_that_writes_answers_is_an_address_with_its_root(given: str, taken: str) -> None:
    flags = {"answer_with": given, "answer_model": "qwen"}
    assert read_settings(flags).answer_with == taken


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8000",
        "ftp://there",
        "file:///etc/passwd",
        "http://",
        "http://there:port",
        "http://there:0",
        "http://[::1",
        "http://there/v1?key=1",
        "http://there/v1#part",
        "http://th ere",
        "http://there\r\nx: y",
    ],
)
def test_what_is_no_http_address_writes_no_answers(address: str) -> None:
    message = refusal({"answer_with": address, "answer_model": "qwen"})
    assert message.startswith("--answer-with: ")
    assert "an http or https address" in message


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    message = refusal({"answer_with": "http://me:hunter2@there/v1", "answer_model": "qwen"})
    assert message.startswith("--answer-with: ")
    assert "hunter2" not in message


def test_a_server_that_writes_answers_and_its_model_come_together() -> None:
    assert "answer_model" in refusal({"answer_with": "http://there"})
    assert "answer_with" in refusal({"answer_model": "qwen"})


def test_generators_on_servers_are_addresses_by_pair() -> None:
    given = " one=http://a:8000 , two=https://b/api/v1/"
    assert read_settings({"generator_servers": given}).generator_servers == (
        "one=http://a:8000/v1,two=https://b/api/v1"
    )
    for wrong in ("", "http://a", "one=", "=http://a", "one=ftp://a", "one=http://a,,", "one"):
        message = refusal({"generator_servers": wrong})
        assert message.startswith("--generator-servers: ")
        assert "PAIR=URL" in message
    assert "twice" in refusal({"generator_servers": "one=http://a,one=http://b"})
    assert "hunter2" not in refusal({"generator_servers": "one=http://me:hunter2@a"})
    there = {"answer_with": "http://there", "answer_model": "qwen"}
    assert "answer_with" in refusal({"generator_servers": "one=http://a", **there})


def test_a_database_of_vectors_and_which_one_it_is_come_together() -> None:
    assert read_settings().index_backend == "faiss"
    for address in ("http://db:6333", "https://db/q", "file:///var/lib/vectors"):
        there = {"index_backend": "qdrant", "index_database": address}
        assert read_settings(there).index_database == address
    assert "index_database" in refusal({"index_backend": "qdrant"})
    assert "index_backend" in refusal({"index_database": "http://db:6333"})
    assert "`qdrant`" in refusal({"index_backend": "chroma"}).replace("'", "`")


@pytest.mark.parametrize("address", ["db:6333", "file:", "file://host/path", "ftp://db", ""])
def test_what_is_no_address_is_no_database(address: str) -> None:
    message = refusal({"index_backend": "qdrant", "index_database": address})
    assert message.startswith("--index-database: ")


def test_a_password_in_a_databases_address_is_refused_and_not_shown() -> None:
    there = {"index_backend": "milvus", "index_database": "http://me:hunter2@db"}
    assert "hunter2" not in refusal(there)
    assert "CONDENSERY_INDEX_DATABASE_KEY" in refusal(there)


def test_a_shadow_needs_a_share_and_an_answer_of_ours() -> None:
    assert read_settings().shadow_share == 0
    assert read_settings({"shadow_share": "0.05", "shadow_model": "big"}).shadow_model == "big"
    assert "a number, 0 to 1" in refusal({"shadow_share": 1.5})
    assert "shadow_share" in refusal({"shadow_model": "big"})
    there = {"answer_with": "http://there", "answer_model": "qwen"}
    assert "nothing to compare" in refusal({"shadow_share": 0.5, **there})


def test_its_key_is_a_header_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_ANSWER_KEY", "hunter2")
    settings = read_settings()
    assert settings.answer_key is not None
    assert settings.answer_key.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(settings)
    monkeypatch.setenv("CONDENSERY_ANSWER_KEY", "hunter\r\n2")
    assert "hunter" not in refusal()
