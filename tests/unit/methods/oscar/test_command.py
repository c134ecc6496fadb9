import json
import math
from argparse import Namespace
from pathlib import Path

import pytest
from tiny_pair import tiny_shape

from condensery.errors import InputError
from condensery.methods.oscar.command import beginning, check, main, parser
from condensery.methods.oscar.packs import open_pack
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Mix
from condensery.methods.oscar.sets import Source, load_sets
from condensery.methods.trainer.texts import open_tokenizer

SMALL = [
    *("--query-tokens", "24", "--passage-tokens", "48", "--memory-tokens", "3"),
    *("--mapping-size", "40", "--generator-layers", "3", "--generator-heads", "2"),
    *("--generator-mlp-size", "48", "--generator-positions", "96"),
]


def parsed(*flags: str) -> Namespace:
    return parser().parse_args(list(flags))


def test_every_field_of_recipe_mix_and_shape_is_a_flag(
    base_folder: Path, data_folder: Path
) -> None:
    args = parsed(
        *("--base", str(base_folder), "--data", str(data_folder), "--out", "x", *SMALL),
        *("--steps", "7", "--plain", "0.25", "--cloze", "5", "--score-weight", "0.1"),
    )
    check(args)
    start = beginning(args)
    assert start.pair.shape == tiny_shape(query_tokens=24, passage_tokens=48, generator_layers=3)
    assert start.recipe == Recipe(steps=7, cloze=5, score_weight=0.1)
    assert start.mix == Mix(plain=0.25)


def test_a_pack_is_made_and_its_recipe_can_be_changed(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    flags = ["--base", str(base_folder), "--data", str(data_folder), *SMALL, "--cloze", "5"]
    main([*flags, "--pack", str(tmp_path / "pack"), "--device", "cpu", "--threads", "1"])
    opened = open_pack(tmp_path / "pack")
    assert opened.recipe == Recipe(cloze=5)
    args = parsed("--packed", str(tmp_path / "pack"), "--out", "x", "--steps", "9", "--plain", "0")
    check(args)
    start = beginning(args)
    assert start.recipe == Recipe(cloze=5, steps=9)
    assert start.mix == Mix(plain=0)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--data D --out O", "--base is missing"),
        ("--base B --out O", "--data, or --questions is missing"),
        ("--base B --data D", "--out is missing"),
        ("--packed P", "--out is missing"),
        ("--packed P --out O --data D", "--data: --packed has it already"),
        ("--packed P --out O --generator-layers 6", "--generator-layers: --packed has it already"),
        ("--base B --data D --out O --start S --start-model M", "--start-model: --start names"),
        ("--base B --data D --out O --start S --start-share 0.5", "--start-share: needs"),
        ("--base B --data D --out O --start-model M --start-share 0.5", "--start-share: needs"),
        (
            "--base B --data D --out O --start S --start-model M --start-share 0",
            "--start-share 0.0: must be above 0, to 1",
        ),
        ("--base B --data D --out O --language-model L --start-generator G", "--start-generator: "),
        ("--base B --data D --out O --two-way --language-model L", "--language-model: a two-way"),
        ("--base B --data D --out O --reader R --reader-share 0.5", "--reader-share: needs"),
        ("--base B --data D --out O --start S --reader-share 0.5", "--reader-share: needs"),
        (
            "--base B --data D --out O --start S --reader R --reader-share 1.5",
            "--reader-share 1.5: must be above 0, to 1",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        check(parsed(*flags.split()))


def test_a_shape_that_is_none_is_refused() -> None:
    args = parsed("--base", "B", "--data", "D", "--out", "O", "--memory-tokens", "0")
    with pytest.raises(InputError, match="memory_tokens must be a positive integer"):
        beginning(args)


def test_sources_are_paths_with_shares() -> None:
    assert Source.parse("a/b.jsonl.gz") == Source(Path("a/b.jsonl.gz"), 1.0)
    assert Source.parse("a/b.jsonl:0.25") == Source(Path("a/b.jsonl"), 0.25)
    assert Source.parse("a:b/c.jsonl") == Source(Path("a:b/c.jsonl"), 1.0)
    assert Source.parse("a/b.jsonl.gz").name == "a/b"
    with pytest.raises(InputError, match="share must be above 0"):
        Source.parse("a/b.jsonl:0")


def test_named_questions_are_trained_on_with_their_passages_and_scores(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    rows = [
        {
            "question": "who is the bread?",
            "passages": ["the new market", "a mill of bread", "the old bread"],
            "answers": ["mill"],
            "label": "mill",
            "scores": [-4.5, 3.25, 0.5],
        },
        {"question": "who?", "passages": ["the market"], "answers": ["gone"], "label": "gone"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = open_tokenizer(base_folder)
    squad = Source(data_folder / "squad_v1" / "train_part.jsonl.gz", 1.0)
    sets = load_sets(
        data_folder, tokenizer, cloze=5, seed=3, sources=[Source(path, 3.0), squad], cloze_share=0.2
    )
    assert [round(share, 6) for _, share in sets.sets] == [0.6, 0.2, 0.2]
    (example,) = sets.sets[0][0].examples
    assert (example.passage, example.score) == (1, 3.25)
    assert [other.score for other in example.beside] == [-4.5, 0.5]
    counts = sets.report["sources"][f"{tmp_path.name}/rows"]
    assert counts["left_out"] == {"answer not in passages": 1}
    assert (counts["scored"], counts["examples"]) == (1, 1)
    assert "slope" not in counts  # too few for a fit
    mean = sum(1 / (1 + math.exp(-score)) for score in (-4.5, 3.25, 0.5)) / 3
    assert counts["mean_relevance"] == pytest.approx(mean, abs=1e-4)
    assert counts["hold_an_answer"] == pytest.approx(1 / 3, abs=1e-4)


def test_passages_that_are_held_out_are_taken_out_of_retrieved_ones(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    tokenizer = open_tokenizer(base_folder)
    held = load_sets(data_folder, tokenizer, cloze=1, seed=3).validation[0]
    rows = [
        {
            "question": f"where is the {word}?",
            "passages": passages,
            "answers": ["mill"],
            "label": "mill",
            "scores": [1.0 + i for i in range(len(passages))],
        }
        for word, passages in (
            ("bread", ["a mill", f"{held['context']} mill", "old market"]),
            ("stone", ["new market", f"{held['context']} mill"]),
        )
    ]
    rows.append({**rows[0], "question": held["question"]})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = load_sets(data_folder, tokenizer, cloze=1, seed=3, sources=[Source(path, 1.0)])
    (example,) = sets.sets[0][0].examples
    assert example.score == 1.0
    assert [other.score for other in example.beside] == [3.0]
    assert sets.report["sources"][f"{tmp_path.name}/rows"]["left_out"] == {
        "passage is held out": 2,
        "no passage left": 1,
        "question or article is held out": 1,
    }


def test_a_set_of_which_nothing_is_left_is_named(
    base_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    tokenizer = open_tokenizer(base_folder)
    held = load_sets(data_folder, tokenizer, cloze=1, seed=3).validation[0]
    (tmp_path / "rows.jsonl").write_text(json.dumps(held) + "\n")
    with pytest.raises(InputError, match=r"questions: .*rows\.jsonl: of 1 questions none is left"):
        load_sets(
            data_folder,
            tokenizer,
            cloze=1,
            seed=3,
            sources=[Source.parse(str(tmp_path / "rows.jsonl"))],
        )


def test_a_pair_is_trained_from_rows_of_ones_own_without_a_folder_of_data_sets(
    base_folder: Path, tmp_path: Path
) -> None:
    rows = [
        {"question": f"who keeps mill {n}?", "context": f"bread {n} is old", "answers": [str(n)]}
        for n in range(6)
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--base", str(base_folder), "--questions", str(path), *SMALL, "--smallest", "16"]
    flags += ["--steps", "2", "--tokens", "100", "--device", "cpu", "--threads", "1"]
    main([*flags, "--out", str(tmp_path / "run")])
    data = json.loads((tmp_path / "run" / "data.json").read_text())
    assert data["kept_out"] == "nothing by a run without --data"
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert not any("validation" in json.loads(line) for line in log.splitlines())
    with pytest.raises(InputError, match="cloze=5: cloze questions are made from texts of --data"):
        main([*flags, "--out", str(tmp_path / "other"), "--cloze", "5"])
    with pytest.raises(InputError, match="cloze_only=3: there are no cloze questions"):
        main([*flags, "--out", str(tmp_path / "other"), "--cloze-only", "3"])
