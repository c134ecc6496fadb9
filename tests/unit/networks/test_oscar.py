import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_pair import POSITIONS, SPECIALS, VOCABULARY, padded, tiny_config, tiny_pair, tiny_shape
from torch import Tensor
from transformers import BertModel

from condensery.methods.oscar.batches import Item, Layout, Row, collate
from condensery.methods.oscar.losses import prompt_embeds
from condensery.networks.oscar import WORDS, OscarPair
from condensery.networks.oscar_compressor import ANSWERABLE, Compressed
from condensery.networks.oscar_generator import standardised
from condensery.networks.oscar_packing import Pairing, pack
from condensery.networks.pointers import LONGEST
from condensery.runtime.oscar_pair import prepare_for_inference

FP32 = torch.float32
CPU = torch.device("cpu")
PAIR = tiny_pair()
READY = prepare_for_inference(copy.deepcopy(PAIR))
PLAIN = tiny_pair(copy=False)
WALK = tiny_pair(walk=True)
BOUNDS = tiny_pair(bounds=True)

ids = st.integers(4, len(VOCABULARY) - 1)
pairings = st.builds(
    Pairing,
    st.lists(ids, max_size=PAIR.shape.query_tokens),
    st.lists(ids, max_size=PAIR.shape.passage_tokens),
)


def compress_packed(pairings: list[Pairing], pair: OscarPair = READY) -> Compressed:
    positions = pair.compressor.slot_positions
    packed = pack(pairings, pair.shape, SPECIALS, positions, dtype=FP32, device=CPU)
    with torch.inference_mode():
        return pair.compressor(packed, pair.generator.words)


def compress_padded(pairings: list[Pairing], pair: OscarPair = PAIR) -> Compressed:
    with torch.inference_mode():
        return pair.compressor(padded(pairings, pair.shape), pair.generator.words)


def compress_by_hand(pairing: Pairing, pair: OscarPair) -> tuple[Tensor, float]:
    """Compress one passage by the decision record's formula, through transformers' own BERT."""
    state = pair.state_dict()
    bert = BertModel(tiny_config(), add_pooling_layer=False).eval()
    bert.set_attn_implementation("eager")
    prefix = "compressor.backbone."
    bert.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if prefix in k})
    question, passage = list(pairing.question), list(pairing.passage)
    text = [2, *question, 3, *passage, 3]
    slots = state["compressor.slots.weight"]
    embeds = torch.cat([state[WORDS][text], slots])
    types = [0] * (len(question) + 2) + [1] * (len(passage) + 1) + [0] * len(slots)
    places = [*range(len(text)), *range(POSITIONS - len(slots), POSITIONS)]
    with torch.inference_mode():
        hidden = bert(
            inputs_embeds=embeds[None],
            token_type_ids=torch.tensor([types]),
            position_ids=torch.tensor([places]),
        ).last_hidden_state[0]

        def linear(name: str, x: Tensor) -> Tensor:
            return x @ state[f"compressor.{name}.weight"].T + state[f"compressor.{name}.bias"]

        memory, rerank = hidden[len(text) : -1], hidden[-1]
        vectors = linear("mapping.2", linear("mapping.0", memory).clamp(min=0))
        relevance = linear("rerank", rerank).item()
        if pair.shape.copy:
            at = range(len(question) + 2, len(text))
            tokens = hidden[at.start : at.stop]
            if pair.shape.walk:
                pointed = walk_by_hand(linear("pointer.span", tokens), len(memory))
            elif pair.shape.bounds:
                pointed, nothing = bounds_by_hand(linear("pointer.span", tokens), len(memory))
                odds = math.log1p(-nothing) - math.log(nothing) if nothing < 1 else -20
                relevance += ANSWERABLE * odds
            else:
                keys = linear("pointer.key", tokens)
                scores = linear("pointer.query", memory) @ keys.T / math.sqrt(hidden.shape[-1])
                pointed = scores.softmax(-1)
            table = pair.generator.words[[text[i] for i in at]]
            gate = 1 / (1 + torch.exp(-linear("pointer.gate", memory)))
            vectors = vectors + gate * (pointed @ table)
        return vectors, relevance


def walk_by_hand(logits: Tensor, steps: int) -> Tensor:
    """Return where each memory token points: it starts, goes on, or stops for good."""
    stop = torch.sigmoid(logits[:, 1])
    moves = torch.diag(1 - stop[:-1], 1)
    moves[:-1, -1] += stop[:-1]
    moves[-1] = 0
    moves[-1, -1] = 1
    at = [logits[:, 0].softmax(0)]
    for _ in range(steps - 1):
        at.append(at[-1] @ moves)
    return torch.stack(at)


def bounds_by_hand(logits: Tensor, steps: int) -> tuple[Tensor, float]:
    """Return where each memory token points, of all spans as likely as their bounds' logits say,
    and the probability of none.
    """
    starts, ends = logits.T.tolist()
    end = len(logits) - 1
    paths, scores = [[end] * steps], [starts[end] + ends[end]]
    for first in range(end):
        for last in range(first, min(end, first + LONGEST)):
            path = [first + i if first + i <= last else end for i in range(steps)]
            paths.append([*path[:-1], last] if last - first >= steps else path)
            scores.append(starts[first] + ends[last])
    pointed = torch.zeros(steps, len(logits))
    likely = torch.tensor(scores).double().softmax(0).tolist()
    for path, chance in zip(paths, likely, strict=True):
        pointed[range(steps), path] += chance
    return pointed, likely[0]


def close(got: Tensor, wanted: Tensor) -> bool:
    """Agree to 1e-5 of the values' size."""
    scale = max(1.0, float(wanted.abs().max()))
    return torch.allclose(got, wanted, rtol=0, atol=1e-5 * scale)


@settings(deadline=None, max_examples=25)
@given(
    pairing=pairings, before=st.lists(pairings, max_size=3), after=st.lists(pairings, max_size=3)
)
def test_a_passage_is_compressed_the_same_alone_and_among_neighbours(
    pairing: Pairing, before: list[Pairing], after: list[Pairing]
) -> None:
    alone = compress_packed([pairing])
    beside = compress_packed([*before, pairing, *after])
    at = len(before)
    assert close(beside.memory[at], alone.memory[0])
    assert close(beside.relevance[at], alone.relevance[0])


@settings(deadline=None, max_examples=25)
@given(batch=st.lists(pairings, min_size=1, max_size=5))
def test_packed_and_padded_give_the_same(batch: list[Pairing]) -> None:
    packed, padded = compress_packed(batch), compress_padded(batch)
    assert close(packed.memory, padded.memory)
    assert close(packed.relevance, padded.relevance)
    assert packed.pointer is not None
    assert padded.pointer is not None
    longest = padded.pointer.shape[2]
    assert torch.allclose(packed.pointer[..., :longest].exp(), padded.pointer.exp(), atol=1e-5)
    assert not packed.pointer[..., longest:].exp().any()


@pytest.mark.parametrize(
    "pair",
    [PAIR, WALK, BOUNDS, PLAIN],
    ids=["with pointer", "with a walk", "with bounds", "as in the paper"],
)
@pytest.mark.parametrize("sizes", [(0, 0), (5, 1), (12, 24)])
def test_memory_is_the_mapping_plus_what_the_pointer_copies(
    pair: OscarPair, sizes: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(7)
    question, passage = (
        torch.randint(4, len(VOCABULARY), (n,), generator=generator).tolist() for n in sizes
    )
    pairing = Pairing(question, passage)
    vectors, relevance = compress_by_hand(pairing, pair)
    for compressed in (
        compress_padded([pairing], pair),
        compress_packed([pairing], make_copy(pair)),
    ):
        assert close(compressed.memory[0], vectors)
        assert compressed.relevance.item() == pytest.approx(relevance, abs=1e-4)
        assert (compressed.pointer is None) == (not pair.shape.copy)


def make_copy(pair: OscarPair) -> OscarPair:
    return prepare_for_inference(copy.deepcopy(pair))


def test_the_question_changes_the_memory_and_the_relevance() -> None:
    a, b = compress_packed([Pairing([9, 10], [20, 21, 22]), Pairing([11, 12], [20, 21, 22])]).memory
    assert (a - b).abs().max() > 0.01


def test_the_pointer_spreads_over_real_tokens_only() -> None:
    batch = [Pairing([5], [6, 7]), Pairing([5, 6], [8] * 20), Pairing([], [])]
    log_pointer = compress_packed(batch).pointer
    assert log_pointer is not None
    assert log_pointer.shape == (3, PAIR.shape.memory_tokens, 32)  # 21, rounded up
    for row, pairing in zip(log_pointer, batch, strict=True):
        real = len(pairing.passage) + 1  # its [SEP] too
        assert torch.allclose(row[:, :real].exp().sum(-1), torch.ones(3))
        assert torch.isfinite(row[:, :real]).all()
        assert (row[:, real:] == -math.inf).all()


def test_filling_slots_equals_a_masked_scatter() -> None:
    shape = PAIR.shape
    generator = torch.Generator().manual_seed(3)

    def some(count: int) -> list[int]:
        return torch.randint(4, len(VOCABULARY), (count,), generator=generator).tolist()

    def row(size: int) -> Row:
        return Row(torch.tensor(some(4)).numpy(), torch.tensor(some(size)).numpy(), (0, 1))

    rows = [row(5), row(9), row(2)]
    question, answer = torch.tensor(some(4)).numpy(), torch.tensor(some(2)).numpy()
    items = [
        Item(question, (rows[0], rows[1]), answer),
        Item(question, (rows[2],), answer),
        Item(question, (), answer),
        Item(question, (rows[0],), answer, plain=True),
    ]
    batch = collate(items, Layout(shape, SPECIALS, PAIR.compressor.slot_positions))
    memory = torch.randn(3, shape.memory_tokens, 32, generator=generator)
    with torch.inference_mode():
        filled = prompt_embeds(PAIR, batch, memory)
        M, S = "memory", "separator"  # the prompts again, by hand
        layouts = [
            [M, M, M, S, M, M, M, S, 2, *question, 3, *answer],
            [M, M, M, S, 2, *question, 3, *answer],
            [2, *question, 3, *answer],
            [*rows[0].passage, S, 2, *question, 3, *answer],
        ]
        flat = [what for layout in layouts for what in layout]
        wanted = PAIR.generator.words[[0 if isinstance(what, str) else int(what) for what in flat]]
        wanted[[what is S for what in flat]] = PAIR.generator.separator
        mask = torch.tensor([what is M for what in flat])
        wanted = wanted.masked_scatter(mask[:, None], memory)
        filled = filled[: len(flat)]
    assert torch.equal(filled, wanted)


def test_a_pair_is_restored_by_its_own_weights_and_the_shared_words() -> None:
    other = tiny_pair(seed=1)
    words = PAIR.compressor.backbone.embeddings.word_embeddings.weight.detach()
    assert WORDS not in PAIR.own_state()
    assert not any("generator.words" in name for name in PAIR.own_state())
    before = torch.get_rng_state()
    copied = OscarPair.of_state(tiny_config(), tiny_shape(), words, PAIR.own_state())
    assert torch.equal(torch.get_rng_state(), before)  # nothing was drawn only to be replaced
    table = copied.compressor.backbone.embeddings.word_embeddings.weight
    assert table.data_ptr() == words.data_ptr()  # they are the base's, and no copy
    batch = [Pairing([5, 6], [7, 8, 9])]
    restored = compress_padded(batch, copied.eval())
    assert torch.equal(restored.memory, compress_padded(batch).memory)
    assert not close(restored.memory, compress_padded(batch, other).memory)


def test_a_pair_refuses_weights_that_are_not_its_own() -> None:
    pair = tiny_pair()
    state = pair.own_state()
    lacking = {name: value for name, value in state.items() if name != "compressor.rerank.bias"}
    with pytest.raises(ValueError, match=r"missing \['compressor.rerank.bias'\]"):
        pair.load_own_state(lacking)
    with pytest.raises(ValueError, match=r"unknown \['extra'\]"):
        pair.load_own_state({**state, "extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"compressor\.slots\.weight"):
        pair.load_own_state({**state, "compressor.slots.weight": torch.zeros(7, 32)})
    with pytest.raises(ValueError, match=r"pointer\.gate\.bias"):
        pair.load_own_state(PLAIN.own_state())


def test_standardised_words_are_centred_and_of_one_size() -> None:
    table = torch.randn(50, 16, generator=torch.Generator().manual_seed(0)) * 3 + 5
    words = standardised(table)
    centred = table - table.mean(dim=0)
    assert torch.allclose(words.pow(2).mean(dim=1).sqrt(), torch.ones(50), atol=1e-5)
    # Each row keeps its direction from the centre.
    assert torch.allclose(torch.cosine_similarity(words, centred), torch.ones(50), atol=1e-5)
    assert standardised(table.bfloat16()).dtype == torch.float32
    assert torch.isfinite(standardised(torch.ones(3, 4))).all()


def test_a_shape_longer_than_the_backbone_is_refused() -> None:
    shape = tiny_shape(query_tokens=60, passage_tokens=64)  # 60 + 64 + 3 + 4 of 128
    with pytest.raises(ValueError, match="needs 131 positions, the backbone has 128"):
        OscarPair(tiny_config(), shape, torch.randn(len(VOCABULARY), 32))
