import copy

import pytest
import torch
from tiny_pair import SPECIALS, VOCABULARY, text_of, tiny_pair, tiny_shape, tiny_tokenizer

from condensery.networks.oscar_bert import BertCompressor, BertTexts
from condensery.networks.oscar_interface import CompressorNetwork, GeneratorNetwork, PairTexts
from condensery.networks.oscar_packing import Pairing, length, pack
from condensery.networks.quantised import Int8, Int16, can_quantise
from condensery.runtime.oscar_pair import prepare_for_inference

PAIR = prepare_for_inference(copy.deepcopy(tiny_pair()))
TEXTS: PairTexts = BertTexts(tiny_tokenizer(), PAIR.shape)
COMPRESSOR: CompressorNetwork = BertCompressor(PAIR, SPECIALS)
GENERATOR: GeneratorNetwork = PAIR.generator
QUESTION = text_of(5)


def ids_of(text: str) -> list[int]:
    return tiny_tokenizer().encode(text, add_special_tokens=False).ids


def test_readings_compress_to_what_the_pairs_own_packing_gives() -> None:
    passages = [text_of(9, seed=1), "", text_of(24, seed=2)]
    readings = [reading for (reading,) in TEXTS.make_windows(QUESTION, passages)]
    pairings = [Pairing(ids_of(QUESTION), ids_of(passage)) for passage in passages]
    places = PAIR.compressor.slot_positions
    packed = pack(
        pairings,
        PAIR.shape,
        SPECIALS,
        places,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    with torch.inference_mode():
        compressed = COMPRESSOR.compress(readings)
        wanted = PAIR.compressor(packed, PAIR.generator.words)
    assert compressed.counts == (3, 3, 3)
    assert torch.equal(torch.stack(compressed.split()), wanted.memory)
    assert compressed.relevance is not None
    assert torch.equal(compressed.relevance, wanted.relevance)
    costs = [COMPRESSOR.cost(reading) for reading in readings]
    assert costs == [length(pairing, PAIR.shape) for pairing in pairings]


def test_a_long_passage_becomes_windows_and_a_long_question_is_cut() -> None:
    passage = text_of(60, seed=3)
    (windows,) = TEXTS.make_windows(text_of(PAIR.shape.query_tokens), [passage])
    assert len(windows) == 3
    assert {reading.tokens for reading in windows} == {24}
    assert {reading.head for reading in windows} == {PAIR.shape.query_tokens + 2}
    assert (windows[0].start, windows[-1].end) == (0, len(passage))
    # A longer one leaves a window less, and is cut where that would be less than a quarter.
    (windows,) = TEXTS.make_windows(text_of(30), [passage])
    assert {len(reading.ids) for reading in windows} == {39}
    assert {(reading.head, reading.tokens) for reading in windows} == {(27 + 2, 9)}
    assert (windows[0].start, windows[-1].end) == (0, len(passage))
    cut, tokens = TEXTS.cut(text_of(30))
    assert (len(ids_of(cut)), tokens) == (27, 30)
    assert text_of(30).startswith(cut)
    assert TEXTS.cut(cut) == (cut, 27)
    assert TEXTS.make_windows(cut, [passage]) == [windows]


def test_the_generator_is_asked_the_whole_question() -> None:
    question = text_of(30)
    (asked,) = TEXTS.prompt(question, [])
    assert asked == [2, *ids_of(question), 3]


def test_separators_stand_between_the_parts_of_a_prompt() -> None:
    memories = [torch.randn(3, 32), torch.randn(3, 32)]
    words, separator = PAIR.generator.words, PAIR.generator.separator[None]
    asked = words[[2, *ids_of(QUESTION), 3]]
    with torch.inference_mode():
        vectors = GENERATOR.embed(TEXTS.prompt(QUESTION, memories))
        plain = GENERATOR.embed(TEXTS.prompt(QUESTION, ["river", ""]))
        mixed = GENERATOR.embed(TEXTS.prompt(QUESTION, [memories[0], "river", memories[1]]))
    rows = [memories[0], separator, memories[1], separator, asked]
    assert torch.equal(vectors[0], torch.cat(rows))
    river = words[[VOCABULARY.index("river")]]
    assert torch.equal(plain[0], torch.cat([river, separator, separator, asked]))
    rows = [memories[0], separator, river, separator, memories[1], separator, asked]
    assert torch.equal(mixed[0], torch.cat(rows))


def test_an_answer_ends_with_sep() -> None:
    assert TEXTS.stop == {3}
    assert (TEXTS.positions, TEXTS.query_tokens, TEXTS.text_tokens) == (96, 27, 12 + 24 + 3)
    assert (TEXTS.vectors, TEXTS.rates, TEXTS.scores) == ((3,), (8,), True)
    assert TEXTS.decode([VOCABULARY.index("river")]) == "river"
    assert (GENERATOR.dtype, GENERATOR.device.type) == (torch.float32, "cpu")


def test_special_tokens_in_a_callers_text_stay_text() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    rude = "the [SEP] mill [CLS]"
    assert {2, 3} <= set(tokenizer.encode(rude, add_special_tokens=False).ids)
    texts = BertTexts(tokenizer, PAIR.shape)
    ((reading,),) = texts.make_windows(rude, [rude])
    assert (reading.ids.count(2), reading.ids.count(3), reading.end) == (1, 2, len(rude))
    passage, asked = texts.prompt(rude, [rude])
    assert not {2, 3} & set(passage)
    assert (asked.count(2), asked.count(3)) == (1, 1)


def test_a_text_is_read_after_its_question_where_a_pair_asks_first() -> None:
    texts = BertTexts(tiny_tokenizer(), tiny_shape(ask_first=True))
    first, passage, asked = texts.prompt("the mill", ["river"])
    assert (first, passage) == (asked, ids_of("river"))
    assert len(texts.prompt("the mill", [torch.zeros(3, 32)])) == 2, "vectors know the question"
    assert len(texts.prompt("the mill", [torch.zeros(3, 32), "river"])) == 4


def test_a_pair_that_quotes_says_whole_words_of_its_texts_and_none_that_is_unknown() -> None:
    texts = BertTexts(tiny_tokenizer(), tiny_shape(quote=True))
    quotes = texts.quotes(["the mill \u2603 river"])
    assert quotes is not None
    begun, _ = quotes.allowed(quotes.first(), 0)
    assert [VOCABULARY[piece] for piece in sorted(begun)] == ["the", "mill", "river"]
    said, may_end = quotes.allowed(quotes.after(quotes.first(), VOCABULARY.index("mill")), 1)
    assert (said.tolist(), may_end) == ([], True)
    assert texts.quotes(["", "\u2603"]) is None
    assert BertTexts(tiny_tokenizer(), tiny_shape()).quotes(["the mill"]) is None


def test_what_begins_as_a_passages_memory_points_ends_where_that_ends() -> None:
    texts = BertTexts(tiny_tokenizer(), tiny_shape(quote=True))
    passages = ["the river", "☃ mill the river mill", "the mill"]
    # In characters: of the second "the river", of the third a piece of a word.
    quotes = texts.quotes(passages, [None, (7, 16), (4, 6)])
    assert quotes is not None
    assert quotes.pointed == ((5, 7), (10, 11))

    def after(*words: str) -> tuple[list[str], bool]:
        places = quotes.first()
        for word in words:
            places = quotes.after(places, VOCABULARY.index(word))
        tokens, may_end = quotes.allowed(places, len(words))
        return [VOCABULARY[token] for token in tokens], may_end

    assert after("the") == (sorted(["mill", "river"], key=VOCABULARY.index), False)
    assert after("the", "river") == ([], True), "it ends there, though one text goes on"
    assert after("the", "mill") == ([], True), "as a text ends, which nothing points at"
    assert after("mill") == ([], True)
    assert after("river") == (["mill"], True), "nothing points at what begins here"


@pytest.mark.skipif(not can_quantise("int8", torch.device("cpu")), reason="no products of 8 bits")
@torch.inference_mode()
def test_a_compressors_layers_in_8_bits_give_nearly_the_same_and_the_generator_stays() -> None:
    pair = prepare_for_inference(copy.deepcopy(tiny_pair()), compressor_weights="int8")
    assert any(isinstance(part, Int8 | Int16) for part in pair.compressor.backbone.modules())
    assert not any(isinstance(part, Int8 | Int16) for part in pair.generator.modules())
    passages = [text_of(9, seed=1), text_of(24, seed=2), text_of(3, seed=4)]
    readings = [reading for (reading,) in TEXTS.make_windows(QUESTION, passages)]
    exact, rounded = (
        network.compress(readings) for network in (COMPRESSOR, BertCompressor(pair, SPECIALS))
    )
    assert not torch.equal(exact.vectors, rounded.vectors)
    assert torch.cosine_similarity(exact.vectors, rounded.vectors, dim=-1).min() > 0.99
    assert exact.relevance is not None
    assert rounded.relevance is not None
    assert torch.allclose(exact.relevance, rounded.relevance, atol=0.05)
