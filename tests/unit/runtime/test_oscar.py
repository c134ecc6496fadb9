import asyncio
import copy
import gc
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_pair import VOCABULARY, padded, pair_files, text_of, tiny_pair, tiny_tokenizer

from condensery.errors import (
    CondenseryError,
    ContextTooLong,
    CorruptModel,
    InputError,
    ModelFault,
    Unavailable,
)
from condensery.metrics import Metrics
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_interface import cut_windows
from condensery.networks.oscar_packing import Pairing
from condensery.question import CompressedPassage, GeneratedToken, Sampling
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import CheckedTexts, prepare_for_inference
from condensery.runtime.workers import Workers
from condensery.values import PairTraits

QUESTION = "who is in the old mill?"
PASSAGES = ["the old mill", "", text_of(24, seed=1), "bread of stone, and new bread", text_of(9)]


def read_with(
    pair: OscarPair, directory: Path, workers: Workers, metrics: Metrics | None = None
) -> OscarModel:
    threads = ThreadPoolExecutor(1)
    files = pair_files(directory, pair)
    return OscarModel.of(pair, files, workers, name="tiny", threads=threads, metrics=metrics)


@pytest.fixture(scope="module")
def shared_workers() -> Iterator[Workers]:
    started = Workers(2)
    yield started
    started.close()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, shared_workers: Workers) -> OscarModel:
    return read_with(
        prepare_for_inference(tiny_pair()), tmp_path_factory.mktemp("pair"), shared_workers
    )


async def compressed_by(
    reader: OscarModel, question: str, passages: list[str]
) -> list[CompressedPassage]:
    """Compress passages none of which fails."""
    results = await reader.compress(question, passages)
    assert not [entry for entry in results if isinstance(entry, CondenseryError)]
    return [item for item in results if isinstance(item, CompressedPassage)]


async def join(stream: AsyncIterator[GeneratedToken]) -> str:
    return "".join([token.text async for token in stream])


async def test_compress_keeps_order_and_count(reader: OscarModel) -> None:
    results = await compressed_by(reader, QUESTION, PASSAGES)
    assert len(results) == len(PASSAGES)
    count = tiny_tokenizer()
    for passage, compressed in zip(PASSAGES, results, strict=True):
        (alone,) = await compressed_by(reader, QUESTION, [passage])
        np.testing.assert_allclose(compressed.memory, alone.memory, atol=1e-5)
        assert compressed.relevance == pytest.approx(alone.relevance, abs=1e-4)
        assert compressed.memory.shape == (3, 32)
        assert compressed.memory.dtype == np.float32
        assert compressed.windows == 1
        assert compressed.tokens_in == len(count.encode(passage, add_special_tokens=False).ids)
        assert passage[compressed.start : compressed.end] == passage.strip()
    assert len({round(compressed.relevance, 3) for compressed in results}) == len(PASSAGES)


async def test_no_passages_compress_to_nothing(reader: OscarModel) -> None:
    assert await reader.compress(QUESTION, []) == []


LENGTHS = st.lists(st.integers(0, 70), max_size=9)


@settings(max_examples=25, deadline=None)
@given(lengths=LENGTHS, beside=LENGTHS)
async def test_passages_of_any_number_and_length_get_in_one_batch_what_each_gets_alone(
    reader: OscarModel, lengths: list[int], beside: list[int]
) -> None:
    passages, others = ([text_of(n, seed=n) for n in each] for each in (lengths, beside))
    together, _ = await asyncio.gather(
        compressed_by(reader, QUESTION, passages), compressed_by(reader, "where?", others)
    )
    assert len(together) == len(passages)
    for passage, batched in zip(passages, together, strict=True):
        (alone,) = await compressed_by(reader, QUESTION, [passage])
        np.testing.assert_allclose(batched.memory, alone.memory, atol=2e-5)
        assert batched.relevance == pytest.approx(alone.relevance, abs=2e-4)
        assert (batched.start, batched.end, batched.tokens_in) == (
            alone.start,
            alone.end,
            alone.tokens_in,
        )


async def test_memory_and_relevance_are_of_one_forward_pass(tmp_path: Path) -> None:
    workers, metrics = Workers(1), Metrics()
    try:
        reader = read_with(prepare_for_inference(tiny_pair()), tmp_path, workers, metrics)
        compressed = await compressed_by(reader, QUESTION, PASSAGES)
        assert all(item.relevance is not None and len(item.memory) == 3 for item in compressed)
        sample = metrics.registry.get_sample_value
        assert sample("condensery_forward_passes_total", {"model": "tiny"}) == 1
        tokens = 7 + sum(entry.tokens_in for entry in compressed)
        assert sample("condensery_input_tokens_total", {"model": "tiny"}) == tokens
    finally:
        workers.close()


async def test_five_hundred_passages_are_compressed_each_in_its_place(reader: OscarModel) -> None:
    passages = [text_of(number % 30, seed=number) for number in range(500)]
    compressed = await compressed_by(reader, QUESTION, passages)
    assert [item.tokens_in for item in compressed] == [number % 30 for number in range(500)]


@pytest.mark.parametrize("tokens", [25, 60, 100])
async def test_a_long_passage_becomes_windows_and_the_best_counts(
    reader: OscarModel, tokens: int
) -> None:
    passage = text_of(tokens, seed=tokens)
    offsets = tiny_tokenizer().encode(passage, add_special_tokens=False).offsets
    spans = cut_windows(tokens, 24)
    texts = [passage[offsets[a][0] : offsets[b - 1][1]] for a, b in spans]
    alone = await compressed_by(reader, QUESTION, texts)
    best = max(range(len(alone)), key=lambda i: alone[i].relevance)

    _, long, _ = await compressed_by(reader, QUESTION, ["the mill", passage, "the river"])
    assert long.windows == len(spans) > 1
    assert long.tokens_in == tokens
    assert passage[long.start : long.end] == texts[best]
    assert long.relevance == pytest.approx(alone[best].relevance, abs=1e-4)
    np.testing.assert_allclose(long.memory, alone[best].memory, atol=1e-5)


@pytest.mark.parametrize(
    "shape", [{}, {"walk": True}, {"walk": True, "sharp": True}, {"bounds": True, "sharp": True}]
)
async def test_a_pair_says_which_characters_of_a_passage_its_memory_points_at(
    tmp_path: Path, shared_workers: Workers, shape: dict[str, bool]
) -> None:
    tokenizer, network = tiny_tokenizer(), tiny_pair(seed=4, **shape)
    question = tokenizer.encode(QUESTION, add_special_tokens=False).ids
    wanted: list[tuple[int, int] | None] = []
    for passage in PASSAGES:
        encoding = tokenizer.encode(passage, add_special_tokens=False)
        whole = padded([Pairing(question, encoding.ids)], network.shape)
        with torch.no_grad():
            pointer = network.compressor(whole, network.generator.words).pointer
        assert pointer is not None
        first, *others = pointer[0].argmax(-1).tolist()
        last = first
        for place in others:  # along the passage, until it jumps or comes to the end
            if place != last + 1 or place == len(encoding.ids):
                break
            last = place
        if shape.get("bounds") and others[-1] < len(encoding.ids):
            last = others[-1]  # of an answer of more tokens than there are memory tokens
        inside = first < len(encoding.ids)
        offsets = encoding.offsets
        wanted.append((offsets[first][0], offsets[last][1]) if inside else None)
    reader = read_with(prepare_for_inference(network), tmp_path, shared_workers)
    results = await compressed_by(reader, QUESTION, PASSAGES)
    assert [compressed.pointer for compressed in results] == wanted
    assert any(wanted)


async def test_what_a_long_passage_points_at_is_in_its_best_window(
    tmp_path: Path, shared_workers: Workers
) -> None:
    pair = prepare_for_inference(tiny_pair(seed=4, walk=True, sharp=True))
    reader = read_with(pair, tmp_path, shared_workers)
    passages = [text_of(90, seed=seed) for seed in range(6)]
    for compressed in await compressed_by(reader, QUESTION, passages):
        assert compressed.windows > 1
        if compressed.pointer is not None:
            start, end = compressed.pointer
            assert compressed.start <= start < end <= compressed.end
        kept = compressed.coarsened(1)
        assert kept.pointer == compressed.pointer, "held contexts lose it"


async def test_a_pair_without_a_pointer_points_at_nothing(
    tmp_path: Path, shared_workers: Workers
) -> None:
    pair = prepare_for_inference(tiny_pair(copy=False))
    reader = read_with(pair, tmp_path, shared_workers)
    (compressed,) = await compressed_by(reader, QUESTION, PASSAGES[:1])
    assert compressed.pointer is None


async def test_score_is_the_relevance_that_compress_gives(reader: OscarModel) -> None:
    passages = [*PASSAGES, text_of(70)]
    scored = await reader.score(QUESTION, passages)
    compressed = await compressed_by(reader, QUESTION, passages)
    np.testing.assert_allclose(scored.scores, [p.relevance for p in compressed], atol=1e-4)
    assert scored.model == "tiny"
    assert scored.tokens == 7 + sum(p.tokens_in for p in compressed)


async def test_a_question_over_the_limit_is_cut(reader: OscarModel) -> None:
    question = text_of(40)
    head = " ".join(question.split()[:27])
    whole, cut = [await reader.score(q, PASSAGES) for q in (question, head)]
    np.testing.assert_allclose(whole.scores, cut.scores, atol=1e-4)
    assert whole.tokens == cut.tokens
    assert (whole.query_truncated, cut.query_truncated) == (True, False)
    memory = [p.memory for p in await compressed_by(reader, head, PASSAGES)]
    same = [await join(reader.generate(q, memory, max_tokens=6)) for q in (question, head)]
    assert same[0] != same[1], "the generator reads all of it"


async def test_a_question_over_the_limit_is_refused_where_nothing_may_be_cut(
    reader: OscarModel,
) -> None:
    with pytest.raises(InputError, match=r"40 tokens, over the model's 27") as caught:
        await reader.score(text_of(40), PASSAGES, truncate=False)
    assert caught.value.field == "query"
    assert caught.value.value == 40
    await reader.score(text_of(12), [text_of(200)], truncate=False)  # passages become windows
    with pytest.raises(InputError, match="cuts a query on the right only") as caught:
        await reader.score(text_of(40), PASSAGES, side="left")
    assert caught.value.field == "truncation_direction"
    await reader.score(text_of(12), [text_of(200)], side="left")  # nothing is cut


async def test_a_passage_at_fault_is_named_as_the_door_calls_it(reader: OscarModel) -> None:
    with pytest.raises(InputError, match=r"^passages\[1\] holds a lone surrogate") as caught:
        await reader.score(QUESTION, ["fine", "\ud800"], field="passages")
    assert caught.value.field == "passages[1]"


async def test_a_context_too_long_for_the_generator_is_refused_with_the_remedy(
    reader: OscarModel,
) -> None:
    vectors = np.zeros((3, 32), np.float32)
    # 96 positions: 4 a passage, and 9 for the question and its two special tokens.
    for passages, room in ((0, 87), (10, 47), (21, 3)):
        memory = [vectors] * passages
        assert reader.free_positions_for(QUESTION, memory, room) == 0
        await join(reader.generate(QUESTION, memory, max_tokens=room))
        assert reader.free_positions_for(QUESTION, memory, room + 1) == -1
        with pytest.raises(ContextTooLong, match=r"has 96.*max_tokens") as caught:
            await join(reader.generate(QUESTION, memory, max_tokens=room + 1))
        assert caught.value.field == ("rerank.top_n" if passages else "max_tokens")
        assert caught.value.field in caught.value.message
    with pytest.raises(ContextTooLong, match=r"100 positions"):
        await join(reader.generate(QUESTION, [text_of(90)], max_tokens=4))


async def test_vectors_that_may_not_be_written_to_are_read_all_the_same(reader: OscarModel) -> None:
    memory = (await compressed_by(reader, QUESTION, PASSAGES[:1]))[0].memory
    held = memory.copy()
    held.flags.writeable = False
    answers = [await join(reader.generate(QUESTION, [m], max_tokens=6)) for m in (memory, held)]
    assert answers[0] == answers[1]


async def test_an_answer_needs_no_memory(reader: OscarModel) -> None:
    tokens = [token async for token in reader.generate(QUESTION, [], max_tokens=5)]
    assert tokens[-1].finish in {"stop", "length"}


async def test_the_answer_depends_on_the_memory_and_on_its_order(reader: OscarModel) -> None:
    memory = [p.memory for p in await compressed_by(reader, QUESTION, PASSAGES)]
    answers = [
        await join(reader.generate(QUESTION, context, max_tokens=12))
        for context in (memory, memory[::-1], [], memory[:1])
    ]
    assert len(set(answers)) > 2
    plain = await join(reader.generate(QUESTION, PASSAGES[:1], max_tokens=12))
    assert plain != answers[3]


async def test_memory_and_text_stand_side_by_side(reader: OscarModel) -> None:
    """A mixed prompt is its parts in order, a separator between: counted, and told apart."""
    memory = (await compressed_by(reader, QUESTION, PASSAGES[:1]))[0].memory
    contexts = [[memory, "new bread"], ["new bread", memory], [memory, memory], ["new bread"]]
    answers = [
        await join(reader.generate(QUESTION, context, max_tokens=12)) for context in contexts
    ]
    assert len(set(answers)) > 2
    spare = [reader.free_positions_for(QUESTION, context, 12) for context in contexts]
    assert spare == [96 - 12 - 9 - used for used in (4 + 3, 3 + 4, 4 + 4, 3)]


async def test_log_probabilities_name_the_tokens_of_the_answer(reader: OscarModel) -> None:
    wish = Sampling(logprobs=2)
    tokens = [t async for t in reader.generate(QUESTION, [], max_tokens=6, sampling=wish)]
    vocabulary = tiny_tokenizer()
    for token in tokens:
        if token.finish == "stop":
            assert token.logprob is None, "what ends an answer is no part of it"
            continue
        assert token.logprob is not None
        assert token.logprob.text == vocabulary.id_to_token(token.id)
        assert tuple(token.logprob.top[0]) == (token.logprob.text, token.logprob.logprob), "greedy"
        assert len(token.logprob.top) == 2
    plain = [t async for t in reader.generate(QUESTION, [], max_tokens=6)]
    assert {t.logprob for t in plain} == {None}
    assert [t.text for t in plain] == [t.text for t in tokens]


async def test_a_stop_string_ends_the_answer(reader: OscarModel) -> None:
    whole = await join(reader.generate(QUESTION, [], max_tokens=20))
    stop = whole[len(whole) // 2 :][:3]
    answer = await join(reader.generate(QUESTION, [], max_tokens=20, stop=[stop]))
    assert answer == whole[: whole.index(stop)]
    with pytest.raises(InputError, match=r"stop\[0\]"):
        await join(reader.generate(QUESTION, [], max_tokens=20, stop=[""]))


def test_traits_are_the_shape_s_and_what_suits_where_the_manifest_says_nothing(
    reader: OscarModel,
) -> None:
    assert reader.traits == PairTraits(vectors=(3,), rates=(8,), scores=True, top_n=5)


async def test_a_pair_of_several_rates_gives_all_vectors_and_reads_the_first_few(
    tmp_path: Path, workers: Workers
) -> None:
    reader = read_with(prepare_for_inference(tiny_pair(fewer=(1,))), tmp_path, workers)
    assert (reader.traits.vectors, reader.traits.rates) == ((3, 1), (8, 24))
    (compressed,) = await compressed_by(reader, QUESTION, [text_of(9)])
    assert compressed.memory.shape == (3, 32)
    fine = await join(reader.generate(QUESTION, [compressed.memory], max_tokens=12))
    coarse = await join(reader.generate(QUESTION, [compressed.memory[:1]], max_tokens=12))
    assert fine != coarse
    spare = [
        reader.free_positions_for(QUESTION, [compressed.memory[:count]], 12) for count in (1, 3)
    ]
    assert spare[0] - spare[1] == 2


async def test_what_is_expected_grows_with_the_work_and_is_unknown_before_any(
    tmp_path: Path, workers: Workers
) -> None:
    fresh = read_with(prepare_for_inference(tiny_pair()), tmp_path, workers)
    assert fresh.expected_ms(100, 8, 0, 1) == 0
    await fresh.warm_up()
    least = fresh.expected_ms(0, 8, 0, 1)
    assert least > 0
    for more in ((100, 8, 0, 1), (0, 80, 0, 1), (0, 8, 200, 1), (0, 8, 0, 10)):
        assert fresh.expected_ms(*more) > least
    assert fresh.expected_ms(200, 8, 0, 1) - least == pytest.approx(
        2 * (fresh.expected_ms(100, 8, 0, 1) - least)
    )


async def test_costs_agree_with_each_other_and_with_the_counts(reader: OscarModel) -> None:
    long = text_of(60)
    passages = [*PASSAGES[:3], long]
    compressed = await compressed_by(reader, QUESTION, passages)
    kept = [passages[0], long]
    memory = [compressed[0].memory, compressed[3].memory]
    cost = reader.count_cost(QUESTION, compressed, memory, kept, completion_tokens=4)
    assert cost.prompt_tokens == 7 + 2
    assert cost.context_vectors == 2 * 3
    assert (cost.question_tokens, cost.question_limit) == (7, 27)

    plain = reader.count_cost(QUESTION, [], kept, kept, completion_tokens=4)
    assert plain.flops_used == plain.flops_plain == cost.flops_plain
    assert plain.context_vectors == 0
    assert plain.prompt_tokens == 7 + 2 + 63
    # The generator alone, from the same dimensions: 64-wide products of the layers and the head.
    layer = 4 * 32 * 32 + 3 * 32 * 48

    def generator_flops(positions: int) -> int:
        read = positions + 3  # the last token is not read again
        head = 4 * 2 * 32 * (32 + reader_vocabulary())
        scores = 4 * 32 * read * (read + 1) // 2
        unread = 2 * 3 * 32 * 48 * (positions - 1)  # in the last MLP, all but the prompt's end
        return 2 * (2 * layer * read + scores) - unread + head

    assert plain.flops_plain == generator_flops(plain.prompt_tokens + 2)  # two separators

    mixed = reader.count_cost(QUESTION, [], [memory[0], long], kept, completion_tokens=4)
    assert (mixed.context_vectors, mixed.prompt_tokens) == (3, 7 + 2 + 60)
    assert mixed.flops_used == generator_flops(3 + 60 + 7 + 2 + 2)
    assert mixed.flops_plain == cost.flops_plain

    # What the compressor adds is a sum over the windows that it read.
    def flops(read: list[CompressedPassage]) -> int:
        return reader.count_cost(QUESTION, read, [], [], completion_tokens=1).flops_used

    added = [flops([item]) - flops([]) for item in compressed]
    assert flops(compressed) - flops([]) == sum(added)
    full = await compressed_by(reader, QUESTION, [text_of(24)])
    assert compressed[3].windows == 3
    assert added[3] == 3 * (flops(full) - flops([]))


def reader_vocabulary() -> int:
    return tiny_tokenizer().get_vocab_size()


async def test_the_cost_reports_a_question_over_the_limit(reader: OscarModel) -> None:
    cost = reader.count_cost(text_of(40), [], [], [], completion_tokens=1)
    assert (cost.question_tokens, cost.question_limit, cost.prompt_tokens) == (40, 27, 42)


async def test_text_over_the_character_limit_is_refused_naming_its_field(
    reader: OscarModel,
) -> None:
    limit = (12 + 24 + 3) * 250
    await compressed_by(reader, QUESTION, ["a " * (limit // 2)])
    with pytest.raises(InputError, match=rf"{limit + 1} characters, over the limit of {limit}"):
        await compressed_by(reader, QUESTION, ["mill", "a" * (limit + 1)])
    with pytest.raises(InputError, match=r"documents\[1\]"):
        await compressed_by(reader, QUESTION, ["mill", "\ud800"])
    with pytest.raises(InputError, match="query"):
        await join(reader.generate("\ud800", [], max_tokens=1))


@pytest.mark.parametrize(
    ("part", "spoilt"), [("memory", torch.nan), ("score", torch.nan), ("score", torch.inf)]
)
async def test_a_network_that_gives_nan_is_a_fault_not_a_memory(
    part: str, spoilt: float, tmp_path: Path, workers: Workers
) -> None:
    pair = tiny_pair()
    with torch.no_grad():
        if part == "memory":
            pair.compressor.mapping[2].bias[5] = spoilt
        else:
            pair.compressor.rerank.bias[0] = spoilt
    broken = read_with(prepare_for_inference(pair), tmp_path, workers)
    for fault in await broken.compress(QUESTION, PASSAGES):
        assert isinstance(fault, ModelFault)
        assert "tiny: a memory vector" in fault.message
    with pytest.raises(ModelFault, match="tiny: a memory vector"):
        await broken.score(QUESTION, PASSAGES)
    with pytest.raises(ModelFault, match="tiny: a memory vector"):
        await broken.warm_up()


async def test_a_memory_that_is_kept_keeps_no_other_passages_memory_alive(
    tmp_path: Path, workers: Workers
) -> None:
    reader = read_with(prepare_for_inference(tiny_pair()), tmp_path, workers)
    compressed = await reader.compress(QUESTION, PASSAGES)
    for item in compressed:
        assert isinstance(item, CompressedPassage)
        tensor = item.memory.base  # whose memory numpy shows
        assert isinstance(tensor, torch.Tensor)
        assert tensor.untyped_storage().nbytes() == item.memory.nbytes


async def test_a_passage_one_of_whose_windows_fails_fails_whole_and_its_neighbours_do_not(
    tmp_path: Path, workers: Workers
) -> None:
    pair = prepare_for_inference(tiny_pair())
    words = pair.generator.words
    reader = read_with(pair, tmp_path, workers)
    passages = ["the old mill", text_of(100).replace("bread", "stone"), "", "new stone"]
    wanted = await compressed_by(reader, QUESTION, passages)
    with torch.no_grad():  # whoever reads this word gets NaN
        words[VOCABULARY.index("bread")] = torch.nan
    bad = passages[1].split()
    bad[50] = "bread"
    results = await reader.compress(QUESTION, [passages[0], " ".join(bad), *passages[2:], "bread"])
    assert [isinstance(item, ModelFault) for item in results] == [False, True, False, False, True]
    for place in (0, 2, 3):
        result = results[place]
        assert isinstance(result, CompressedPassage)
        np.testing.assert_allclose(result.memory, wanted[place].memory, atol=1e-5)


async def test_readers_work_side_by_side_and_a_closed_one_refuses(
    reader: OscarModel, tmp_path: Path, shared_workers: Workers
) -> None:
    other = read_with(prepare_for_inference(tiny_pair(seed=5)), tmp_path, shared_workers)
    await other.warm_up()
    alone = (
        await compressed_by(reader, QUESTION, PASSAGES),
        await compressed_by(other, QUESTION, PASSAGES),
    )
    both = await asyncio.gather(
        compressed_by(reader, QUESTION, PASSAGES), compressed_by(other, QUESTION, PASSAGES)
    )
    for a, b in zip(alone, both, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x.memory, y.memory, atol=1e-5)
    assert np.abs(alone[0][0].memory - alone[1][0].memory).max() > 0.1
    other.close()
    with pytest.raises(Unavailable, match="tiny"):
        await other.compress(QUESTION, PASSAGES)
    await compressed_by(reader, QUESTION, PASSAGES)


async def test_bf16_stays_close_to_fp32(
    reader: OscarModel, tmp_path: Path, shared_workers: Workers
) -> None:
    half = read_with(prepare_for_inference(tiny_pair().bfloat16()), tmp_path, shared_workers)
    assert half.info.dtype == "bfloat16"
    wanted, rounded = [await compressed_by(each, QUESTION, PASSAGES) for each in (reader, half)]
    for a, b in zip(wanted, rounded, strict=True):
        x, y = a.memory.ravel(), b.memory.ravel()
        assert b.memory.dtype == np.float32
        assert x @ y / np.linalg.norm(x) / np.linalg.norm(y) > 0.999


def test_a_tokenizer_without_the_special_tokens_is_refused(
    tmp_path: Path, shared_workers: Workers
) -> None:
    pair = prepare_for_inference(tiny_pair())
    directory = pair_files(tmp_path, pair)
    text = (directory / "tokenizer.json").read_text()
    (directory / "tokenizer.json").write_text(text.replace("[SEP]", "[END]"))
    with ThreadPoolExecutor(1) as threads, pytest.raises(CorruptModel, match=r"\[SEP\]"):
        OscarModel.of(pair, directory, shared_workers, name="tiny", threads=threads)


def test_a_pair_that_breaks_as_it_is_put_together_leaves_nothing_to_the_workers(
    tmp_path: Path, shared_workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(texts: CheckedTexts, question: str, context: Sequence[object]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(CheckedTexts, "make_prompt", fail)
    pair = prepare_for_inference(tiny_pair())
    halves = [weakref.ref(half) for half in (pair.compressor, pair.generator)]
    with pytest.raises(ZeroDivisionError):
        read_with(pair, tmp_path, shared_workers)
    del pair
    gc.collect()
    assert [half() for half in halves] == [None, None]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_a_gpu_gives_what_the_cpu_gives(
    reader: OscarModel, tmp_path: Path, dtype: torch.dtype
) -> None:
    device = torch.device("cuda")
    workers = Workers(1, device)
    pair = copy.deepcopy(tiny_pair()).to(device=device, dtype=dtype)
    on_gpu = read_with(prepare_for_inference(pair), tmp_path, workers)
    passages = [*PASSAGES, text_of(60)]
    try:
        wanted = await compressed_by(reader, QUESTION, passages)
        from_gpu = await compressed_by(on_gpu, QUESTION, passages)
        for a, b in zip(wanted, from_gpu, strict=True):
            if dtype == torch.float32:
                np.testing.assert_allclose(a.memory, b.memory, atol=2e-3)
                assert b.relevance == pytest.approx(a.relevance, abs=2e-3)
            else:
                x, y = a.memory.ravel(), b.memory.ravel()
                assert x @ y / np.linalg.norm(x) / np.linalg.norm(y) > 0.995
        if dtype == torch.float32:
            memory = [p.memory for p in wanted]
            for context in ([], memory[:1], memory):
                answers = [
                    await join(each.generate(QUESTION, context, max_tokens=8))
                    for each in (reader, on_gpu)
                ]
                assert answers[0] == answers[1]
        else:
            await on_gpu.warm_up()
    finally:
        on_gpu.close()
        workers.close()
