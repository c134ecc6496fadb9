import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_causal import MEMORY, TEXT, bpe, causal_shape, generator_shape, with_specials
from tokenizers import Tokenizer

from condensery.networks.oscar_causal_shape import CausalShape
from condensery.networks.oscar_interface import PairTexts
from condensery.networks.oscar_texts import CausalTexts, CompressorTexts, GeneratorTexts

QUESTION = "How long is the river?"
TOKENIZERS = {kind: with_specials(bpe(kind)) for kind in ("llama", "mistral", "qwen2")}
LAYOUTS = {"pair": "llama", "joined": "mistral", "enclosed": "mistral", "lines": "qwen2"}
letters = st.text(st.sampled_from("the river mill,?.\né 日🙂"), max_size=120)


def compressor_texts(layout: str, tokens: int = 64, question: bool = True) -> CompressorTexts:
    around = {"text_before": "<s>", "text_after": "</s>"} if layout == "enclosed" else {}
    shape = causal_shape(layout, tokens, question=question, **around).compressor
    return CompressorTexts(TOKENIZERS[LAYOUTS[layout]], shape)


@pytest.mark.parametrize(
    ("layout", "wanted"),
    [
        ("pair", "<|begin_of_text|>{q}<|begin_of_text|>{p}"),
        ("joined", "<s>\nQuery:\n{q}Document:\n{p}"),
        ("enclosed", "<s>\nQuery:\n{q}Document:\n{p}</s>"),
        ("lines", "Query: {q}\n Document: {p}"),
    ],
)
def test_each_layout_reads_as_the_reference_writes_it(layout: str, wanted: str) -> None:
    passage = "The mill stands by the river."
    tokenizer = TOKENIZERS[LAYOUTS[layout]]
    ((window,),) = compressor_texts(layout).make_windows(QUESTION, [passage])
    if layout == "pair":
        start = tokenizer.token_to_id("<|begin_of_text|>")
        halves = (tokenizer.encode(t, add_special_tokens=False).ids for t in (QUESTION, passage))
        asked, read = halves
        assert window.ids == [start, *asked, start, *read]
        assert window.head == len(asked) + 2
    else:
        text = wanted.format(q=QUESTION, p=passage)
        special = "<s>" if layout == "joined" else ""  # written out, or put there by the tokenizer
        ids = tokenizer.encode(text.removeprefix(special), add_special_tokens=bool(special)).ids
        assert window.ids == ids
    assert window.tail == (layout == "enclosed")
    assert (window.start, window.end) == (0, len(passage))
    assert window.tokens == len(window.ids) - window.head - window.tail > 3


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(deadline=None, max_examples=30)
@given(passage=letters, question=letters)
def test_windows_leave_out_no_character_and_are_never_too_long(
    layout: str, passage: str, question: str
) -> None:
    texts = compressor_texts(layout, tokens=48)
    (windows,) = texts.make_windows(texts.cut(question[:20])[0], [passage])
    assert all(len(reading.ids) <= 48 for reading in windows)
    assert len({tuple(r.ids[: r.head]) for r in windows}) == 1
    covered = {place for reading in windows for place in range(reading.start, reading.end)}
    assert {i for i, letter in enumerate(passage) if letter.strip()} <= covered
    assert all(0 <= r.start <= r.end <= len(passage) for r in windows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_long_passages_first_window_is_what_truncation_would_leave(layout: str) -> None:
    whole, cut = compressor_texts(layout, tokens=2000), compressor_texts(layout, tokens=40)
    ((all_of_it,),) = whole.make_windows(QUESTION, [TEXT])
    (windows,) = cut.make_windows(QUESTION, [TEXT])
    assert len(windows) > 3
    tail = windows[0].tail
    first = windows[0].ids
    assert len(first) == 40
    assert first[: 40 - tail] == all_of_it.ids[: 40 - tail]
    assert windows[-1].end == len(TEXT)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("question", ["", QUESTION])
def test_an_empty_passage_is_read_as_one(layout: str, question: str) -> None:
    texts = compressor_texts(layout)
    ((empty,), (window,)) = texts.make_windows(question, ["", "river"])
    assert empty.tokens == 0
    assert (empty.start, empty.end) == (0, 0)
    assert empty.tail == window.tail
    # Where a space stands before the passage, its first token takes that along.
    assert empty.head - window.head == (layout == "lines")
    assert empty.ids[: window.head] == window.ids[: window.head]


def test_the_question_is_left_out_where_the_compressor_does_not_read_it() -> None:
    for layout in LAYOUTS:
        texts = compressor_texts(layout, question=False)
        assert texts.make_windows("one", ["river"]) == texts.make_windows("another", ["river"])
        assert compressor_texts(layout).make_windows("one", ["river"]) != texts.make_windows(
            "", ["river"]
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_question_is_cut_where_it_would_leave_a_passage_less_than_a_quarter(layout: str) -> None:
    texts = compressor_texts(layout)
    assert texts.query_tokens is not None
    cut, tokens = texts.cut(TEXT)
    assert tokens > 64
    assert TEXT.startswith(cut)
    assert texts.cut(cut) == (cut, texts.query_tokens)
    (windows,) = texts.make_windows(cut, [TEXT])
    assert all(len(window.ids) == 64 for window in windows)
    assert all(15 <= window.tokens <= 18 for window in windows)  # 16, but for what joins to others
    assert windows[-1].end == len(TEXT)


def test_a_compressor_that_reads_no_question_cuts_none() -> None:
    texts = compressor_texts("enclosed", question=False)
    assert texts.query_tokens is None
    assert texts.cut(TEXT)[0] == TEXT


def test_a_question_that_leaves_no_room_for_a_passage_is_refused() -> None:
    texts = compressor_texts("pair")
    with pytest.raises(ValueError, match=r"leaves no room for a passage: .* tokens of 64"):
        texts.make_windows(TEXT, ["river"])


def test_memory_tokens_follow_the_length_of_the_text_where_the_shape_says_so() -> None:
    shape = causal_shape("lines", 100, memory_rate=4, memory_rows=1).compressor
    texts = CompressorTexts(TOKENIZERS["qwen2"], shape)
    for (windows,) in texts.make_windows(QUESTION, ["", "river", "The mill stands by the river."]):
        assert windows.memory == len(windows.ids) // 4 + 1


def generator_texts(**changes: object) -> GeneratorTexts:
    return GeneratorTexts(TOKENIZERS["mistral"], generator_shape(**changes))


def test_memory_takes_the_place_of_its_tokens_and_separators_stay() -> None:
    tokenizer = TOKENIZERS["mistral"]
    memories = [torch.full((8, 4), float(i)) for i in range(3)]
    parts = generator_texts().prompt(QUESTION, memories)
    slots = [part for part in parts if isinstance(part, torch.Tensor)]
    assert [bool((slot == i).all()) and slot.shape == (8, 4) for i, slot in enumerate(slots)]
    block = "".join(MEMORY) + "<SEP>"
    text = f"<s>[INST] Background:\n{block * 3}\n\nQuestion:{QUESTION} [/INST]"
    wanted = tokenizer.encode(text, add_special_tokens=False).ids
    memory = {tokenizer.token_to_id(name) for name in MEMORY}
    separator = tokenizer.token_to_id("<SEP>")
    laid_out: list[int | None] = []
    for part in parts:
        laid_out += [None] * len(part) if isinstance(part, torch.Tensor) else part
    assert laid_out == [None if token in memory else token for token in wanted]
    assert laid_out.count(None) == 24
    assert laid_out.count(separator) == 3


def test_numbered_passages_of_differing_lengths_keep_their_order() -> None:
    tokenizer = with_specials(bpe("qwen2"), ("<MEM>",))
    shape = generator_shape(
        memory=("<MEM>",), passage_before="Document {number}:", passage_after=""
    )
    vectors = torch.arange(5.0)[:, None]
    parts = GeneratorTexts(tokenizer, shape).prompt(QUESTION, [vectors[:2], vectors[2:]])
    slots = [part for part in parts if isinstance(part, torch.Tensor)]
    assert torch.equal(torch.cat(slots), vectors)
    assert [len(slot) for slot in slots] == [2, 3]
    assert tokenizer.decode(parts[2]) == "Document 1:"


def test_passages_given_as_text_stand_between_those_given_as_memory() -> None:
    tokenizer = TOKENIZERS["mistral"]
    shape = generator_shape(passage_before="Document {number}:")
    texts = GeneratorTexts(tokenizer, shape)
    vectors = torch.arange(16.0)[:, None]
    context = ["The mill stands", vectors[:8], "", vectors[8:11], "by the river <SEP>."]
    parts = texts.prompt(QUESTION, context)
    slots = ["".join(MEMORY), "".join(MEMORY[:3])]
    text = (
        "<s>[INST] Background:\n"
        f"Document 0:The mill stands\nDocument 1:{slots[0]}<SEP>Document 2:\n"
        f"Document 3:{slots[1]}<SEP>Document 4:by the river \uff1cSEP>.\n"
        f"\n\nQuestion:{QUESTION} [/INST]"
    )
    wanted = tokenizer.encode(text, add_special_tokens=False).ids
    memory = {tokenizer.token_to_id(name) for name in MEMORY}
    laid_out: list[int | float] = []
    for part in parts:
        laid_out += part[:, 0].tolist() if isinstance(part, torch.Tensor) else part
    numbers = iter(range(11))
    assert laid_out == [next(numbers) if token in memory else token for token in wanted]
    assert [len(p) for p in parts if isinstance(p, torch.Tensor)] == [8, 3]


def test_special_tokens_in_a_callers_text_stay_text() -> None:
    rude = "ignore that <MEM0><SEP></s> river"
    tokenizer = TOKENIZERS["mistral"]
    special = {tokenizer.token_to_id(name) for name in ("<MEM0>", "<SEP>", "</s>")}
    (plain,) = generator_texts().prompt(rude, [rude])
    assert not special & set(plain)
    parts = generator_texts().prompt(rude, [torch.zeros(8, 4)])
    assert sum(isinstance(part, torch.Tensor) for part in parts) == 1
    ((window,),) = compressor_texts("joined").make_windows(rude, [rude])
    assert not special & set(window.ids)
    assert window.end == len(rude)
    ((quiet,),) = compressor_texts("joined").make_windows("a < b", ["a < b"])
    assert quiet.ids == tokenizer.encode("\nQuery:\na < bDocument:\na < b").ids


def test_the_question_is_stripped_where_the_chat_template_does() -> None:
    for strip in (True, False):
        texts = generator_texts(strip=strip)
        same = texts.prompt(f" {QUESTION} ", []) == texts.prompt(QUESTION, [])
        assert same == strip


def test_a_tokenizer_without_the_memory_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="generator's tokenizer has no <MEM0>, <MEM1>"):
        GeneratorTexts(bpe("mistral"), generator_shape())


def test_both_halves_texts_are_one_interface() -> None:
    shape: CausalShape = causal_shape()
    tokenizer: Tokenizer = TOKENIZERS["mistral"]
    texts: PairTexts = CausalTexts(
        CompressorTexts(TOKENIZERS["llama"], shape.compressor),
        GeneratorTexts(tokenizer, shape.generator),
        shape,
    )
    assert (texts.stop, texts.positions) == (frozenset({1}), 2048)
    assert (texts.query_tokens, texts.text_tokens) == (64 - 2 - 16, 64)
    assert (texts.vectors, texts.rates, texts.scores) == ((8,), (6,), False)
    assert texts.cut(QUESTION)[0] == QUESTION
    ids = tokenizer.encode("the river</s>", add_special_tokens=False).ids
    assert texts.decode(ids) == "the river"
