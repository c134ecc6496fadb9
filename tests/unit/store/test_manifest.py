import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from condensery.store.manifest import Manifest, path_problem
from condensery.store.store import ModelStore, shipped_store

HASH = "0" * 64
OTHER = "1" * 64
FILES = {"model.safetensors": HASH, "tokenizer.json": HASH, "config.json": HASH, "card.md": HASH}

MakeManifest = Callable[..., Manifest]


def test_a_manifest_survives_its_own_json(manifest: MakeManifest) -> None:
    before = manifest(
        method="oscar",
        kind="oscar-pair",
        base="minilm-l6",
        base_fingerprint=f"sha256:{HASH}",
        prompts={"query": "query: "},
        default_prompt="query",
        shape={"memory_tokens": 8, "dropped": [1, 2]},
        defaults={"top_n": 1},
        files=FILES,
        quality={"squad_f1": 30.5},
    )
    text = before.model_dump_json()
    assert json.loads(text)["fingerprint"] == before.fingerprint
    assert Manifest.model_validate_json(text) == before


@pytest.mark.parametrize(
    "change",
    [
        {"licence": "mit"},
        {"quality": {"sts": 0.8}},
        {"cost": {"parameters": 1}},
        {"defaults": {"top_n": 1, "min_relevance": 0.5}},
        {"created": 7},
        {"name": "other"},
        {"version": "2"},
        {"dtype": "bfloat16"},
        {"provenance": {"seed": 3, "command": "make it"}},
        {"files": {**FILES, "card.md": OTHER, "LICENSE": OTHER}},
        {"files": {**FILES, "report.json": OTHER, "plots/cost.png": OTHER}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_fingerprint_stays_when_no_number_changes(
    manifest: MakeManifest, change: dict[str, Any]
) -> None:
    before = manifest(files=FILES)
    assert manifest(**{"files": FILES, **change}).fingerprint == before.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"pooling": "cls"},
        {"normalize": True},
        {"max_tokens": 17},
        {"kind": "reranker"},
        {"method": "shrp"},
        {"shape": {"experts": 2}},
        {"prompts": {"query": "q: "}},
        {"base_fingerprint": f"sha256:{HASH}"},
        {"files": {**FILES, "model.safetensors": OTHER}},
        {"files": {**FILES, "tokenizer.json": OTHER}},
        {"files": {**FILES, "config.json": OTHER}},
        {"files": {**FILES, "LICENSE.safetensors": OTHER}},
        {"files": {**FILES, "sub/report.json": OTHER}},
        {"files": {**FILES, "plots/cost.json": OTHER}},
        {"files": {**FILES, "plots/more/cost.png": OTHER}},
        {"files": {**FILES, "cost.png": OTHER}},
    ],
    ids=str,
)
def test_the_fingerprint_changes_with_what_changes_the_numbers(
    manifest: MakeManifest, change: dict[str, Any]
) -> None:
    before = manifest(files=FILES)
    assert manifest(**{"files": FILES, **change}).fingerprint != before.fingerprint


def test_the_default_prompt_is_part_of_the_fingerprint(manifest: MakeManifest) -> None:
    prompts = {"a": "a: ", "b": "b: "}
    first, second = (manifest(prompts=prompts, default_prompt=name) for name in prompts)
    assert first.fingerprint != second.fingerprint


def test_a_manifest_edited_by_hand_no_longer_agrees_with_its_fingerprint(
    manifest: MakeManifest,
) -> None:
    content = json.loads(manifest().model_dump_json())
    with pytest.raises(ValidationError, match="not that of the content"):
        Manifest.model_validate(content | {"pooling": "cls"})


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": "../up"}, "name"),
        ({"name": ""}, "name"),
        ({"version": "1.0"}, "version"),
        ({"version": "0"}, "version"),
        ({"kind": "magician"}, "kind"),
        ({"method": "zip"}, "method"),
        ({"pooling": "max"}, "pooling"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"format": 2}, "format"),
        ({"colour": "red"}, "colour"),
        ({"files": {"model.safetensors": "abc"}}, "files"),
        ({"default_prompt": "query"}, "default_prompt"),
        ({"shape": {"width": float("nan")}}, "not JSON compliant"),
    ],
    ids=str,
)
def test_a_wrong_manifest_names_the_field(
    manifest: MakeManifest, change: dict[str, Any], place: str
) -> None:
    with pytest.raises(ValidationError, match=place):
        manifest(**change)


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../up.safetensors", "a/../../up.json", "a\\..\\b.json", "..", "./a.json"),
        *(
            "",
            "a//b.json",
            "a/",
            ".hidden",
            "a/.hidden/b.json",
            "model.json",
            "a\0b",
            "\ud800.json",
        ),
        *("pytorch_model.bin", "model.pt", "model.PTH", "x.pkl", "arr.npy", "modeling_new.py"),
    ],
)
def test_a_file_name_that_leads_outside_or_could_run_is_refused(path: str) -> None:
    assert path_problem(path)


@given(st.text(alphabet=st.sampled_from("ab./\\\0-é "), max_size=12))
def test_no_accepted_file_name_leaves_the_directory(path: str) -> None:
    if path_problem(path) is None:
        assert not path.startswith("/")
        assert ".." not in path.split("/")
        assert path.isprintable()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"top_n": -1}, {"top_n": 1.5}, {"top_n": True}, {"top_n": "1"}, {"colour": 1}),
        *({"min_relevance": -0.1}, {"min_relevance": 1.1}, {"min_relevance": "high"}),
    ],
    ids=str,
)
def test_a_default_that_can_not_be_is_refused_by_name(
    manifest: MakeManifest, wrong: dict[str, Any]
) -> None:
    (name,) = wrong
    with pytest.raises(ValidationError, match=name):
        manifest(defaults=wrong)


def test_the_shipped_pair_reads_one_passage_and_is_the_one_it_was() -> None:
    root = shipped_store()
    assert root is not None
    shipped = ModelStore(None, root).open("oscar-mini").manifest
    assert shipped.defaults.top_n == 1
    fingerprint = "sha256:2021a3a1ae41f3b1d18f3a84f61b0682046391b04acc9bc6e204c5e29bdb2caa"
    assert shipped.fingerprint == fingerprint
