"""Published pairs, imported and served, give what their own code gives: see ``tiny_published``."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_published import Cocom, Pisco, write_base
from torch import Tensor

from condensery.errors import CondenseryError, ContextTooLong, ModelNotFound
from condensery.question import CompressedPassage, GeneratedToken, Sampling
from condensery.runtime.oscar import OscarModel
from condensery.runtime.registry import ModelRegistry
from condensery.store.importing import import_model
from condensery.store.pair_options import PairOptions
from condensery.store.store import ModelStore
from condensery.values import Floats

QUESTION = "How long is the river?"
PASSAGES = ["The mill stands by the river.", "", "It is 1,200 kilometres long; the bread market."]
LONG = "The old mill stands by the river, where the bread market was. " * 20


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bases")
    return {
        "mistral": write_base(root / "mistral", "mistral", seed=1),
        "qwen2": write_base(root / "qwen2", "qwen2", seed=2),
        "llama": write_base(root / "llama", "llama", seed=3),
        "wide": write_base(root / "wide", "mistral", seed=4, hidden_size=64),
    }


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., OscarModel]]:
    """Import a published directory, load the store as a server does, return its reader."""
    running = []

    def run(path: Path, **options: Any) -> OscarModel:
        store = ModelStore(None, tmp_path / "store")
        import_model(store, path, "published", pair=PairOptions(**options))
        models = ModelRegistry.load(
            store, device=torch.device("cpu"), dtype=torch.float32, workers=2
        )
        running.append(models)
        assert models.refusals() == {}
        return models.pair()

    yield run
    for models in running:
        models.close()


async def compress(
    reader: OscarModel, passages: list[str], question: str = QUESTION
) -> list[CompressedPassage]:
    results = await reader.compress(question, passages)
    assert not [entry for entry in results if isinstance(entry, CondenseryError)]
    return [item for item in results if isinstance(item, CompressedPassage)]


async def tokens_of(stream: AsyncIterator[GeneratedToken]) -> list[GeneratedToken]:
    return [token async for token in stream]


def assert_close(memory: Floats, wanted: Tensor) -> None:
    scale = max(1.0, float(wanted.abs().max()))
    np.testing.assert_allclose(memory, wanted.numpy(), rtol=0, atol=5e-5 * scale)


KINDS = {
    "a small model for Mistral": ("wide", "llama", "small"),
    "the first layers": ("mistral", "mistral", "trimmed"),
    "the decoder itself": ("mistral", "mistral", "shared"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_published_pair_answers_as_its_own_code_would(
    bases: dict[str, Path], serve: Callable[..., OscarModel], tmp_path: Path, kind: str
) -> None:
    decoder, compressor, form = KINDS[kind]
    published = Cocom(tmp_path / "naver", (bases[decoder], bases[compressor]), form)
    reader = serve(published.path)
    await reader.warm_up()
    compressed = await compress(reader, PASSAGES)
    wanted = published.compress(QUESTION, PASSAGES, 192)
    assert_close(np.stack([item.memory for item in compressed]), wanted)
    assert {entry.relevance for entry in compressed} == {None}
    for passage, item in zip(PASSAGES, compressed, strict=True):
        assert passage[item.start : item.end] == passage

    reference = published.answer(published.embed(QUESTION, wanted), 24)
    memory = [item.memory for item in compressed]
    tokens = await tokens_of(reader.generate(QUESTION, memory, max_tokens=24))
    assert [token.id for token in tokens] == reference
    assert len(set(reference)) > 1
    plain = published.tokenizer.decode(reference, skip_special_tokens=True)
    assert "".join(token.text for token in tokens) == plain

    wish = Sampling(logprobs=2)
    again = await tokens_of(reader.generate(QUESTION, memory, max_tokens=24, sampling=wish))
    assert [token.id for token in again] == reference
    shown = [token for token in again if token.finish != "stop"]
    assert all(token.logprob is not None and token.logprob.top for token in shown)
    assert reader.info.max_tokens == 192 + {"small": 3, "trimmed": 8, "shared": 8}[form]
    assert (reader.traits.vectors, reader.traits.scores) == ((8,), False)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_long_question_is_read_whole_by_both_halves_as_the_published_code_reads_it(
    bases: dict[str, Path], serve: Callable[..., OscarModel], tmp_path: Path, kind: str
) -> None:
    decoder, compressor, form = KINDS[kind]
    published = Cocom(tmp_path / "naver", (bases[decoder], bases[compressor]), form)
    reader = serve(published.path)
    question = "How long is the river that runs by the old mill, where bread is sold? " * 4
    assert len(published.reader(question, add_special_tokens=False)["input_ids"]) > 64
    passages = ["The mill stands.", "It is long."]
    compressed = await compress(reader, passages, question)
    wanted = published.compress(question, passages, 192)
    assert_close(np.stack([entry.memory for entry in compressed]), wanted)
    reference = published.answer(published.embed(question, wanted), 12)
    memory = [item.memory for item in compressed]
    tokens = await tokens_of(reader.generate(question, memory, max_tokens=12))
    assert [token.id for token in tokens] == reference
    cost = reader.count_cost(question, compressed, memory, passages, completion_tokens=12)
    assert cost.question_limit is not None
    assert 64 < cost.question_tokens <= cost.question_limit


async def test_a_pair_of_the_rewritten_code_answers_as_that_would(
    bases: dict[str, Path], serve: Callable[..., OscarModel], tmp_path: Path
) -> None:
    published = Pisco(tmp_path / "pisco", bases["wide"], bases["llama"])
    reader = serve(published.path)
    compressed = await compress(reader, PASSAGES)
    wanted = published.compress(QUESTION, PASSAGES)
    assert len({len(entry) for entry in wanted}) > 1, (
        "as many vectors as a passage's length asks for"
    )
    for item, vectors in zip(compressed, wanted, strict=True):
        assert_close(item.memory, vectors)
    reference = published.answer(published.embed(QUESTION, wanted), 24)
    memory = [item.memory for item in compressed]
    tokens = await tokens_of(reader.generate(QUESTION, memory, max_tokens=24))
    assert [token.id for token in tokens] == reference
    cost = reader.count_cost(QUESTION, compressed, memory, PASSAGES, completion_tokens=24)
    assert cost.context_vectors == sum(map(len, wanted))


async def test_memory_and_text_mix_are_counted_and_must_fit(
    bases: dict[str, Path], serve: Callable[..., OscarModel], tmp_path: Path
) -> None:
    published = Cocom(tmp_path / "naver", (bases["mistral"],) * 2, "trimmed")
    reader = serve(published.path)
    compressed = await compress(reader, [*PASSAGES, LONG])
    assert [item.windows > 1 for item in compressed] == [False, False, False, True]
    whole = published.reader(LONG, add_special_tokens=False)["input_ids"]
    assert compressed[3].tokens_in == pytest.approx(len(whole), abs=1)
    assert LONG[compressed[3].start : compressed[3].end] in LONG
    parts = compressed[3].parts
    assert len(parts) == compressed[3].windows
    assert (compressed[3].start, compressed[3].end) == (0, len(LONG)), (
        "nothing is scored: all windows count"
    )
    assert (parts[-1].end, parts[-1].tokens) == (compressed[3].end, compressed[3].tokens_in)
    (first,) = await compress(reader, [LONG[: parts[0].end]])
    assert_close(compressed[3].memory, torch.from_numpy(first.memory))
    assert first.tokens_in == pytest.approx(parts[0].tokens, abs=1)
    assert compressed[3].memories[0] is compressed[3].memory
    assert not np.allclose(compressed[3].memories[1], compressed[3].memory, atol=1e-3)

    memory = [item.memory for item in compressed]
    mixed: list[Floats | str] = [memory[0], PASSAGES[2], memory[3]]
    kept = [PASSAGES[0], PASSAGES[2], LONG[: parts[0].end]]
    cost = reader.count_cost(QUESTION, compressed, mixed, kept, completion_tokens=5)
    alone = reader.count_cost(
        QUESTION, compressed, [memory[0], memory[3]], kept, completion_tokens=5
    )
    assert cost.context_vectors == alone.context_vectors == 16
    assert cost.prompt_tokens > alone.prompt_tokens
    assert cost.flops_plain == alone.flops_plain
    whole_text = reader.count_cost(QUESTION, [], kept, kept, completion_tokens=5)
    assert whole_text.flops_used == whole_text.flops_plain == cost.flops_plain
    assert whole_text.context_vectors == 0

    texts = [
        await tokens_of(reader.generate(QUESTION, entry, max_tokens=6)) for entry in (mixed, kept)
    ]
    assert texts[0] != texts[1]
    spare = reader.free_positions_for(QUESTION, mixed, 6)
    assert spare == reader.free_positions_for(QUESTION, mixed, 7) + 1
    await tokens_of(reader.generate(QUESTION, mixed, max_tokens=6, stop=["\x00"]))
    with pytest.raises(ContextTooLong, match=rf"has {cost.prompt_tokens + 16 + 6 + spare}:"):
        await tokens_of(reader.generate(QUESTION, mixed, max_tokens=6 + spare + 1))


async def test_passages_side_by_side_get_what_each_gets_alone(
    bases: dict[str, Path], serve: Callable[..., OscarModel], tmp_path: Path
) -> None:
    reader = serve(Pisco(tmp_path / "pisco", bases["wide"], bases["llama"]).path)
    passages = [LONG[: 37 * number] for number in range(12)]
    together = await compress(reader, passages)
    for passage, beside in zip(passages, together, strict=True):
        (alone,) = await compress(reader, [passage])
        assert_close(beside.memory, torch.from_numpy(alone.memory))
        assert (beside.windows, beside.start, beside.end) == (alone.windows, alone.start, alone.end)


async def test_a_pair_without_a_rerank_head_scores_nothing_and_says_so(
    bases: dict[str, Path], serve: Callable[..., OscarModel], tmp_path: Path
) -> None:
    reader = serve(Cocom(tmp_path / "naver", (bases["mistral"],) * 2, "trimmed").path)
    with pytest.raises(ModelNotFound, match="no rerank head"):
        await reader.score(QUESTION, PASSAGES)
