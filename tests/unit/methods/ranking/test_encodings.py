"""What encodings lose, against rankings worked out one score at a time."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.methods.conftest import Stored

from condensery.encodings import Encoding, encode
from condensery.errors import InputError
from condensery.methods.ranking import encodings
from condensery.methods.ranking.retrieval import CorpusPassage, running
from condensery.methods.ranking.sets import RankingSet, read_sets
from condensery.networks.quantised import EncoderWeights, can_quantise
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore
from condensery.values import Floats

DIMS = 24


def units(rows: int, seed: int) -> Floats:
    drawn = np.random.default_rng(seed).normal(size=(rows, DIMS)).astype(np.float32)
    scaled: Floats = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return scaled


@pytest.fixture
def ranking_set() -> RankingSet:
    passages = [CorpusPassage(id=f"p{n}", title="", text=f"text {n}") for n in range(60)]
    rng = np.random.default_rng(5)
    judged = {f"q{n}": {f"p{place}": 1 for place in rng.choice(60, 3)} for n in range(8)}
    return RankingSet("made", passages, "content", {q: q for q in judged}, judged)


def by_hand(queries: Floats, passages: Floats, encoding: Encoding) -> list[list[int]]:
    """Rank by whole numbers, in Python: of equal scores the earlier passage first."""
    if encoding == "int8":
        asked, held = (
            encode(vectors, "int8").astype(int).tolist() for vectors in (queries, passages)
        )
    elif encoding == "ubinary":
        asked, held = (
            (2 * (vectors > 0).astype(int) - 1).tolist() for vectors in (queries, passages)
        )
    else:
        asked, held = (
            encode(vectors, encoding).astype(float).tolist() for vectors in (queries, passages)
        )
    places = []
    for row in asked:
        scores = [sum(a * b for a, b in zip(row, other, strict=True)) for other in held]
        places.append(sorted(range(len(held)), key=lambda place: -scores[place])[:10])
    return places


@pytest.mark.parametrize("encoding", encodings.MEASURED)
def test_the_nearest_are_those_of_the_encoded_numbers(encoding: Encoding) -> None:
    queries, passages = units(8, 1), units(60, 2)
    form = encodings.Form(encoding, encoding, DIMS)
    places = encodings.nearest(queries, passages, form).tolist()
    assert places == by_hand(queries, passages, encoding)


def test_recall_is_the_share_of_the_judged_that_are_found(ranking_set: RankingSet) -> None:
    queries, passages = units(8, 1), units(60, 2)
    figures = encodings.measure(ranking_set, queries, passages, [8])["forms"]
    for name, encoding in (("float32", "float32"), ("int8", "int8"), ("ubinary", "ubinary")):
        ranked = by_hand(queries, passages, encoding)
        shares = [
            len({f"p{place}" for place in row} & judged.keys()) / len(judged)
            for row, judged in zip(ranked, ranking_set.judged.values(), strict=True)
        ]
        assert figures[name]["recall@10"] == pytest.approx(sum(shares) / 8, abs=1e-4)
    exact, bits = by_hand(queries, passages, "float32"), by_hand(queries, passages, "ubinary")
    kept = [len(set(a) & set(b)) / 10 for a, b in zip(exact, bits, strict=True)]
    assert figures["ubinary"]["kept@10"] == pytest.approx(sum(kept) / 8, abs=1e-4)
    assert figures["float32"]["kept@10"] == 1
    assert "loss" not in figures["float32"]
    mean, low, high = figures["ubinary"]["loss"]["recall@10"]
    lost = figures["float32"]["recall@10"] - figures["ubinary"]["recall@10"]
    assert mean == pytest.approx(lost, abs=2e-4)
    assert low <= mean <= high
    sizes = {
        name: figures_of["bytes"] for name, figures_of in figures.items() if "bytes" in figures_of
    }
    assert sizes == {"float32": 96, "float16": 48, "int8": 24, "ubinary": 3, "float32_8": 32}
    assert figures["uint8"] == {"same_as": "int8"}


def test_shorter_vectors_are_cut_and_scaled_again() -> None:
    queries, passages = units(8, 1), units(60, 2)
    cut = encodings.nearest(queries, passages, encodings.Form("float32_8", "float32", 8))
    short = passages[:, :8] / np.linalg.norm(passages[:, :8], axis=1, keepdims=True)
    wanted = np.argsort(-(queries[:, :8] @ short.T), axis=1)[:, :10]
    assert np.array_equal(cut, wanted)


def test_what_rounded_weights_lose_is_measured_beside_an_index_that_was_there(
    ranking_set: RankingSet,
) -> None:
    queries, passages = units(8, 1), units(60, 2)
    others = encodings.Rounded("int8", units(8, 3), units(60, 4))
    forms = encodings.measure(ranking_set, queries, passages, rounded=others)["forms"]
    exact = by_hand(queries, passages, "float32")
    for name, held in (("weights_int8", others.passages), ("weights_int8_queries", passages)):
        ranked = by_hand(others.queries, held, "float32")
        kept = [len(set(a) & set(b)) / 10 for a, b in zip(ranked, exact, strict=True)]
        assert forms[name]["kept@10"] == pytest.approx(sum(kept) / 8, abs=1e-4)
        assert forms[name]["bytes"] == 96
    both = np.concatenate([queries, passages]), np.concatenate([others.queries, others.passages])
    cosines = (both[0] * both[1]).sum(1)
    wanted = pytest.approx([cosines.min(), cosines.mean()], abs=1e-5)
    assert forms["weights_int8"]["cosine"] == wanted
    assert "cosine" not in forms["weights_int8_queries"]
    assert forms["float32"]["kept@10"] == 1


@pytest.mark.skipif(not can_quantise("int8", torch.device("cpu")), reason="no products of 8 bits")
def test_the_command_measures_rounded_weights(beir: Path, stored: Stored, tmp_path: Path) -> None:
    model = stored("bert")
    out = tmp_path / "part.json"
    asked = ["--model", "bert", "--store", str(tmp_path / "store"), "--set", str(beir)]
    encodings.main([*asked, "--dtype", "float32", "--weights", "int8", "--out", str(out)])
    forms = json.loads(out.read_text())["encodings"]["tiny"]["forms"]
    (ranking_set,) = read_sets([str(beir)])
    vectors = []
    both: tuple[EncoderWeights, ...] = ("float", "int8")
    for weights in both:
        with running(model, 1, torch.device("cpu"), torch.float32, weights) as encoder:
            vectors.append(np.concatenate(encodings.vectors_of(encoder, ranking_set)))
    exact, rounded = vectors
    cosines = (exact * rounded).sum(axis=1)
    assert forms["weights_int8"]["cosine"] == pytest.approx(
        [cosines.min(), cosines.mean()], abs=1e-5
    )
    assert cosines.min() > 0.98
    assert not np.allclose(exact, rounded, rtol=0, atol=1e-5)  # weights were rounded for real
    assert forms["weights_int8_queries"].keys() == forms["int8"].keys()


def test_the_command_measures_a_stored_encoder_and_its_report_says_so(
    beir: Path, stored: Stored, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = stored("bert")
    out = tmp_path / "part.json"
    root = str(tmp_path / "store")
    asked = ["--model", "bert", "--store", root, "--set", str(beir), "--dtype", "float32"]
    encodings.main([*asked, "--out", str(out), "--publish"])
    printed = capsys.readouterr().out
    part = json.loads(out.read_text())
    assert json.loads(printed) == part
    tiny = part["encodings"]["tiny"]
    assert tiny["fingerprint"] == model.manifest.fingerprint
    assert set(tiny["forms"]) == {"float32", "float16", "int8", "uint8", "binary", "ubinary"}
    store = ModelStore(None, tmp_path / "store")
    new = store.open("bert")
    assert (new.version, new.manifest.fingerprint) == ("2", model.manifest.fingerprint)
    assert StoredReport(new).report().report == {"format": 1, **part}
    encodings.publish(store, new, {"other": {"queries": 1}})
    stored_part = StoredReport(store.open("bert")).report().report["encodings"]
    assert set(stored_part) == {"tiny", "other"}


def test_a_model_of_another_kind_is_refused(beir: Path, store_with_pair: Path) -> None:
    asked = ["--model", "oscar-mini", "--store", str(store_with_pair), "--set", str(beir)]
    with pytest.raises(InputError, match="'oscar-mini' is of kind 'oscar-pair'"):
        encodings.main(asked)
