import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModel

from condensery.errors import CorruptModel, InputError, ModelFault, Unavailable
from condensery.metrics import Metrics
from condensery.networks.quantised import can_quantise
from condensery.request_context import RequestContext, serving_request
from condensery.runtime.encoder import Encoder
from condensery.runtime.feeding import PART_TEXTS
from condensery.runtime.workers import Workers
from condensery.values import Floats

BF16 = torch.bfloat16
PROSE = (
    "The old mill above the river was sold in autumn. Nobody in the town knew the buyer, a "
    "quiet man who paid in coins, asked for the key of the weir, and never came back for bread. "
)
TEXTS = [
    "",
    "mill",
    "Who bought the mill?",
    PROSE,
    PROSE * 2,
    PROSE * 12,
    "Łódź, 東京 and Zürich: naïve cafés 😀",
    "a " * 13,
    "a " * 14,
    "stone " * 200,
]


class Reference:
    """transformers' eager fp32, padded and masked: the other way to compute the same vectors."""

    def __init__(self, stored: Any) -> None:
        self.longest = stored.manifest.max_tokens
        self.tokenizer = Tokenizer.from_file(str(stored.path / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.longest)
        self.model = AutoModel.from_pretrained(
            stored.path, attn_implementation="eager", dtype=torch.float32, local_files_only=True
        ).eval()

    def embed_tokens(self, text: str) -> Floats:
        ids = torch.tensor([self.tokenizer.encode(text).ids])
        with torch.inference_mode():
            array: Floats = self.model(input_ids=ids).last_hidden_state[0].numpy()
        return array

    def embed(self, texts: list[str], pooling: str = "mean", normalize: bool = True) -> Floats:
        ids = [self.tokenizer.encode(text).ids for text in texts]
        width = max(map(len, ids))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
        with torch.inference_mode():
            hidden = self.model(input_ids=padded, attention_mask=mask).last_hidden_state
        if pooling == "cls":
            vectors = hidden[:, 0]
        elif pooling == "last":
            vectors = hidden[torch.arange(len(ids)), mask.sum(1) - 1]
        else:
            vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        if normalize:
            vectors = vectors / vectors.norm(dim=1, keepdim=True)
        array: Floats = vectors.numpy()
        return array


def cosines(got: Floats, wanted: Floats) -> Floats:
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
    array: Floats = (got * wanted).sum(axis=1) / lengths
    return array


@pytest.fixture(scope="module")
def two_workers() -> Any:
    workers = Workers(2)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def reference(minilm: Any) -> Reference:
    return Reference(minilm)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def encoder(request: pytest.FixtureRequest, minilm: Any, two_workers: Workers) -> Any:
    loaded = Encoder.load(minilm, two_workers, dtype=getattr(torch, request.param))
    yield loaded
    loaded.close()


def assert_agrees(encoder: Encoder, got: Floats, wanted: Floats) -> None:
    """The promise: 1e-5 in fp32, a cosine of 0.9995 in bf16, and length 1 either way."""
    assert got.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)
    if encoder.info.dtype == "float32":
        np.testing.assert_allclose(got, wanted, atol=1e-5, rtol=0)
    else:
        assert cosines(got, wanted).min() >= 0.9995


async def test_minilm_alone_equals_transformers(encoder: Encoder, reference: Reference) -> None:
    got = [(await encoder.embed([text])).vectors[0] for text in TEXTS]
    assert_agrees(encoder, np.stack(got), reference.embed(TEXTS))


async def test_every_token_s_vector_is_transformers_own_beside_pooled_ones(
    encoder: Encoder, reference: Reference
) -> None:
    each, pooled = await asyncio.gather(encoder.embed_tokens(TEXTS), encoder.embed(TEXTS))
    assert each.truncated == pooled.truncated == (5,)
    assert pooled.vectors.shape == (len(TEXTS), 384)
    assert each.tokens == pooled.tokens == sum(map(len, each.vectors))
    assert_agrees(encoder, pooled.vectors, reference.embed(TEXTS))
    for text, vectors in zip(TEXTS, each.vectors, strict=True):
        wanted = reference.embed_tokens(text)
        assert vectors.shape == wanted.shape
        if encoder.info.dtype == "float32":
            np.testing.assert_allclose(vectors, wanted, atol=5e-5, rtol=0)
        else:
            assert cosines(vectors, wanted).min() > 0.99


async def test_vectors_that_are_kept_keep_no_other_texts_vectors_alive(
    tiny: Callable[..., Any], two_workers: Workers
) -> None:
    encoder = Encoder.load(tiny(), two_workers)
    for rows in (await encoder.embed_tokens(["mill", "the old mill", "a"])).vectors:
        assert rows.base is None


async def test_a_call_knows_where_its_time_went(encoder: Encoder) -> None:
    with serving_request(RequestContext()) as call:
        began = time.perf_counter()
        await encoder.embed(TEXTS, prompt="so: ")
        took = time.perf_counter() - began
    stats = call.stats
    assert stats.device == "cpu"
    assert stats.characters == sum(len("so: " + text) for text in TEXTS)
    assert 0 < stats.tokenizing < took
    assert 0 <= stats.wait_seconds < took
    assert 0 < stats.forward_seconds < took
    assert stats.wait_seconds + stats.forward_seconds <= took
    other = RequestContext()
    assert (other.stats.device, other.stats.forward_seconds) == ("", 0)


async def test_tokens_cover_their_texts_and_spell_them_again(encoder: Encoder) -> None:
    text = "The old Mill, by the river."
    pieces = encoder.pieces(text)
    assert [item.text for item in pieces if item.special] == ["[CLS]", "[SEP]"]
    for piece in pieces[1:-1]:
        assert piece.start is not None
        assert text[piece.start : piece.stop] == piece.text
    assert [entry.id for entry in encoder.pieces(text, special=False)] == [
        o.id for o in pieces[1:-1]
    ]
    ids = [piece.id for piece in pieces]
    assert encoder.decode(ids) == "the old mill, by the river."
    assert encoder.decode(ids, skip_special=False).startswith("[CLS] the old")
    for wrong in (-1, 10**6, 2**32):
        with pytest.raises(InputError, match=rf"ids\[7\]: {wrong} is not a token id") as caught:
            encoder.decode([*ids, wrong], field="ids[7]")
        assert (caught.value.field, caught.value.value) == ("ids[7]", wrong)
    with pytest.raises(InputError, match="inputs has 64001 characters"):
        encoder.pieces("a" * 64001)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    callers=st.lists(st.lists(st.integers(0, 150), min_size=1, max_size=4), min_size=1, max_size=4)
)
def test_minilm_in_any_batch_equals_transformers(
    encoder: Encoder, reference: Reference, callers: list[list[int]]
) -> None:
    words = (PROSE * 8).split()
    requests = [[" ".join(words[:length]) for length in lengths] for lengths in callers]

    async def together() -> list[Floats]:
        embedded = await asyncio.gather(*(encoder.embed(texts) for texts in requests))
        return [answer.vectors for answer in embedded]

    got = np.concatenate(asyncio.run(together()))
    assert_agrees(encoder, got, reference.embed([text for texts in requests for text in texts]))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalize", [True, False])
async def test_a_random_bert_pools_and_normalises_as_declared(
    tiny: Callable[..., Any], two_workers: Workers, pooling: str, normalize: bool
) -> None:
    stored = tiny(pooling=pooling, normalize=normalize)
    encoder = Encoder.load(stored, two_workers)
    reference = Reference(stored)
    for wish in (None, True, False):
        got = (await encoder.embed(TEXTS, normalize=wish)).vectors
        wanted = reference.embed(TEXTS, pooling, normalize if wish is None else wish)
        np.testing.assert_allclose(got, wanted, atol=1e-5, rtol=1e-5)


async def test_callers_who_normalise_and_who_do_not_share_a_batch(
    tiny: Callable[..., Any], two_workers: Workers
) -> None:
    stored = tiny()
    encoder = Encoder.load(stored, two_workers)
    answers = await asyncio.gather(
        *(encoder.embed([text], normalize=bool(n % 2)) for n, text in enumerate(TEXTS))
    )
    for number, (text, answer) in enumerate(zip(TEXTS, answers, strict=True)):
        wanted = Reference(stored).embed([text], normalize=bool(number % 2))
        np.testing.assert_allclose(answer.vectors, wanted, atol=1e-5, rtol=1e-5)


async def test_the_prompt_is_read_before_each_text(
    tiny: Callable[..., Any], two_workers: Workers
) -> None:
    encoder = Encoder.load(tiny(), two_workers)
    with_prompt = await encoder.embed(["mill", "town"], prompt="the old ")
    spelled = await encoder.embed(["the old mill", "the old town"])
    np.testing.assert_allclose(with_prompt.vectors, spelled.vectors, atol=1e-6)
    assert with_prompt.tokens == spelled.tokens == 10


async def test_no_text_gives_no_vector(tiny: Callable[..., Any], two_workers: Workers) -> None:
    embedded = await Encoder.load(tiny(), two_workers).embed([])
    assert embedded.vectors.shape == (0, 64)


async def test_a_non_finite_vector_fails_its_own_text_only(
    tiny: Callable[..., Any], two_workers: Workers
) -> None:
    encoder = Encoder.load(tiny(), two_workers)
    backbone = encoder._batcher._forward.__self__.backbone
    with torch.no_grad():
        backbone.model.get_input_embeddings().weight[4] = torch.nan  # the letter a
    # Pooled vectors and those of every token, side by side in one batch.
    asked = [
        (embed, text) for text in ("mill", "a mill", "b") for embed in ("embed", "embed_tokens")
    ]
    outcomes = await asyncio.gather(
        *(getattr(encoder, embed)([text]) for embed, text in asked), return_exceptions=True
    )
    for (_, text), outcome in zip(asked, outcomes, strict=True):
        if text == "a mill":
            assert isinstance(outcome, ModelFault)
            assert "mill" not in str(outcome)
        else:
            assert np.isfinite(outcome.vectors[0]).all()
    for embed in (encoder.embed, encoder.embed_tokens):
        with pytest.raises(ModelFault):
            await embed(["b", "a"])


async def test_bad_texts_are_input_errors(tiny: Callable[..., Any], two_workers: Workers) -> None:
    encoder = Encoder.load(tiny(), two_workers)
    with pytest.raises(InputError, match=r"input\[1\] has 16001 characters"):
        await encoder.embed(["a", "a" * 16_001])
    with pytest.raises(InputError, match=r"input\[0\] has 102 tokens"):
        await encoder.embed(["a " * 100], truncate=False)
    with pytest.raises(InputError, match="surrogate"):
        await encoder.embed(["\ud800"])


async def test_a_text_at_fault_is_named_as_the_door_calls_it(
    tiny: Callable[..., Any], two_workers: Workers
) -> None:
    encoder = Encoder.load(tiny(), two_workers)
    with pytest.raises(InputError, match=r"^texts\[1\] has 102 tokens") as caught:
        await encoder.embed(["a", "a " * 100], truncate=False, field="texts")
    assert caught.value.field == "texts[1]"


async def test_the_first_numbers_of_a_vector_get_its_length_of_one_again(
    tiny: Callable[..., Any], two_workers: Workers
) -> None:
    encoder = Encoder.load(tiny(shape={"matryoshka": [32, 8]}), two_workers)
    assert encoder.info.dimensions == (8, 32)
    for scaled in (True, False):
        whole = (await encoder.embed(["a b", "c"], normalize=scaled)).vectors
        cut = (await encoder.embed(["a b", "c"], normalize=scaled, dimensions=8)).vectors
        wanted = whole[:, :8]
        if scaled:
            wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
        np.testing.assert_allclose(cut, wanted, atol=1e-6)


async def test_info_says_what_runs(tiny: Callable[..., Any], two_workers: Workers) -> None:
    encoder = Encoder.load(tiny(prompts={"query": "q: "}), two_workers, dtype=BF16)
    info = encoder.info
    assert (info.name, info.dims, info.max_tokens) == ("tiny", 64, 64)
    assert (info.dtype, info.device, info.pooling) == ("bfloat16", "cpu", "mean")
    assert encoder.prompts == {"query": "q: "}
    assert encoder.content_tokens == 62


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_tokens": 65}, "only 64 positions"),
        ({"pooling": None}, "is no encoder"),
        ({"kind": "reranker"}, "is no encoder"),
        ({"shape": {"matryoshka": [8, 65]}}, r"matryoshka \[8, 65\] of 64 dimensions"),
        ({"shape": {"matryoshka": "8"}}, "matryoshka '8'"),
        ({"shape": {"matryoshka": [True]}}, r"matryoshka \[True\]"),
    ],
)
def test_a_manifest_that_does_not_fit_its_files_is_refused(
    tiny: Callable[..., Any], two_workers: Workers, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(CorruptModel, match=message):
        Encoder.load(tiny(**wrong), two_workers)


async def test_metrics_count_what_was_read(tiny: Callable[..., Any], two_workers: Workers) -> None:
    metrics = Metrics()
    metrics.prepare_model("tiny")
    encoder = Encoder.load(tiny(), two_workers, metrics=metrics)
    await encoder.embed(["mill", "a " * 100])

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"condensery_{name}", {"model": "tiny"} | labels)

    assert sample("input_tokens_total") == 3 + 64
    assert sample("truncated_inputs_total") == 1
    assert sample("stage_duration_seconds_count", stage="tokenize") == 1
    assert sample("batch_tokens_sum") == 3 + 64


@pytest.fixture
async def warm(tiny: Callable[..., Any], two_workers: Workers) -> AsyncIterator[Encoder]:
    encoder = Encoder.load(tiny(), two_workers)
    await encoder.warm_up()
    yield encoder
    encoder.close()


async def test_a_closed_encoder_refuses(warm: Encoder) -> None:
    assert (await warm.embed(["mill"])).tokens == 3
    warm.close()
    with pytest.raises(Unavailable):
        await warm.embed(["mill"])


def test_encoders_and_pairs_need_neither_the_server_s_packages_nor_pydantic() -> None:
    code = (
        "import sys; import condensery.runtime.encoder, condensery.runtime.oscar;"
        "print(*({'starlette','faiss','pydantic','prometheus_client','grpc'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_cuda_equals_transformers(tiny: Callable[..., Any], dtype: str) -> None:
    stored = tiny()
    workers = Workers(device="cuda")
    encoder = Encoder.load(stored, workers, dtype=getattr(torch, dtype))
    together = (await encoder.embed(TEXTS)).vectors
    alone = np.stack([(await encoder.embed([text])).vectors[0] for text in TEXTS])
    encoder.close()
    workers.close()
    wanted = Reference(stored).embed(TEXTS)
    if dtype == "float32":
        np.testing.assert_allclose(together, wanted, atol=1e-5, rtol=0)
        np.testing.assert_allclose(alone, wanted, atol=1e-5, rtol=0)
    else:
        assert cosines(together, wanted).min() >= 0.9995
        assert cosines(alone, wanted).min() >= 0.9995


async def test_a_long_list_is_on_the_device_before_its_end_is_tokenised(
    tiny: Callable[..., Any], workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.load(tiny(), workers)
    begun = threading.Event()
    parts: list[int] = []
    run, tokenise = encoder._batcher._forward, encoder._tokenizer.tokenise

    def counted(batch: Any) -> Any:
        begun.set()
        return run(batch)

    async def watched(texts: Sequence[str], **options: Any) -> Any:
        parts.append(options["first"])
        if len(parts) == 5:
            assert await asyncio.to_thread(begun.wait, 30)
        return await tokenise(texts, **options)

    monkeypatch.setattr(encoder._batcher, "_forward", counted)
    monkeypatch.setattr(encoder._tokenizer, "tokenise", watched)
    texts = [f"the {letter} mill" for letter in "abcde" for _ in range(PART_TEXTS)]
    embedded = await encoder.embed(texts)
    assert parts == [0, 64, 128, 192, 256]
    alone = np.stack([(await encoder.embed([text])).vectors[0] for text in texts[::PART_TEXTS]])
    np.testing.assert_allclose(embedded.vectors[::PART_TEXTS], alone, atol=1e-5)


async def test_a_text_too_long_far_down_a_list_is_named_by_its_place(
    tiny: Callable[..., Any], workers: Workers
) -> None:
    encoder = Encoder.load(tiny(), workers)
    texts = ["the mill"] * (2 * PART_TEXTS) + ["the mill " * 100]
    with pytest.raises(InputError, match=rf"texts\[{2 * PART_TEXTS}\] has"):
        await encoder.embed(texts, truncate=False, field="texts")
    assert encoder._batcher.queued_tokens == 0, "what was queued of it is dropped"
    assert (await encoder.embed(texts)).truncated == (2 * PART_TEXTS,)


@pytest.mark.skipif(not can_quantise("int8", torch.device("cpu")), reason="no products of 8 bits")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_with_weights_of_8_bits_vectors_are_near_and_the_model_says_so(
    dtype: torch.dtype, minilm: Any, two_workers: Workers, reference: Reference
) -> None:
    encoder = Encoder.load(minilm, two_workers, dtype=dtype, weights="int8")
    try:
        assert encoder.info.dtype == f"{str(dtype).removeprefix('torch.')}, weights int8"
        assert encoder.info.fingerprint == minilm.manifest.fingerprint
        together = (await encoder.embed(TEXTS)).vectors
        assert cosines(together, reference.embed(TEXTS)).min() > 0.99
        assert cosines(together, reference.embed(TEXTS)).mean() > 0.998
        alone = np.stack([(await encoder.embed([text])).vectors[0] for text in TEXTS])
        # Rows are rounded one by one, so that neighbours change nothing but the order of sums.
        assert cosines(together, alone).min() > 0.9995
    finally:
        encoder.close()
