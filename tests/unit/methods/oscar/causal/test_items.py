from pathlib import Path
from typing import Any

import pytest
from tiny_causal_training import some_rows, write_rows

from condensery.errors import InputError
from condensery.methods.oscar.causal.building import Bases, PairSources
from condensery.methods.oscar.causal.items import Batches, Chunks, Item, Questions
from condensery.methods.oscar.causal.recipe import CausalRecipe
from condensery.methods.trainer.method import Draw
from condensery.methods.trainer.questions import Rules, TrainingQuestion, read_questions

RECIPE = CausalRecipe(passages=2, batch=4, rows=4)


@pytest.fixture
def made(kinds: dict[str, PairSources]) -> Bases:
    return Bases(kinds["first layers"])


def question(**fields: Any) -> TrainingQuestion:
    row: dict[str, Any] = {"question": "Who?", "passages": ("One.",), "answers": (), "title": ""}
    return TrainingQuestion(**{**row, "label": "She.", "where": "f, line 1", **fields})


def questions(bases: Bases, folder: Path, recipe: CausalRecipe = RECIPE) -> Questions:
    rows, _ = read_questions([write_rows(folder / "rows.jsonl", some_rows(10))], Rules())
    return Questions(rows, bases, recipe)


def test_an_item_is_what_serving_reads_and_the_label_with_its_end(
    made: Bases, tmp_path: Path
) -> None:
    item = questions(made, tmp_path).item(1)
    row = some_rows(2)[1]
    assert len(item.readings) == 2  # of three passages
    assert item.question == row["question"]
    assert made.texts.cut(row["question"])[1] > made.shape.compressor.query_tokens
    wanted = made.texts.make_windows(row["question"], row["passages"][:2])
    assert all(window in windows for window, windows in zip(item.readings, wanted, strict=True))
    assert item.scores == tuple(row["scores"][:2])
    assert made.tokenizer.decode(list(item.label[:-1])) == row["label"]
    assert item.label[-1] == made.tokenizer.token_to_id("</s>")
    assert "rows.jsonl, line 2" in item.name


def test_of_a_long_passage_the_window_with_an_answer_is_read(made: Bases) -> None:
    long = "The mill stands by the river. " * 8 + "Anna built it. " + "Nobody knows the road. " * 8
    windows = made.texts.make_windows("Who?", [long])[0]
    texts = [long[window.start : window.end] for window in windows]
    (wanted,) = [i for i, text in enumerate(texts) if "Anna" in text][:1]
    nobody = next(i for i, text in enumerate(texts) if "Nobody" in text)
    assert 0 < wanted <= nobody < len(windows) - 1
    for label, answers, place in (
        ("anna", (), wanted), ("She.", ("ANNA",), wanted), ("nobody", (), nobody), ("Bert", (), 0),
    ):  # fmt: skip
        row = question(passages=(long,), label=label, answers=answers)
        (chosen,) = Questions([row], made, RECIPE).item(0).readings
        assert chosen == windows[place]


def test_special_tokens_in_a_label_are_text(made: Bases) -> None:
    label = Questions([], made, RECIPE).label("a <MEM0> b </s>")
    special = {made.tokenizer.token_to_id(name) for name in ("<MEM0>", "</s>")}
    assert not special & set(label[:-1])
    assert label[-1] in special


def test_plain_passages_are_read_as_far_as_compressed_ones_and_as_fit(
    bases: dict[str, Path],
) -> None:
    made = Bases(PairSources(bases["mistral"], layers=1, passage_tokens=16, query_tokens=8))
    long = "The mill stands by the river. " * 40
    asked = Questions([question(passages=(long, "Two."))], made, RECIPE)
    compressed, plain = asked.item(0), asked.item(0, plain=True)
    assert (plain.readings, plain.scores, plain.label) == ((), None, compressed.label)
    (reading, _) = compressed.readings
    assert plain.texts == (long[reading.start : reading.end], "Two.")
    assert len(plain.texts[0]) < len(long)
    # Fewer positions: the last passages, the worst, are left out.
    frame = sum(map(len, made.texts.prompt("Who?", [])))
    tight = PairSources(
        bases["mistral"], layers=1, passage_tokens=16, query_tokens=8, positions=frame + 48
    )
    recipe = CausalRecipe(passages=2, label_tokens=4)
    few = Questions([question(passages=(long, long))], Bases(tight), recipe).item(0, plain=True)
    assert len(few.texts) == 1


def test_a_prompt_that_can_not_fit_is_refused_before_training(bases: dict[str, Path]) -> None:
    made = Bases(PairSources(bases["mistral"], layers=1, positions=100, query_tokens=8))
    asked = [question(passages=("a", "b", "c"))]
    with pytest.raises(InputError, match=r"passages=3: .* positions, the generator has 100"):
        Questions(asked, made, CausalRecipe(label_tokens=64))
    Questions(asked, made, CausalRecipe(label_tokens=4, passages=1))


def test_batches_see_each_row_once_an_epoch_whatever_draws_them(
    made: Bases, tmp_path: Path
) -> None:
    source = questions(made, tmp_path)

    def drawn(steps: range, parts: int) -> list[Item]:
        batches = Batches(source, CausalRecipe(batch=8, rows=8 // parts, plain=0.0))
        return [
            item
            for step in steps
            for part in range(parts)
            for item in batches(Draw(13, step, part, parts))
        ]

    names = [item.name for item in drawn(range(5), 1)]
    for epoch in range(4):
        assert len(set(names[10 * epoch : 10 * epoch + 10])) == 10
    assert names[:10] != names[10:20]
    assert [item.name for item in drawn(range(5), 2)] == names
    assert [item.name for item in drawn(range(3, 5), 1)] == names[24:]


def test_a_share_of_the_questions_is_plain(made: Bases, tmp_path: Path) -> None:
    source = questions(made, tmp_path)
    for share, least, most in ((0.0, 0, 0), (0.3, 30, 95), (1.0, 200, 200)):
        batches = Batches(source, CausalRecipe(batch=4, rows=4, plain=share))
        items = [item for step in range(50) for item in batches(Draw(13, step))]
        assert least <= sum(bool(item.texts) for item in items) <= most


DOCUMENT = "Who built the stone bridge? It is 1,200 kilometres long and ends in a delta. " * 4


def test_chunks_are_said_again_or_continued(made: Bases) -> None:
    chunks = Chunks(["too short", DOCUMENT], made, CausalRecipe(stage="pretrain", label_tokens=9))
    assert len(chunks) == 3
    again, continued = chunks.item(1, part=0.9), chunks.item(1, part=0.1)
    (reading,) = again.readings
    assert reading == continued.readings[0]
    tokens = made.reading.encode(DOCUMENT, add_special_tokens=False)
    piece = DOCUMENT[tokens.offsets[24][0] : tokens.offsets[47][1]]
    assert made.tokenizer.decode(list(again.label[:-1])).strip() == piece.strip()
    assert again.label[-1] == made.end
    assert len(continued.label) == 9
    rest = DOCUMENT[tokens.offsets[47][1] :]
    assert rest.strip().startswith(made.tokenizer.decode(list(continued.label)).strip()[:12])
    start, separator, autoencode = (
        made.tokenizer.token_to_id(name) for name in ("<s>", "<SEP>", "<AE>")
    )
    assert again.frame == ((start,), (separator, autoencode))
    assert continued.frame == ((start,), (separator,))


def test_text_that_makes_no_chunk_is_refused(made: Bases) -> None:
    with pytest.raises(InputError, match=r"text: no document is longer than a piece"):
        Chunks(["too short"], made, RECIPE)


def test_chunks_that_can_not_be_said_again_are_refused(bases: dict[str, Path]) -> None:
    made = Bases(PairSources(bases["mistral"], layers=1, passage_tokens=64, positions=40))
    with pytest.raises(InputError, match=r"passage_tokens=64: .* positions, the generator has 40"):
        Chunks([DOCUMENT], made, CausalRecipe(stage="pretrain", label_tokens=9))
