import random

import pytest
from tiny_pair import tiny_tokenizer

from condensery.methods.oscar.sets import make_cloze, ragged

TOKENIZER = tiny_tokenizer()
TEXT = (
    "The old mill stands on the river. In spring the town of Brenn Hollow sold it to Maria Teller "
    "for 1,250 coins. Nobody knew why. It was then rebuilt by the Guild of Stonebreakers. "
    "All of its bread was eaten in 1912 by the market people."
)
FACTS = {"Brenn Hollow", "Maria Teller", "1,250 coins", "Guild of Stonebreakers", "1912 by"}


@pytest.mark.parametrize("seed", range(30))
def test_the_span_asked_for_is_a_fact_of_the_passage(seed: int) -> None:
    made = make_cloze(TEXT, 7, TOKENIZER, random.Random(seed))
    assert made is not None
    passage, example = made
    encoded = TOKENIZER.encode(TEXT, add_special_tokens=False)
    assert passage.tolist() == encoded.ids
    assert example.passage == 7
    span = encoded.offsets[example.start][0], encoded.offsets[example.end - 1][1]
    assert TEXT[span[0] : span[1]] in FACTS
    assert example.end - example.start <= 12
    assert 0 < len(example.question) <= 48


def test_every_fact_that_is_short_enough_gets_asked_for() -> None:
    asked = set()
    encoded = TOKENIZER.encode(TEXT, add_special_tokens=False)
    for seed in range(200):
        made = make_cloze(TEXT, 0, TOKENIZER, random.Random(seed))
        assert made is not None
        example = made[1]
        asked.add(TEXT[encoded.offsets[example.start][0] : encoded.offsets[example.end - 1][1]])
    # In letters, the guild's name is over 12 pieces.
    assert asked == FACTS - {"Guild of Stonebreakers"}


@pytest.mark.parametrize(
    "text", ["", "Too Short.", "no fact stands in this lower text at all.", "Only The First Here."]
)
def test_a_text_without_a_fact_makes_no_question(text: str) -> None:
    assert make_cloze(text, 0, TOKENIZER, random.Random(0)) is None


def test_the_same_seed_makes_the_same_question() -> None:
    questions = []
    for seed in (5, 5, 6):
        made = make_cloze(TEXT, 0, TOKENIZER, random.Random(seed))
        assert made is not None
        questions.append(made[1].question.tolist())
    assert questions[0] == questions[1] != questions[2]


@pytest.mark.parametrize("fact", ["Maria Teller", "1912"])
def test_a_question_is_asked_with_words_of_the_sentence_in_order(fact: str) -> None:
    before, after = [f"b{i}" for i in range(20)], [f"a{i}" for i in range(20)]
    for seed in range(50):
        question = ragged(before, after, fact, random.Random(seed))
        assert question.endswith("?")
        assert fact not in question
        words = question[:-1].split()
        for side in (before, after):
            kept = [word for word in words if word in side]
            assert kept == sorted(kept, key=side.index)
        asks = " ".join(word for word in words if word not in before + after)
        assert asks in {
            *("when", "how many", "what year", "how much", "what"),
            *("who", "which", "where", "what is the name of"),
        }
        assert fact[0].isdigit() or asks not in {"when", "how many", "what year", "how much"}
