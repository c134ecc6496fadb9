import gzip
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.methods.oscar.conftest import write_gz
from tiny_pair import tiny_tokenizer

from condensery.errors import InputError
from condensery.methods.oscar.sets import Source, load_sets, paragraphs

TOKENIZER = tiny_tokenizer()


def read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def test_sets_come_with_shares_that_sum_to_one(data_folder: Path) -> None:
    sets = load_sets(data_folder, TOKENIZER, cloze=25, seed=3)
    assert sum(share for _, share in sets.sets) == pytest.approx(1)
    assert [len(data.examples) for data, _ in sets.sets] == [24, 10, 10, 25]
    assert sets.report["cloze_examples"] == 25
    assert sets.report["squad_v1/train_part_examples"] == 24


def test_four_articles_are_held_out_whole_for_validation(data_folder: Path) -> None:
    sets = load_sets(data_folder, TOKENIZER, cloze=1, seed=3)
    titles = {row["title"] for row in sets.validation}
    assert len(titles) == 4
    assert len(sets.validation) == 24
    trained = {tuple(passage.tolist()) for data, _ in sets.sets for passage in data.passages}
    assert not trained & {tuple(ids_of(row["context"])) for row in sets.validation}
    others = {row["title"] for row in load_sets(data_folder, TOKENIZER, cloze=1, seed=4).validation}
    assert titles != others


def test_text_of_the_evaluation_set_is_left_out_everywhere(data_folder: Path) -> None:
    sets = load_sets(data_folder, TOKENIZER, cloze=200, seed=3)
    assert sets.report["sources"]["qamr/train"]["left_out"] == {
        "passage is held out": 1,
        "no passage left": 1,
    }
    assert sets.report["wikipedia_left_out"] == 1
    assert sets.report["wikipedia_kept"] == 20  # neither of the dev article nor of squad_dev
    (dev,) = read(data_folder / "squad_v1" / "dev.jsonl.gz")
    words = dev["context"].removesuffix(".").split()[1:]
    runs = {tuple(ids_of(" ".join(words[i : i + 10]))) for i in range(len(words) - 9)}
    assert runs
    for data, _ in sets.sets:
        for passage in data.passages:
            text = " ".join(map(str, passage))
            assert not any(" ".join(map(str, run)) in text for run in runs)
    names = {tuple(ids_of("Brenn Hollow"))}
    answers = {
        tuple(data.passages[e.passage][e.start : e.end].tolist())
        for data, _ in sets.sets
        for e in data.examples
    }
    assert not names & answers


def test_articles_of_the_evaluation_set_are_left_out_whatever_their_text(
    data_folder: Path, tmp_path: Path
) -> None:
    held = load_sets(data_folder, TOKENIZER, cloze=1, seed=3).validation[0]["title"]
    rows = [
        # Neither question nor text is held out: the title alone says whose article it is.
        {"question": f"who keeps mill {number}?", "context": f"bread {number} is old",
         "answers": [str(number)], "answer_start": [6], "title": title}
        for number, title in enumerate(
            ("Dev_article", "dev article", held, held.replace("_", " ").upper(), "Some other", "")
        )
    ]  # fmt: skip
    path = tmp_path / "more.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = load_sets(data_folder, TOKENIZER, cloze=1, seed=3, sources=[Source(path, 1.0)])
    name = f"{tmp_path.name}/more"
    assert sets.report["sources"][name]["left_out"] == {"question or article is held out": 4}
    (data, _), _cloze = sets.sets
    assert {tuple(passage.tolist()) for passage in data.passages} == {
        tuple(ids_of(f"bread {number} is old")) for number in (4, 5)
    }


def test_the_same_seed_gives_the_same_sets(data_folder: Path) -> None:
    first, again = (load_sets(data_folder, TOKENIZER, cloze=10, seed=3) for _ in range(2))
    for (a, _), (b, _) in zip(first.sets, again.sets, strict=True):
        assert len(a.examples) == len(b.examples)
        for x, y in zip(a.examples, b.examples, strict=True):
            assert (x.passage, x.start, x.end) == (y.passage, y.start, y.end)
            assert np.array_equal(x.question, y.question)


def test_paragraphs_are_neither_titles_nor_too_short_nor_too_long(tmp_path: Path) -> None:
    good = "word " * 30
    (tmp_path / "text.txt").write_text(f"= {good}=\n{good}\nshort\n{'word ' * 251}\n")
    assert list(paragraphs(tmp_path / "text.txt")) == [good.strip()]


def test_a_bad_line_of_a_set_is_named(data_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data_folder, tmp_path / "data"))
    path = folder / "qamr" / "train.jsonl.gz"
    with gzip.open(path, "at") as file:
        file.write("{broken\n")
    with pytest.raises(InputError, match=r"qamr.train\.jsonl\.gz, line 12"):
        load_sets(folder, TOKENIZER, cloze=1, seed=3)


def test_rows_that_only_name_their_gold_are_ranked_and_kept_apart_from_evaluation_text(
    data_folder: Path, tmp_path: Path
) -> None:
    dev = read(data_folder / "squad_v1" / "dev.jsonl.gz")[0]["context"]
    path = tmp_path / "claims.jsonl"
    rows = [
        {
            "question": "Maria kept a mill",
            "passages": ["a mill of stone", dev, "bread"],
            "gold": [2],
        },
        {"question": "Maria kept no mill", "passages": ["a mill", dev], "gold": [1]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = load_sets(data_folder, TOKENIZER, cloze=5, seed=3, sources=[Source(path, 1.0)])
    (data, _), _cloze = sets.sets
    (example,) = data.examples
    assert example.ranked_only
    assert data.passages[example.passage].tolist() == ids_of("bread")
    assert [data.passages[place.passage].tolist() for place in example.beside] == [
        ids_of("a mill of stone")
    ]
    name = f"{tmp_path.name}/claims"
    assert sets.report["sources"][name]["left_out"] == {
        "passage is held out": 2,
        "no passage left": 1,
    }


def write_own(path: Path, count: int = 6) -> Source:
    rows = [
        {"question": f"who keeps mill {n}?", "context": f"bread {n} is old", "answers": [str(n)]}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(path, 1.0)


def test_rows_of_ones_own_need_no_folder(tmp_path: Path) -> None:
    own = write_own(tmp_path / "own.jsonl")
    sets = load_sets(None, TOKENIZER, cloze=0, cloze_share=0, seed=3, sources=[own])
    (data, share), (cloze, none) = sets.sets
    assert (len(data.examples), share) == (6, 1)
    assert (cloze.examples, none) == ([], 0)
    assert sets.validation == []
    assert sets.report["kept_out"] == "nothing by a run without --data"
    assert "cloze_examples" not in sets.report


def test_texts_are_read_only_where_cloze_questions_are_made(
    data_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(data_folder / "squad_v1", tmp_path / "squad_v1")
    own = write_own(tmp_path / "own.jsonl")
    sets = load_sets(tmp_path, TOKENIZER, cloze=0, cloze_share=0, seed=3, sources=[own])
    assert len(sets.validation) == 24
    assert "kept_out" not in sets.report
    with pytest.raises(InputError, match=r"wikipedia_passages.passages\.jsonl\.gz, after line 0"):
        load_sets(tmp_path, TOKENIZER, cloze=5, seed=3, sources=[own])


def test_what_the_folder_lacks_is_named(data_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data_folder, tmp_path / "data"))
    own = write_own(tmp_path / "own.jsonl")

    def refuses(says: str, where: Path | None = folder, **options: float) -> None:
        asked: dict[str, Any] = {"cloze": 5, "seed": 3, "sources": [own]} | options
        with pytest.raises(InputError, match=says):
            load_sets(where, TOKENIZER, **asked)

    refuses("data: without it, questions", None, cloze=0, sources=[])
    refuses("cloze=5: cloze questions are made from texts of --data", None)
    refuses(r"cloze_share=0\.3: there are no cloze questions", cloze=0)
    passages, books = folder / "wikipedia_passages/passages.jsonl.gz", folder / "openstax"
    write_gz(passages, [{"title": "A", "text": "no fact", "source": "own"}])
    (books / "train.txt.xz").write_bytes(lzma.compress(b""))
    refuses("cloze=5: of 1 texts of .* none holds a fact")
    write_gz(passages, [{"title": "A", "text": "no fact"}])
    refuses(r"passages\.jsonl\.gz, line 1: source: must be a string")
    squad = folder / "squad_v1" / "train_part.jsonl.gz"
    write_gz(squad, [row for row in read(squad) if row["title"] < "Article_D"])
    refuses(r"train_part\.jsonl\.gz: rows of 3 titles, and those of 4 are held out")
