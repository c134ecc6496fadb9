"""The command: what it refuses before any model is loaded, and what it goes on with."""

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.methods.conftest import Stored

from condensery.errors import InputError, ModelNotFound
from condensery.methods.judging.command import (
    KEY,
    PART,
    kept,
    make_parser,
    open_encoders,
    publish,
    read_servers,
)
from condensery.methods.judging.encoders import EmbeddingServer, StoredEncoder
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore


def flags(*words: str) -> Namespace:
    return make_parser().parse_args([*words, "--out", "out"])


def test_what_is_kept_is_not_made_again_and_what_was_cut_short_is(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> dict[str, Any]:
        made.append(1)
        if len(made) == 1:
            raise KeyboardInterrupt
        return {"value": 0.5}

    path = tmp_path / "encoder/set.json"
    with pytest.raises(KeyboardInterrupt):
        kept(path, {"fingerprint": "sha256:1"}, make)
    assert [kept(path, {"fingerprint": "sha256:1"}, make) for _ in range(3)] == [{"value": 0.5}] * 3
    assert len(made) == 2


@pytest.mark.parametrize("ended", [True, False])
def test_what_depends_on_something_else_is_refused_naming_it(ended: bool, tmp_path: Path) -> None:
    """Half of an encoder's vectors may be another's: so before the first one is kept."""
    path = tmp_path / "set.json"

    def make() -> dict[str, Any]:
        if not ended:
            raise KeyboardInterrupt
        return {}

    with suppress(KeyboardInterrupt):
        kept(path, {"fingerprint": "sha256:1", "seed": 1}, make)
    with pytest.raises(InputError, match="fingerprint: 'sha256:1', not 'sha256:2'") as refused:
        kept(path, {"fingerprint": "sha256:2", "seed": 1}, dict)
    assert "seed" not in refused.value.message
    assert str(path) in refused.value.message


def test_a_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text('{"about"')
    with pytest.raises(InputError, match=r"set\.json is damaged"):
        kept(tmp_path / "set.json", {}, dict)


def test_urls_have_names_prompts_and_the_one_key() -> None:
    args = flags(
        "--url", "e5=http://a/v1", "--url", "org/other=http://a/v1", "--characters", "9",
        "--url-prompt", "e5:search_query=query: ", "--url-prompt", "e5:default=passage: ",
    )  # fmt: skip
    prompts = {"search_query": "query: ", "default": "passage: "}
    assert read_servers(args, "k") == [
        EmbeddingServer("e5", "http://a/v1", "k", prompts, 9),
        EmbeddingServer("org/other", "http://a/v1", "k", None, 9),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "http://a/v1"], "is not NAME=URL"),
        (["--url", "m=a/v1"], "no http or https URL"),
        (["--url", "m=http://a/v1", "--url", "n=http://b/v1"], KEY),
        (["--url", "m=http://a/v1", "--url-prompt", "n:default=x"], "names no --url"),
        (["--url", "m=http://a/v1", "--url-prompt", "m:poems=x"], "'poems' is none of"),
        (["--url", "m=http://a/v1", "--characters", "-1"], "less than 0"),
    ],
)
def test_urls_that_are_wrong_are_refused(words: list[str], message: str) -> None:
    """Two servers, too, where one key would go to both."""
    with pytest.raises(InputError, match=message):
        read_servers(flags(*words), "secret")


def test_a_key_is_in_no_message_and_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-hidden")
    (encoder,) = open_encoders(flags("--url", "m=http://a/v1"))
    assert "sk-hidden" not in repr(encoder.about)
    assert "sk-hidden" not in repr(EmbeddingServer("m", "http://a/v1", "sk-hidden"))


def test_encoders_that_are_none_or_named_twice_are_refused(
    store_with_pair: Path, stored: Stored
) -> None:
    root = str(stored("bert").root)
    with pytest.raises(InputError, match="no encoder to judge"):
        open_encoders(flags())
    with pytest.raises(InputError, match="'bert' is named twice"):
        open_encoders(flags("--model", "bert", "--url", "bert=http://a/v1", "--store", root))
    with pytest.raises(ModelNotFound, match="'nobody'"):
        open_encoders(flags("--model", "nobody", "--store", root))
    with pytest.raises(InputError, match="'oscar-mini' is of kind 'oscar-pair'"):
        open_encoders(flags("--model", "oscar-mini", "--store", str(store_with_pair)))


def test_a_stored_models_report_has_the_figures_beside_what_it_said(
    stored: Stored, tmp_path: Path
) -> None:
    root = stored("bert").root
    store = ModelStore(None, root)
    (encoder,) = open_encoders(flags("--model", "bert", "--store", str(root)))
    assert isinstance(encoder, StoredEncoder)
    plot = tmp_path / "plot.png"
    plot.write_bytes(b"a picture")

    def say(sets: dict[str, float], date: str) -> None:
        rows = {key: {"value": value} for key, value in sets.items()}
        row = {"sets": rows, "scores": {key: {} for key in sets}, **encoder.about}
        about: dict[str, Any] = {key: {"count": 3} for key in sets}
        report = {"models": {"bert": row}, "sets": about, "date": date}
        publish(store, encoder, report, {"plots/judged-sets.png": plot})

    say({"sts/a": 0.5}, "Monday")
    say({"pairs/b": 0.7}, "Tuesday")
    say({"pairs/b": 0.7}, "Wednesday")  # says nothing new
    new = store.open("bert")
    report = StoredReport(new).report()
    assert (new.version, new.manifest.fingerprint) == ("3", encoder.about["fingerprint"])
    assert {key: entry["value"] for key, entry in report.report[PART].items()} == {
        "sts/a": 0.5,
        "pairs/b": 0.7,
    }
    assert report.report[PART]["pairs/b"]["date"] == "Tuesday"
    assert report.plots == ("judged-sets",)
