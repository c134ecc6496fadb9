from typing import Any

import numpy as np
import pytest

from condensery.errors import EmptyInput, InputError
from condensery.index import checks
from condensery.values import Document, IndexSpec, Passage


@pytest.mark.parametrize("name", ["a", "kb", "0.a_b-c", "a" * 64])
def test_index_names_of_the_grammar_pass(name: str) -> None:
    checks.check_name(name)


@pytest.mark.parametrize("name", ["", "A", ".a", "-a", "a/b", "..", "a" * 65, "a\n", "é", None, 7])
def test_other_index_names_are_refused(name: Any) -> None:
    with pytest.raises(InputError) as caught:
        checks.check_name(name)
    assert caught.value.field == "index"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("kind", "ivf", "flat, hnsw, ivf_pq"),
        ("metric", "cosine", "ip, l2"),
        ("dims", 0, "from 1 to"),
        ("dims", True, "from 1 to"),
        ("dims", "8", "from 1 to"),
        ("encoder", "", "1 to 512"),
        ("fingerprint", None, "1 to 512"),
    ],
)
def test_settings_that_no_index_has_are_refused(field: str, value: Any, says: str) -> None:
    good = {"encoder": "e", "fingerprint": "f", "dims": 8, "metric": "ip", "kind": "flat"}
    with pytest.raises(InputError, match=says) as caught:
        checks.check_spec(IndexSpec(**{**good, field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize("value", ["", "x" * 513, "a\0b", "a\ud800", 5, None, b"a"])
def test_ids_that_cannot_be_are_refused_by_row(value: Any) -> None:
    with pytest.raises(InputError) as caught:
        checks.check_ids(["fine", "x" * 512, value])
    assert caught.value.field == "ids[2]"


def one_document(**changes: Any) -> tuple[list[Document], list[Passage]]:
    document = Document("d", "some text")
    passage = {"id": "d#0", "document_id": "d", "text": "some", "start": 0, "end": 4}
    return [document], [Passage(**{**passage, **changes})]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "passages[0].id"),
        ({"document_id": "other"}, "passages[0].document_id"),
        ({"text": "same"}, "passages[0]"),
        ({"end": 5}, "passages[0]"),
        ({"start": -9}, "passages[0]"),
        ({"start": 4, "end": 0, "text": ""}, "passages[0]"),
        ({"end": 900, "start": 0, "text": "some text"}, "passages[0]"),
    ],
)
def test_a_passage_that_is_not_of_its_document_is_refused(
    changes: dict[str, Any], field: str
) -> None:
    checks.check_documents(*one_document())
    with pytest.raises(InputError) as caught:
        checks.check_documents(*one_document(**changes))
    assert caught.value.field == field


def test_ids_that_come_twice_are_named() -> None:
    documents, passages = one_document()
    with pytest.raises(InputError, match="'d' comes twice"):
        checks.check_documents(documents * 2, passages)
    with pytest.raises(InputError, match="'d#0' comes twice"):
        checks.check_documents(documents, passages * 2)


def test_no_documents_and_documents_without_passages_are_refused() -> None:
    with pytest.raises(EmptyInput):
        checks.check_documents([], [])
    with pytest.raises(InputError, match="'d' has no passages"):
        checks.check_documents(one_document()[0], [])


def test_half_a_surrogate_pair_in_a_text_is_refused() -> None:
    with pytest.raises(InputError, match="surrogate"):
        checks.check_documents([Document("d", "a\udcff")], [])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e17])
def test_numbers_that_are_not_finite_are_named_by_row_and_place(bad: float) -> None:
    vectors = np.zeros((3, 4), np.float32)
    vectors[1, 2] = bad
    with pytest.raises(InputError) as caught:
        checks.check_vectors(vectors, 3, 4)
    assert caught.value.field == "vectors[1][2]"
    with pytest.raises(InputError) as caught:
        checks.check_query(vectors[1], 4, 5)
    assert caught.value.field == "vector[2]"


@pytest.mark.parametrize(
    ("vectors", "says"),
    [
        (np.zeros((3, 5), np.float32), r"shape \(3, 5\), but 3 passages of 4"),
        (np.zeros((2, 4), np.float32), r"shape \(2, 4\)"),
        (np.zeros(12, np.float32), r"shape \(12,\)"),
        (np.zeros((3, 4)), "got float64"),
        ([[0.0] * 4] * 3, "got list"),
    ],
)
def test_vectors_of_another_shape_or_type_are_refused(vectors: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        checks.check_vectors(vectors, 3, 4)


@pytest.mark.parametrize("top_k", [0, -1, 10_001, True, 1.0, "5"])
def test_top_k_out_of_range_is_refused(top_k: Any) -> None:
    with pytest.raises(InputError, match="top_k"):
        checks.check_query(np.zeros(4, np.float32), 4, top_k)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ([1], "m"),
        ("text", "m"),
        (None, "m"),
        ({1: "a"}, "m"),
        ({"a": float("nan")}, "m.a"),
        ({"a": [0, float("inf")]}, "m.a[1]"),
        ({"a": {"b": b"bytes"}}, "m.a.b"),
        ({"a": {1, 2}}, "m.a"),
        ({"a": "\ud800"}, "m"),
        ({"a": "é" * 8192}, "m"),
    ],
)
def test_metadata_that_json_would_not_give_back_is_refused(metadata: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        checks.encode_metadata(metadata, "m")
    assert caught.value.field == field


@pytest.mark.parametrize("metadata", [{"x" * 100_000: {1}}, {"a": {"x" * 100_000: {1}}}])
def test_a_long_name_in_metadata_is_not_repeated_at_length(metadata: Any) -> None:
    with pytest.raises(InputError) as caught:
        checks.encode_metadata(metadata, "m")
    assert len(caught.value.message) < 200


def test_metadata_nested_too_deep_is_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(5000):
        nested = {"a": nested}
    with pytest.raises(InputError, match="deeper than 32"):
        checks.encode_metadata(nested, "m")


def test_metadata_up_to_the_limit_passes() -> None:
    assert len(checks.encode_metadata({"a": "x" * (16 * 1024 - 9)}, "m")) == 16 * 1024
