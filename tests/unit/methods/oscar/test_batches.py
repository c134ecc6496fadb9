import numpy as np
import pytest
import torch
from tiny_pair import POSITIONS, SPECIALS, tiny_pair, tiny_shape
from torch import Tensor
from torch.nn import functional as F

from condensery.methods.oscar.batches import IGNORED, Batch, Item, Row, collate
from condensery.methods.oscar.losses import losses, prompt_embeds
from condensery.networks.oscar import OscarPair

SHAPE = tiny_shape()  # 3 memory tokens
M, S = "memory", "separator"


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


QUESTION = ids(40, 41)
GOLD = Row(QUESTION, ids(10, 11, 12, 13, 14, 15), (1, 3))
LONG = Row(QUESTION, ids(20, 21, 22, 23, 24, 25, 26), (1, 6))
OTHER = Row(QUESTION, ids(30, 31), None)
ITEMS = [
    Item(QUESTION, (OTHER, GOLD), ids(11, 12)),
    Item(QUESTION, (LONG,), ids(21, 22, 23, 24, 25)),
    Item(QUESTION, (), ids(50)),
    Item(QUESTION, (GOLD, OTHER), ids(11, 12), plain=True),
]
LAYOUTS = [
    [M, M, M, S, M, M, M, S, 2, 40, 41, 3, 11, 12],
    [M, M, M, S, 2, 40, 41, 3, 21, 22, 23, 24, 25],
    [2, 40, 41, 3, 50],
    [10, 11, 12, 13, 14, 15, S, 30, 31, S, 2, 40, 41, 3, 11, 12],
]


@pytest.fixture(scope="module")
def batch() -> Batch:
    return collate(ITEMS, SHAPE, SPECIALS, POSITIONS)


def test_prompts_are_laid_out_as_the_generator_reads_them(batch: Batch) -> None:
    width = batch.prompt.shape[1]
    memory = set(batch.memory_at.flatten().tolist())
    separators = set(batch.separator_at.tolist())
    for i, layout in enumerate(LAYOUTS):
        for j in range(width):
            what = layout[j] if j < len(layout) else 0
            flat = i * width + j
            assert (flat in memory) == (what == M)
            assert (flat in separators) == (what == S)
            if isinstance(what, int):
                assert batch.prompt[i, j] == what


def test_memory_places_follow_the_compressors_rows(batch: Batch) -> None:
    width = batch.prompt.shape[1]
    assert batch.memory_at.tolist() == [[0, 1, 2], [4, 5, 6], [width, width + 1, width + 2]]
    assert batch.given is not None
    firsts = batch.given.input_ids.reshape(-1)[batch.given.passage_at[:, 0]]
    assert firsts.tolist() == [30, 10, 20]  # the plain item has no rows to compress
    assert batch.relevant.tolist() == [0.0, 1.0, 1.0]


def test_every_answer_token_and_its_end_is_predicted_from_the_one_before(batch: Batch) -> None:
    width = batch.prompt.shape[1]
    at = iter(zip(batch.labels_at.tolist(), batch.labels.tolist(), strict=True))
    for i, (layout, item) in enumerate(zip(LAYOUTS, ITEMS, strict=True)):
        first = len(layout) - len(item.answer)
        for j, token in enumerate([*item.answer.tolist(), SPECIALS.end]):
            assert next(at) == (i * width + first - 1 + j, token)
    assert next(at, None) is None


def test_memory_tokens_point_at_the_answer_then_at_the_passages_end(batch: Batch) -> None:
    assert batch.pointed.tolist() == [
        [2, IGNORED, IGNORED],  # no answer here: the [SEP] after two tokens
        [1, 2, 6],  # the answer's two tokens, then the [SEP] after six
        [1, 2, 3],  # as much of a long answer as there are memory tokens
    ]
    given = batch.given
    assert given is not None
    flat = given.input_ids.reshape(-1)
    row = given.passage_at[1]
    assert flat[row[batch.pointed[1]]].tolist() == [11, 12, 3]


def test_a_batch_without_passages_has_nothing_to_compress() -> None:
    batch = collate([ITEMS[2], ITEMS[3]], SHAPE, SPECIALS, POSITIONS)
    assert batch.given is None
    found = losses(tiny_pair(), batch)
    assert found.relevance == found.pointer == 0
    assert torch.isfinite(found.answer)


def mean_answer_loss(pair: OscarPair, batch: Batch, memory: Tensor) -> Tensor:
    """Cross-entropy by reading each prompt alone, without padding, a label at a time."""
    total, count = torch.zeros(()), 0
    embeds = prompt_embeds(pair, batch, memory)
    for i, (layout, item) in enumerate(zip(LAYOUTS, ITEMS, strict=True)):
        hidden = pair.generator(embeds[i : i + 1, : len(layout)]).last_hidden_state[0]
        target = [*item.answer.tolist(), SPECIALS.end]
        for state, token in zip(hidden[-len(target) :], target, strict=True):
            scores = pair.generator.logits(state)
            total = total + scores.logsumexp(-1) - scores[token]
            count += 1
    return total / count


@torch.no_grad()
def test_losses_are_what_each_prompt_and_row_gives_alone(batch: Batch) -> None:
    pair = tiny_pair()
    found = losses(pair, batch)
    assert batch.given is not None
    compressed = pair.compressor(batch.given, pair.generator.words)
    torch.testing.assert_close(
        found.answer, mean_answer_loss(pair, batch, compressed.memory), rtol=1e-4, atol=1e-4
    )
    p = torch.sigmoid(compressed.relevance)
    wanted = -torch.stack([(1 - p[0]).log(), p[1].log(), p[2].log()]).mean()
    torch.testing.assert_close(found.relevance, wanted, rtol=1e-4, atol=1e-5)
    pointed = [
        (0, 0, 2),
        *((1, i, (1, 2, 6)[i]) for i in range(3)),
        *((2, i, 1 + i) for i in range(3)),
    ]
    assert compressed.pointer is not None
    wanted = -torch.stack([compressed.pointer[r, m, at] for r, m, at in pointed]).mean()
    torch.testing.assert_close(found.pointer, wanted)
    total = found.answer + 0.3 * found.relevance + 2.0 * found.pointer
    torch.testing.assert_close(found.total(0.3, 2.0), total)


def test_every_trained_weight_gets_a_gradient_and_the_words_none(batch: Batch) -> None:
    pair = tiny_pair()
    losses(pair, batch).total(0.3, 1.0).backward()
    lacking = {name for name, p in pair.named_parameters() if p.requires_grad and p.grad is None}
    assert lacking == set()
    words = pair.compressor.backbone.embeddings.word_embeddings.weight
    assert words.grad is None
    assert not words.requires_grad


def test_what_follows_the_answer_does_not_change_its_loss() -> None:
    pair = tiny_pair()
    with torch.no_grad():
        alone = losses(pair, collate([ITEMS[0]], SHAPE, SPECIALS, POSITIONS)).answer
        # Beside a longer prompt, this one is padded.
        wide = Item(QUESTION, (LONG,), ids(*range(10, 40)))
        both = collate([ITEMS[0], wide], SHAPE, SPECIALS, POSITIONS)
        assert both.given is not None
        memory = pair.compressor(both.given, pair.generator.words).memory
        hidden = pair.generator(prompt_embeds(pair, both, memory)).last_hidden_state
        logits = pair.generator.logits(hidden.flatten(0, 1)[both.labels_at[:3]])
        beside = F.cross_entropy(logits, both.labels[:3])
    torch.testing.assert_close(alone, beside, rtol=1e-4, atol=1e-4)
