import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_classifier import CONFIGS, LENGTH, as_sentence_transformers, reference, write_classifier
from tiny_pair import VOCABULARY, text_of

from condensery.errors import CorruptModel, InputError, ModelFault
from condensery.networks.quantised import can_quantise
from condensery.runtime.classifier import Classifier
from condensery.runtime.workers import Workers
from condensery.store.importing import import_model
from condensery.store.manifest import StoredModel
from condensery.store.store import ModelStore
from condensery.values import Input, TruncationDirection

LONG, LONGER = text_of(3 * LENGTH, 1), text_of(40 * LENGTH, 2)
INPUTS: list[Input] = [
    "the mill",
    ("who", "the old mill on the river"),
    "",
    LONG,
    ("the mill", LONG),
    (LONG, "bread"),
    (LONG, LONGER),
    ("what is the market", LONGER),
    LONGER,
    ("", ""),
    ("who", "the new mill"),
]
LABELS = ("contradiction", "entailment", "neutral")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def workers() -> Iterator[Workers]:
    running = Workers(2)
    yield running
    running.close()


def stored(folder: Path, root: Path) -> StoredModel:
    return import_model(ModelStore(None, root), folder, "judge")


@pytest.mark.parametrize(
    ("labels", "side"), [(("relevant",), "right"), (LABELS, "right"), (LABELS, "left")]
)
@pytest.mark.parametrize("kind", CONFIGS)
def test_texts_and_pairs_are_read_as_transformers_reads_them(
    kind: str,
    labels: tuple[str, ...],
    side: TruncationDirection,
    tmp_path: Path,
    workers: Workers,
    threads: ThreadPoolExecutor,
) -> None:
    folder = write_classifier(tmp_path / "hf", kind, labels)
    inputs = [item for item in INPUTS if kind != "qwen2" or item not in ("", ("", ""))]
    model = Classifier.load(stored(folder, tmp_path / "store"), workers, threads=threads)
    assert model.info.labels == labels
    assert model.info.kind == ("reranker" if len(labels) == 1 else "classifier")
    classified = asyncio.run(model.classify(inputs, side=side))
    wanted = reference(folder, inputs, side=side).numpy()
    assert np.abs(classified.logits - wanted).max() < 2e-5
    assert wanted.std(axis=0).min() > 1e-3
    cut = [place for place, item in enumerate(inputs) if LONG in item or LONGER in item]
    assert list(classified.truncated) == cut
    alone = [asyncio.run(model.classify([entry], side=side)).logits[0] for entry in inputs[:4]]
    assert np.abs(classified.logits[:4] - alone).max() < 2e-5


def test_a_cross_encoder_scores_passages_and_tells_what_was_cut(
    tmp_path: Path, workers: Workers, threads: ThreadPoolExecutor
) -> None:
    folder = as_sentence_transformers(write_classifier(tmp_path / "st"))
    reranker = stored(folder, tmp_path / "store")
    assert (reranker.manifest.kind, reranker.manifest.max_tokens) == ("reranker", 40)
    model = Classifier.load(reranker, workers, threads=threads)
    passages = ["the old mill", LONG, "bread"]
    scored = asyncio.run(model.score("the mill on the river", passages))
    wanted = reference(folder, [("the mill on the river", text) for text in passages], 40)
    assert np.abs(scored.scores - wanted[:, 0].numpy()).max() < 2e-5
    assert (scored.truncated, scored.query_truncated) == ((1,), False)
    assert asyncio.run(model.score(LONG, ["bread"])).query_truncated
    assert asyncio.run(model.score("mill", [])).scores.shape == (0,)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["mill", LONG], r"inputs\[1\] has \d+ tokens, over the model's 48, and truncate is false"),
        (["mill", ("a", LONG)], r"inputs\[1\] has \d+ tokens"),
    ],
)
def test_what_is_too_long_is_refused_where_nothing_may_be_cut(
    inputs: list[Input],
    message: str,
    tmp_path: Path,
    workers: Workers,
    threads: ThreadPoolExecutor,
) -> None:
    folder = write_classifier(tmp_path / "hf")
    model = Classifier.load(stored(folder, tmp_path / "store"), workers, threads=threads)
    with pytest.raises(InputError, match=message):
        asyncio.run(model.classify(inputs, truncate=False))
    fits: list[Input] = ["mill", ("mill", "river")]
    assert len(asyncio.run(model.classify(fits, truncate=False)).logits) == 2


def test_a_ranking_in_which_nothing_may_be_cut_is_refused_too(
    tmp_path: Path, workers: Workers, threads: ThreadPoolExecutor
) -> None:
    folder = write_classifier(tmp_path / "hf")
    model = Classifier.load(stored(folder, tmp_path / "store"), workers, threads=threads)
    for query, passages, place in (("mill", ["river", LONG], 1), (LONG, ["river"], 0)):
        with pytest.raises(InputError, match=rf"documents\[{place}\] has \d+ tokens"):
            asyncio.run(model.score(query, passages, truncate=False))
    assert len(asyncio.run(model.score("mill", ["river", "town"], truncate=False)).scores) == 2


def test_texts_that_are_no_texts_are_named(
    tmp_path: Path, workers: Workers, threads: ThreadPoolExecutor
) -> None:
    folder = write_classifier(tmp_path / "hf")
    model = Classifier.load(stored(folder, tmp_path / "store"), workers, threads=threads)
    with pytest.raises(InputError, match=r"inputs\[1\] has 12001 characters, over the limit"):
        asyncio.run(model.classify(["a", ("b", "c" * 12001)]))
    with pytest.raises(InputError, match=r"documents\[0\] holds a lone surrogate"):
        asyncio.run(model.score("q", ["\ud800"]))
    with pytest.raises(InputError, match=r"query holds a lone surrogate"):
        asyncio.run(model.score("\ud800", ["a"]))


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf])
def test_a_score_that_is_not_finite_fails_its_own_text_only(
    spoilt: float, tmp_path: Path, workers: Workers, threads: ThreadPoolExecutor
) -> None:
    folder = write_classifier(tmp_path / "hf")
    model: Any = Classifier.load(stored(folder, tmp_path / "store"), workers, threads=threads)
    words = model._batcher._forward.__self__._network.backbone.model.get_input_embeddings()
    with torch.no_grad():
        words.weight[VOCABULARY.index("0")] = spoilt

    async def together() -> list[Any]:
        calls = model.classify(["0"]), model.classify(["mill"]), model.score("mill", ["a", "0"])
        return await asyncio.gather(*calls, return_exceptions=True)

    alone, good, one_of_two = asyncio.run(together())
    for failed in (alone, one_of_two):
        assert isinstance(failed, ModelFault)
        assert "NaN or infinity" in failed.message
    assert good.logits.shape == (1, 1)
    assert np.isfinite(good.logits).all()


def test_a_manifest_that_disagrees_with_the_network_is_refused(
    tmp_path: Path, workers: Workers, threads: ThreadPoolExecutor
) -> None:
    model = stored(write_classifier(tmp_path / "hf", labels=LABELS), tmp_path / "store")
    shape = {**model.manifest.shape, "labels": ["one"]}
    other = StoredModel(model.manifest.model_copy(update={"shape": shape}), model.path)
    with pytest.raises(CorruptModel, match="has 3 labels, its manifest 1"):
        Classifier.load(other, workers, threads=threads)


def test_bf16_agrees_with_float32(
    tmp_path: Path, workers: Workers, threads: ThreadPoolExecutor
) -> None:
    model = stored(write_classifier(tmp_path / "hf", labels=LABELS), tmp_path / "store")
    exact, fast = (
        asyncio.run(
            Classifier.load(model, workers, threads=threads, dtype=dtype).classify(INPUTS)
        ).logits
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert np.abs(exact - fast).max() < 0.1 * np.abs(exact).max()


@pytest.mark.skipif(not can_quantise("int8", torch.device("cpu")), reason="no products of 8 bits")
def test_with_weights_of_8_bits_logits_are_near_and_the_model_says_so(
    tmp_path: Path, workers: Workers, threads: ThreadPoolExecutor
) -> None:
    folder = write_classifier(tmp_path / "hf", "bert", LABELS)
    store = stored(folder, tmp_path / "store")
    model = Classifier.load(store, workers, threads=threads, weights="int8")
    assert model.info.dtype == "float32, weights int8"
    inputs = [item for item in INPUTS if item not in ("", ("", ""))]
    got = asyncio.run(model.classify(inputs)).logits
    wanted = reference(folder, inputs).numpy()
    assert 0 < np.abs(got - wanted).max() < 0.1 * np.abs(wanted).max()
