import asyncio
import copy
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_pair import pair_files, text_of, tiny_pair, tiny_tokenizer

from condensery.errors import CorruptModel, InputError, ModelFault, Unavailable
from condensery.networks.oscar import OscarPair
from condensery.networks.windows import windows
from condensery.runtime.generator import Token
from condensery.runtime.pair import make_ready
from condensery.runtime.reader import Reader
from condensery.runtime.workers import Workers

QUESTION = "who is in the old mill?"
PASSAGES = ["the old mill", "", text_of(24, seed=1), "bread of stone, and new bread", text_of(9)]


def read_with(pair: OscarPair, directory: Path, workers: Workers) -> Reader:
    threads = ThreadPoolExecutor(1)
    return Reader.of(pair, pair_files(directory, pair), workers, name="tiny", threads=threads)


@pytest.fixture(scope="module")
def shared_workers() -> Iterator[Workers]:
    started = Workers(2)
    yield started
    started.close()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, shared_workers: Workers) -> Reader:
    return read_with(make_ready(tiny_pair()), tmp_path_factory.mktemp("pair"), shared_workers)


async def join(stream: AsyncIterator[Token]) -> str:
    return "".join([token.text async for token in stream])


async def test_compress_keeps_order_and_count(reader: Reader) -> None:
    found = await reader.compress(QUESTION, PASSAGES)
    assert len(found) == len(PASSAGES)
    count = tiny_tokenizer()
    for passage, compressed in zip(PASSAGES, found, strict=True):
        (alone,) = await reader.compress(QUESTION, [passage])
        np.testing.assert_allclose(compressed.memory, alone.memory, atol=1e-5)
        assert compressed.relevance == pytest.approx(alone.relevance, abs=1e-4)
        assert compressed.memory.shape == (3, 32)
        assert compressed.memory.dtype == np.float32
        assert compressed.windows == 1
        assert compressed.tokens_in == len(count.encode(passage, add_special_tokens=False).ids)
        assert passage[compressed.start : compressed.end] == passage.strip()
    assert len({round(compressed.relevance, 3) for compressed in found}) == len(PASSAGES)


async def test_no_passages_compress_to_nothing(reader: Reader) -> None:
    assert await reader.compress(QUESTION, []) == []


@pytest.mark.parametrize("tokens", [25, 60, 100])
async def test_a_long_passage_becomes_windows_and_the_best_counts(
    reader: Reader, tokens: int
) -> None:
    passage = text_of(tokens, seed=tokens)
    offsets = tiny_tokenizer().encode(passage, add_special_tokens=False).offsets
    spans = windows(tokens, 24)
    texts = [passage[offsets[a][0] : offsets[b - 1][1]] for a, b in spans]
    alone = await reader.compress(QUESTION, texts)
    best = max(range(len(alone)), key=lambda i: alone[i].relevance)

    _, found, _ = await reader.compress(QUESTION, ["the mill", passage, "the river"])
    assert found.windows == len(spans) > 1
    assert found.tokens_in == tokens
    assert passage[found.start : found.end] == texts[best]
    assert found.relevance == pytest.approx(alone[best].relevance, abs=1e-4)
    np.testing.assert_allclose(found.memory, alone[best].memory, atol=1e-5)


async def test_score_is_the_relevance_that_compress_gives(reader: Reader) -> None:
    passages = [*PASSAGES, text_of(70)]
    scored = await reader.score(QUESTION, passages)
    found = await reader.compress(QUESTION, passages)
    np.testing.assert_allclose(scored.scores, [p.relevance for p in found], atol=1e-4)
    assert scored.model == "tiny"
    assert scored.tokens == 7 + sum(p.tokens_in for p in found)


async def test_a_question_over_the_limit_is_cut(reader: Reader) -> None:
    question = text_of(40)
    head = " ".join(question.split()[:12])
    whole, cut = [await reader.score(q, PASSAGES) for q in (question, head)]
    np.testing.assert_allclose(whole.scores, cut.scores, atol=1e-4)
    assert whole.tokens == cut.tokens
    assert (whole.query_truncated, cut.query_truncated) == (True, False)
    memory = [p.memory for p in await reader.compress(head, PASSAGES)]
    same = [await join(reader.generate(q, memory, max_tokens=6)) for q in (question, head)]
    assert same[0] == same[1]


async def test_a_question_over_the_limit_is_refused_where_nothing_may_be_cut(
    reader: Reader,
) -> None:
    with pytest.raises(InputError, match=r"40 tokens, over the model's 12") as caught:
        await reader.score(text_of(40), PASSAGES, truncate=False)
    assert caught.value.field == "query"
    assert caught.value.value == 40
    await reader.score(text_of(12), [text_of(200)], truncate=False)  # passages become windows


async def test_a_passage_at_fault_is_named_as_the_door_calls_it(reader: Reader) -> None:
    with pytest.raises(InputError, match=r"^passages\[1\] holds a lone surrogate") as caught:
        await reader.score(QUESTION, ["fine", "\ud800"], field="passages")
    assert caught.value.field == "passages[1]"


async def test_a_context_too_long_for_the_generator_is_refused_with_the_remedy(
    reader: Reader,
) -> None:
    vectors = np.zeros((3, 32), np.float32)
    # 96 positions: 4 a passage, and 9 for the question and its two special tokens.
    for passages, room in ((0, 87), (10, 47), (21, 3)):
        memory = [vectors] * passages
        await join(reader.generate(QUESTION, memory, max_tokens=room))
        with pytest.raises(InputError, match=r"rerank\.top_n") as caught:
            await join(reader.generate(QUESTION, memory, max_tokens=room + 1))
        assert caught.value.field == "rerank.top_n"
    with pytest.raises(InputError, match=r"96"):
        await join(reader.generate_plain(QUESTION, [text_of(90)], max_tokens=4))


async def test_an_answer_needs_no_memory(reader: Reader) -> None:
    tokens = [token async for token in reader.generate(QUESTION, [], max_tokens=5)]
    assert tokens[-1].finish in {"stop", "length"}


async def test_the_answer_depends_on_the_memory_and_on_its_order(reader: Reader) -> None:
    memory = [p.memory for p in await reader.compress(QUESTION, PASSAGES)]
    answers = [
        await join(reader.generate(QUESTION, given, max_tokens=12))
        for given in (memory, memory[::-1], [], memory[:1])
    ]
    assert len(set(answers)) > 2
    plain = await join(reader.generate_plain(QUESTION, PASSAGES[:1], max_tokens=12))
    assert plain != answers[3]


async def test_costs_agree_with_each_other_and_with_the_counts(reader: Reader) -> None:
    long = text_of(60)
    passages = [*PASSAGES[:3], long]
    found = await reader.compress(QUESTION, passages)
    kept = [passages[0], long]
    cost = reader.cost(QUESTION, found, kept, plain=False, completion_tokens=4)
    assert cost.prompt_tokens == 7 + 2
    assert cost.context_vectors == 2 * 3
    assert cost.context_tokens == 3 + 60
    assert (cost.question_tokens, cost.question_limit) == (7, 12)

    plain = reader.cost(QUESTION, [], kept, plain=True, completion_tokens=4)
    assert plain.flops_used == plain.flops_plain == cost.flops_plain
    assert plain.context_vectors == 0
    assert plain.prompt_tokens == 7 + 2 + 63
    # The generator alone, from the same dimensions: 64-wide products of the layers and the head.
    layer = 4 * 32 * 32 + 3 * 32 * 48
    read = plain.prompt_tokens + 2 + 3  # two separators; the last token is not read again
    head = 4 * 2 * 32 * (32 + reader_vocabulary())
    scores = 4 * 32 * read * (read + 1) // 2
    assert plain.flops_plain == 2 * (2 * layer * read + scores) + head

    # What the compressor adds is a sum over the windows that it read.
    parts = [reader.cost(QUESTION, [p], [], plain=False, completion_tokens=1) for p in found]
    none = reader.cost(QUESTION, [], [], plain=False, completion_tokens=1)
    whole = reader.cost(QUESTION, found, [], plain=False, completion_tokens=1)
    added = [part.flops_used - none.flops_used for part in parts]
    assert whole.flops_used - none.flops_used == sum(added)
    full = reader.cost(
        QUESTION,
        await reader.compress(QUESTION, [text_of(24)]),
        [],
        plain=False,
        completion_tokens=1,
    )
    assert found[3].windows == 3
    assert added[3] == 3 * (full.flops_used - none.flops_used)


def reader_vocabulary() -> int:
    return tiny_tokenizer().get_vocab_size()


async def test_a_question_over_the_limit_is_told_by_the_cost(reader: Reader) -> None:
    cost = reader.cost(text_of(40), [], [], plain=False, completion_tokens=1)
    assert (cost.question_tokens, cost.question_limit, cost.prompt_tokens) == (40, 12, 14)


async def test_text_over_the_character_limit_is_refused_naming_its_field(reader: Reader) -> None:
    limit = (12 + 24 + 3) * 250
    await reader.compress(QUESTION, ["a " * (limit // 2)])
    with pytest.raises(InputError, match=rf"{limit + 1} characters, over the limit of {limit}"):
        await reader.compress(QUESTION, ["mill", "a" * (limit + 1)])
    with pytest.raises(InputError, match=r"documents\[1\]"):
        await reader.compress(QUESTION, ["mill", "\ud800"])
    with pytest.raises(InputError, match="query"):
        await join(reader.generate("\ud800", [], max_tokens=1))


async def test_a_network_that_gives_nan_is_a_fault_not_a_memory(
    tmp_path: Path, workers: Workers
) -> None:
    pair = tiny_pair()
    with torch.no_grad():
        pair.compressor.mapping[2].bias[5] = torch.nan
    broken = read_with(make_ready(pair), tmp_path, workers)
    with pytest.raises(ModelFault, match="tiny: a memory vector"):
        await broken.compress(QUESTION, PASSAGES)


async def test_readers_work_side_by_side_and_a_closed_one_refuses(
    reader: Reader, tmp_path: Path, shared_workers: Workers
) -> None:
    other = read_with(make_ready(tiny_pair(seed=5)), tmp_path, shared_workers)
    await other.warm_up()
    alone = await reader.compress(QUESTION, PASSAGES), await other.compress(QUESTION, PASSAGES)
    both = await asyncio.gather(
        reader.compress(QUESTION, PASSAGES), other.compress(QUESTION, PASSAGES)
    )
    for a, b in zip(alone, both, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x.memory, y.memory, atol=1e-5)
    assert np.abs(alone[0][0].memory - alone[1][0].memory).max() > 0.1
    other.close()
    with pytest.raises(Unavailable, match="tiny"):
        await other.compress(QUESTION, PASSAGES)
    await reader.compress(QUESTION, PASSAGES)


async def test_bf16_stays_close_to_fp32(
    reader: Reader, tmp_path: Path, shared_workers: Workers
) -> None:
    half = read_with(make_ready(tiny_pair().bfloat16()), tmp_path, shared_workers)
    assert half.info.dtype == "bfloat16"
    wanted, found = [await each.compress(QUESTION, PASSAGES) for each in (reader, half)]
    for a, b in zip(wanted, found, strict=True):
        x, y = a.memory.ravel(), b.memory.ravel()
        assert b.memory.dtype == np.float32
        assert x @ y / np.linalg.norm(x) / np.linalg.norm(y) > 0.999


def test_a_tokenizer_without_the_special_tokens_is_refused(
    tmp_path: Path, shared_workers: Workers
) -> None:
    pair = make_ready(tiny_pair())
    directory = pair_files(tmp_path, pair)
    text = (directory / "tokenizer.json").read_text()
    (directory / "tokenizer.json").write_text(text.replace("[SEP]", "[END]"))
    with ThreadPoolExecutor(1) as threads, pytest.raises(CorruptModel, match=r"\[SEP\]"):
        Reader.of(pair, directory, shared_workers, name="tiny", threads=threads)


def test_reading_needs_neither_the_doors_nor_the_store() -> None:
    code = (
        "import sys; import condensery.runtime.reader;"
        "print(*({'fastapi','faiss','pydantic','prometheus_client','grpc'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_a_gpu_gives_what_the_cpu_gives(
    reader: Reader, tmp_path: Path, dtype: torch.dtype
) -> None:
    device = torch.device("cuda")
    workers = Workers(1, device)
    pair = copy.deepcopy(tiny_pair()).to(device=device, dtype=dtype)
    on_gpu = read_with(make_ready(pair), tmp_path, workers)
    passages = [*PASSAGES, text_of(60)]
    try:
        wanted = await reader.compress(QUESTION, passages)
        found = await on_gpu.compress(QUESTION, passages)
        for a, b in zip(wanted, found, strict=True):
            if dtype == torch.float32:
                np.testing.assert_allclose(a.memory, b.memory, atol=2e-3)
                assert b.relevance == pytest.approx(a.relevance, abs=2e-3)
            else:
                x, y = a.memory.ravel(), b.memory.ravel()
                assert x @ y / np.linalg.norm(x) / np.linalg.norm(y) > 0.995
        if dtype == torch.float32:
            memory = [p.memory for p in wanted]
            for given in ([], memory[:1], memory):
                answers = [
                    await join(each.generate(QUESTION, given, max_tokens=8))
                    for each in (reader, on_gpu)
                ]
                assert answers[0] == answers[1]
        else:
            await on_gpu.warm_up()
    finally:
        on_gpu.close()
        workers.close()
