import numpy as np
import pytest
import torch
from tiny_pair import SPECIALS, padded, tiny_pair, tiny_shape
from torch import Tensor
from torch.nn import functional as F

from condensery.methods.oscar.batches import IGNORED, Batch, Item, Layout, Row, collate
from condensery.methods.oscar.losses import Weights, losses, prompt_embeds, soft_word_vectors
from condensery.methods.oscar.starting import empty_pair
from condensery.networks.attention import PACKED
from condensery.networks.oscar import OscarPair
from condensery.networks.oscar_packing import Pairing

SHAPE = tiny_shape()  # 3 memory tokens
LAYOUT = Layout(SHAPE, SPECIALS, tiny_pair().compressor.slot_positions)
M, S = "memory", "separator"


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


QUESTION = ids(40, 41)
GOLD = Row(QUESTION, ids(10, 11, 12, 13, 14, 15), (1, 3), relevant=True)
LONG = Row(QUESTION, ids(20, 21, 22, 23, 24, 25, 26), (1, 6), relevant=True)
OTHER = Row(QUESTION, ids(30, 31), None, relevant=False)
SCORED = Row(QUESTION, ids(32, 33, 34), (0, 1), score=2.5, relevant=True)
UNSURE = Row(QUESTION, ids(35, 36), (0, 1), score=-3.0)
UNKNOWN = Row(QUESTION, ids(37), None)
ITEMS = [
    Item(QUESTION, (OTHER, GOLD), ids(11, 12)),
    Item(QUESTION, (LONG,), ids(21, 22, 23, 24, 25)),
    Item(QUESTION, (), ids(50)),
    Item(QUESTION, (GOLD, OTHER), ids(11, 12), plain=True),
    Item(QUESTION, (SCORED, UNSURE, UNKNOWN), ids(32, 38), said=ids(32, 32)),
]
LAYOUTS = [
    [M, M, M, S, M, M, M, S, 2, 40, 41, 3, 11, 12],
    [M, M, M, S, 2, 40, 41, 3, 21, 22, 23, 24, 25],
    [2, 40, 41, 3, 50],
    [10, 11, 12, 13, 14, 15, S, 30, 31, S, 2, 40, 41, 3, 11, 12],
    [M, M, M, S, M, M, M, S, M, M, M, S, 2, 40, 41, 3, 32, 32],
]
STARTS = np.cumsum([0, *map(len, LAYOUTS)]).tolist()


def packed_pair() -> OscarPair:
    pair = tiny_pair()
    pair.compressor.backbone.set_attn_implementation(PACKED)
    pair.generator.backbone.set_attn_implementation(PACKED)
    return pair


@pytest.fixture(scope="module")
def batch() -> Batch:
    return collate(ITEMS, LAYOUT)


def test_prompts_are_laid_out_as_the_generator_reads_them(batch: Batch) -> None:
    memory = set(batch.memory_at.flatten().tolist())
    separators = set(batch.separator_at.tolist())
    whole = [what for layout in LAYOUTS for what in layout]
    assert list(batch.packing.lengths) == [len(layout) for layout in LAYOUTS]
    for at, token in enumerate(batch.prompt.tolist()):
        what = whole[at] if at < len(whole) else 0  # filler
        assert (at in memory) == (what == M)
        assert (at in separators) == (what == S)
        if isinstance(what, int):
            assert token == what


def test_memory_places_follow_the_compressors_rows(batch: Batch) -> None:
    second, last = STARTS[1], STARTS[4]
    assert batch.memory_at[:3].tolist() == [[0, 1, 2], [4, 5, 6], [second, second + 1, second + 2]]
    assert batch.memory_at[3:, 0].tolist() == [last, last + 4, last + 8]
    assert batch.given is not None
    firsts = batch.given.input_ids.reshape(-1)[batch.given.passage_at[:, 0]]
    assert firsts.tolist() == [30, 10, 20, 32, 35, 37]  # the plain item has no rows to compress


def test_relevance_is_judged_where_it_is_known_and_regressed_where_there_are_scores(
    batch: Batch,
) -> None:
    assert batch.judged_at.tolist() == [0, 1, 2]
    assert batch.judged.tolist() == [0.0, 1.0, 1.0]
    assert batch.scored_at.tolist() == [3, 4]
    assert batch.scores.tolist() == [2.5, -3.0]


def test_every_answer_token_and_its_end_is_predicted_from_the_one_before(batch: Batch) -> None:
    at = iter(zip(batch.labels_at.tolist(), batch.labels.tolist(), strict=True))
    for start, layout, item in zip(STARTS, LAYOUTS, ITEMS, strict=False):
        first = start + len(layout) - len(item.answer)
        for j, token in enumerate([*item.answer.tolist(), SPECIALS.end]):
            assert next(at) == (first - 1 + j, token)
    assert next(at, None) is None


def test_memory_tokens_point_at_the_answer_then_at_the_passages_end(batch: Batch) -> None:
    assert batch.pointed.tolist() == [
        [2, IGNORED, IGNORED],  # no answer here: the [SEP] after two tokens
        [1, 2, 6],  # the answer's two tokens, then the [SEP] after six
        [1, 2, 3],  # as much of a long answer as there are memory tokens
        [0, 3, IGNORED],
        [IGNORED] * 3,  # its answer's words, said of something else
        [IGNORED] * 3,
    ]
    packed_rows = batch.given
    assert packed_rows is not None
    flat = packed_rows.input_ids.reshape(-1)
    row = packed_rows.passage_at[1]
    assert flat[row[batch.pointed[1]]].tolist() == [11, 12, 3]


def test_a_batch_without_passages_has_nothing_to_compress() -> None:
    batch = collate([ITEMS[2], ITEMS[3]], LAYOUT)
    assert batch.given is None
    result = losses(packed_pair(), batch)
    assert result.relevance == result.pointer == result.score == 0
    assert torch.isfinite(result.answer)


def test_a_batch_of_which_nothing_is_known_teaches_the_answer_alone() -> None:
    result = losses(packed_pair(), collate([Item(QUESTION, (UNKNOWN,), ids(9))], LAYOUT))
    assert result.relevance == result.pointer == result.score == 0
    assert torch.isfinite(result.answer)


def mean_answer_loss(pair: OscarPair, batch: Batch, memory: Tensor) -> Tensor:
    """Cross-entropy by reading each prompt alone, by transformers' attention."""
    pair.generator.backbone.set_attn_implementation("eager")
    total, count = torch.zeros(()), 0
    embeds = prompt_embeds(pair, batch, memory)
    for start, layout, item in zip(STARTS, LAYOUTS, ITEMS, strict=False):
        alone = embeds[start : start + len(layout)]
        hidden = pair.generator(alone[None]).last_hidden_state[0]
        target = [*item.answer.tolist(), SPECIALS.end]
        for state, token in zip(hidden[-len(target) :], target, strict=True):
            scores = pair.generator.logits(state)
            total = total + scores.logsumexp(-1) - scores[token]
            count += 1
    return total / count


def test_what_was_said_and_is_not_wanted_again_is_unlikely(batch: Batch) -> None:
    repeats = list(zip(batch.repeats_at.tolist(), batch.repeats.tolist(), strict=True))
    # The first item's labels are 11, 12, [SEP]; its second has 11 before it, its third 11 and 12.
    assert repeats[:3] == [(1, 11), (2, 11), (2, 12)]
    # The last was told 32, 32 where it should have said 32, 38.
    last = len(batch.labels) - 3
    assert [pair for pair in repeats if pair[0] >= last] == [(last + 1, 32), (last + 2, 32)]
    again = collate([Item(QUESTION, (), ids(5, 5))], LAYOUT)
    assert (again.repeats_at.tolist(), again.repeats.tolist()) == ([2], [5])  # 5 is wanted twice


@torch.no_grad()
def test_the_loss_of_repeats_is_by_hand() -> None:
    pair, batch = packed_pair(), collate([Item(QUESTION, (), ids(11, 12))], LAYOUT)
    prompt = pair.generator.words[torch.tensor([2, 40, 41, 3, 11, 12])]
    pair.generator.backbone.set_attn_implementation("eager")
    hidden = pair.generator(prompt[None]).last_hidden_state[0]
    p = pair.generator.logits(hidden[3:]).softmax(-1)
    wanted = -((1 - p[1, 11]).log() + (1 - p[2, 11]).log() + (1 - p[2, 12]).log()) / 3
    pair.generator.backbone.set_attn_implementation(PACKED)
    torch.testing.assert_close(losses(pair, batch).repeats, wanted, rtol=1e-3, atol=1e-6)


@torch.no_grad()
def test_losses_are_what_each_prompt_and_row_gives_alone(batch: Batch) -> None:
    result, pair = losses(packed_pair(), batch), tiny_pair()
    rows = [row for item in ITEMS if not item.plain for row in item.rows]
    pairings = [Pairing(row.question.tolist(), row.passage.tolist()) for row in rows]
    compressed = pair.compressor(padded(pairings, SHAPE), pair.generator.words)
    torch.testing.assert_close(
        result.answer, mean_answer_loss(pair, batch, compressed.memory), rtol=1e-4, atol=1e-4
    )
    p = torch.sigmoid(compressed.relevance)
    wanted = -torch.stack([(1 - p[0]).log(), p[1].log(), p[2].log()]).mean()
    torch.testing.assert_close(result.relevance, wanted, rtol=1e-4, atol=1e-5)
    wanted = ((compressed.relevance[3] - 2.5) ** 2 + (compressed.relevance[4] + 3) ** 2) / 2
    torch.testing.assert_close(result.score, wanted, rtol=1e-4, atol=1e-5)
    pointed = [
        (0, 0, 2),
        *((1, i, (1, 2, 6)[i]) for i in range(3)),
        *((2, i, 1 + i) for i in range(3)),
        *((3, i, (0, 3)[i]) for i in range(2)),
    ]
    assert compressed.pointer is not None
    wanted = -torch.stack([compressed.pointer[r, m, at] for r, m, at in pointed]).mean()
    torch.testing.assert_close(result.pointer, wanted, rtol=1e-4, atol=1e-5)
    total = result.answer + 0.3 * result.relevance + 0.05 * result.score + 2.0 * result.pointer
    total = total + 0.5 * result.repeats
    torch.testing.assert_close(result.total(Weights(0.3, 0.05, 2.0, 0.5)), total)


def test_every_trained_weight_gets_a_gradient_and_the_words_none(batch: Batch) -> None:
    pair = packed_pair()
    losses(pair, batch).total(Weights(0.3, 0.05, 1.0)).backward()
    lacking = {name for name, p in pair.named_parameters() if p.requires_grad and p.grad is None}
    assert lacking == set()
    words = pair.compressor.backbone.embeddings.word_embeddings.weight
    assert words.grad is None
    assert not words.requires_grad


def test_gradients_are_those_of_padded_rows() -> None:
    rows = [GOLD, OTHER, LONG]
    items = [Item(QUESTION, (row,), ids(11)) for row in rows]
    packed, alone = packed_pair(), tiny_pair()
    batch = collate(items, LAYOUT)
    result = losses(packed, batch)
    (result.relevance + result.pointer).backward()
    pairings = [Pairing(row.question.tolist(), row.passage.tolist()) for row in rows]
    compressed = alone.compressor(padded(pairings, SHAPE), alone.generator.words)
    assert compressed.pointer is not None
    relevance = F.binary_cross_entropy_with_logits(
        compressed.relevance, torch.tensor([1.0, 0.0, 1.0])
    )
    flat = compressed.pointer.flatten(0, 1)
    pointer = F.nll_loss(flat, batch.pointed.flatten(), ignore_index=IGNORED)
    (relevance + pointer).backward()
    for (name, a), b in zip(packed.named_parameters(), alone.parameters(), strict=True):
        if a.grad is not None and name.startswith("compressor."):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4, msg=name)


def test_what_is_told_as_said_changes_what_is_read_and_not_what_is_asked_for() -> None:
    straight = Item(QUESTION, (GOLD,), ids(11, 12, 13))
    slipped = Item(QUESTION, (GOLD,), ids(11, 12, 13), said=ids(11, 11, 13))
    a, b = collate([straight], LAYOUT), collate([slipped], LAYOUT)
    assert torch.equal(a.labels, b.labels)
    assert torch.equal(a.labels_at, b.labels_at)
    assert (a.prompt != b.prompt).nonzero().flatten().tolist() == [int(a.labels_at[2])]


def test_what_stands_beside_an_item_does_not_change_its_loss() -> None:
    pair = packed_pair()
    with torch.no_grad():
        alone = losses(pair, collate([ITEMS[0]], LAYOUT)).answer
        wide = Item(QUESTION, (LONG,), ids(*range(10, 40)))
        both = collate([ITEMS[0], wide], LAYOUT)
        assert both.given is not None
        memory = pair.compressor(both.given, pair.generator.words).memory
        hidden = pair.generator(
            prompt_embeds(pair, both, memory)[None],
            position_ids=both.packing.position_ids,
            packing=both.packing,
        ).last_hidden_state[0]
        logits = pair.generator.logits(hidden[both.labels_at[:3]])
        beside = F.cross_entropy(logits, both.labels[:3])
    torch.testing.assert_close(alone, beside, rtol=1e-4, atol=1e-4)


def test_a_pair_to_train_reads_packed_input_and_drops_nothing_out() -> None:
    pair = tiny_pair()
    words = pair.compressor.backbone.embeddings.word_embeddings.weight.detach()
    made = empty_pair(pair.compressor.backbone.config, SHAPE, words)
    assert made.compressor.backbone.config._attn_implementation == PACKED
    assert made.compressor.backbone.config.hidden_dropout_prob == 0
    assert torch.isfinite(losses(made.train(), collate(ITEMS, LAYOUT)).answer)


def test_where_passages_are_only_ranked_nothing_is_said_and_nothing_pointed_at() -> None:
    gold = Row(QUESTION, ids(10, 11), None, relevant=True)
    items = [Item(QUESTION, (gold, OTHER), ids())]
    batch = collate(items, LAYOUT)
    assert batch.judged.tolist() == [1.0, 0.0]
    assert batch.pointed.tolist() == [[IGNORED] * 3, [2, IGNORED, IGNORED]]
    pair = packed_pair()
    result = losses(pair, batch)
    assert result.answer == result.repeats == 0
    result.total(Weights(1.0, 1.0, 1.0)).backward()
    learnt = {name.split(".")[0] for name, p in pair.named_parameters() if p.grad is not None}
    assert learnt == {"compressor"}
    both = collate([*items, ITEMS[0]], LAYOUT)
    alone = collate(ITEMS[:1], LAYOUT)
    assert losses(pair, both).answer.item() == pytest.approx(losses(pair, alone).answer.item())


def test_spelled_vectors_are_the_answers_words_and_then_the_end() -> None:
    item = Item(QUESTION, (), ids(11, 12), spelled=(2, 1))
    batch = collate([item, ITEMS[0]], LAYOUT)
    assert batch.packing.lengths == (14, len(LAYOUTS[0]))
    assert batch.spelled.tolist() == [3, 3, 3, 11, 12, 3]
    assert batch.spelled_at.tolist() == [0, 1, 2, 4, 5, 6]
    assert batch.separator_at.tolist()[:2] == [3, 7]
    assert batch.prompt.tolist()[8:14] == [2, 40, 41, 3, 11, 12]
    assert batch.memory_at[0].tolist() == [14, 15, 16]
    pair = packed_pair()
    torch.manual_seed(0)
    filled = prompt_embeds(pair, batch, torch.zeros(2, 3, 32))
    torch.manual_seed(0)
    assert torch.equal(
        filled[batch.spelled_at], soft_word_vectors(batch.spelled, pair.generator.words)
    )


def test_a_word_is_more_than_half_of_what_spells_it() -> None:
    words = torch.randn(50, 400, generator=torch.Generator().manual_seed(1))
    wanted = torch.arange(50)
    torch.manual_seed(0)
    vectors = soft_word_vectors(wanted, words)
    right = (vectors @ words.T).argmax(-1) == wanted
    assert right.float().mean() > 0.9
    shares = (vectors * words).sum(-1) / words.pow(2).sum(-1)
    assert shares.min() > 0.4
    assert shares.max() < 1.2
    assert shares.std() > 0.1


def test_where_all_is_spelled_the_generator_alone_learns() -> None:
    pair = packed_pair()
    result = losses(pair, collate([Item(QUESTION, (), ids(11, 12), spelled=(1, 0))], LAYOUT))
    result.total(Weights(1.0, 1.0, 1.0)).backward()
    learnt = {name.split(".")[0] for name, p in pair.named_parameters() if p.grad is not None}
    assert learnt == {"generator"}


def test_a_text_is_read_knowing_the_question_where_the_shape_says_so() -> None:
    layout = Layout(tiny_shape(ask_first=True), SPECIALS, LAYOUT.slot_positions)
    batch = collate(ITEMS, layout)
    lengths = [len(row) for row in LAYOUTS]
    lengths[3] += 5  # [CLS] question [SEP] and a separator: of the item that is read as text alone
    assert list(batch.packing.lengths) == lengths
    first = sum(lengths[:3])
    assert batch.prompt[first : first + 11].tolist() == [2, 40, 41, 3, 0, 10, 11, 12, 13, 14, 15]
    assert first + 4 in batch.separator_at.tolist()
    # Its answer's words are those of its passage; the end is copied from nowhere.
    assert batch.prompt[batch.copied].tolist() == [11, 12]
    assert batch.labels[batch.copied_at].tolist() == [11, 12]


def test_copies_are_attention_to_the_next_word_as_transformers_works_it_out() -> None:
    pair = packed_pair()
    item = Item(QUESTION, (OTHER, GOLD), ids(11, 12), plain=True)
    batch = collate([ITEMS[1], item], LAYOUT)
    result = losses(pair, batch)
    pair.generator.backbone.set_attn_implementation("eager")
    alone = collate([item], LAYOUT)
    out = pair.generator(prompt_embeds(pair, alone, None)[None], output_attentions=True)
    heads = pair.shape.generator_heads // 2
    weights = out.attentions[-2][0, :heads].mean(0)  # (query, key)
    looking = alone.labels_at[alone.copied_at]
    expected = -weights[looking, alone.copied].log().mean()
    torch.testing.assert_close(result.copies, expected, atol=1e-5, rtol=1e-4)
    result.total(Weights(0, 0, 0, copies=1)).backward()  # type: ignore[no-untyped-call]
    queries = pair.generator.backbone.layers[-2].self_attn.q_proj.weight
    assert queries.grad is not None
    assert queries.grad.abs().max() > 0


def test_where_nothing_is_read_as_text_nothing_is_learnt_of_copies(batch: Batch) -> None:
    assert losses(packed_pair(), collate(ITEMS[:3], LAYOUT)).copies == 0
    assert len(batch.copied) == 2


BOUNDS = Layout(tiny_shape(bounds=True), SPECIALS, LAYOUT.slot_positions)  # 3 memory tokens


def test_a_pointer_of_bounds_learns_the_whole_answer() -> None:
    tiny = tiny_pair(bounds=True)
    words = tiny.compressor.backbone.embeddings.word_embeddings.weight
    pair = empty_pair(tiny.compressor.backbone.config, tiny.shape, words).train()
    rows = (GOLD, LONG, OTHER, UNKNOWN)
    batch = collate([Item(QUESTION, rows, ids(11, 12))], BOUNDS)
    assert batch.answers_at.tolist() == [0, 1, 2]
    assert batch.answers.tolist() == [[1, 2], [1, 5], [0, 0]]
    assert batch.given is not None
    spans = pair.compressor(batch.given, pair.generator.words).spans
    assert spans is not None
    wanted = -(spans.table[0, 1, 1] + spans.table[1, 4, 1] + spans.nothing[2]) / 3
    torch.testing.assert_close(losses(pair, batch).pointer, wanted)
    unknown = losses(pair, collate([Item(QUESTION, (UNKNOWN,), ids(9))], BOUNDS))
    assert unknown.pointer == 0


@pytest.mark.parametrize("spelled", [False, True])
def test_of_a_long_answer_the_generator_learns_the_words_that_vectors_carry(spelled: bool) -> None:
    answer = ids(21, 22, 23, 24, 25)
    item = (
        Item(QUESTION, (), answer, spelled=(1, 0)) if spelled else Item(QUESTION, (LONG,), answer)
    )
    batch = collate([item], BOUNDS)
    assert batch.labels.tolist() == [21, 22, IGNORED, IGNORED, 25, SPECIALS.end]
    if spelled:
        assert batch.spelled.tolist() == [21, 22, 25]
    again = list(zip(batch.repeats_at.tolist(), batch.repeats.tolist(), strict=True))
    # Where no vector has the word, all that is known is that the answer does not end.
    assert [pair for pair in again if pair[0] in (2, 3)] == [(2, SPECIALS.end), (3, SPECIALS.end)]
    as_text = collate([Item(QUESTION, (LONG,), answer, plain=True)], BOUNDS)
    assert as_text.labels.tolist() == [21, 22, 23, 24, 25, SPECIALS.end]
    exactly = collate([Item(QUESTION, (), ids(21, 22, 23), spelled=(1, 0))], BOUNDS)
    assert exactly.spelled.tolist() == [21, 22, 23]
    assert exactly.labels.tolist() == [21, 22, 23, SPECIALS.end]
