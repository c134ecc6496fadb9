import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from condensery.agreement import exact_match, f1_score
from condensery.errors import InputError
from condensery.methods.oscar.evaluating.measuring import choose_passages
from condensery.methods.oscar.evaluating.questions import sample_questions
from condensery.methods.oscar.evaluating.settings import FIXED
from condensery.methods.reader.evaluation import main, measure
from condensery.methods.reader.recipe import ReaderRecipe
from condensery.methods.reader.span_reader import BestSpan
from condensery.methods.reader.training import train
from condensery.methods.trainer.method import TrainingSetup


class Noting:
    """Says the first word of the last passage; notes what it is given, and may stop."""

    def __init__(self, stop_after: int = 10_000) -> None:
        self.given: list[tuple[str, tuple[str, ...]]] = []
        self._stop_after = stop_after

    def read(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[BestSpan]:
        if len(self.given) >= self._stop_after:
            raise KeyboardInterrupt
        self.given += [(q, tuple(texts)) for q, texts in zip(questions, passages, strict=True)]
        return [
            BestSpan(texts[-1].split()[0], len(texts) - 1, len(texts) - 3.0) for texts in passages
        ]


def test_it_reads_the_very_same_passages_as_eval_oscar(questions: Path, tmp_path: Path) -> None:
    sampled = sample_questions(questions, 60, seed=17)
    reader: Any = Noting()
    figures = measure(reader, sampled, 17, tmp_path / "work", {})
    theirs = choose_passages(sampled.rows, FIXED, 17, {})  # with all that eval oscar asks
    asked = [row["question"] for row in sampled.rows]
    for source in ("gold", "five", "others"):
        for question, texts in zip(asked, theirs.passages[source], strict=True):
            assert (question, tuple(texts)) in reader.given
    assert len(reader.given) == 3 * len(asked)
    predicted = [texts[-1].split()[0] for texts in theirs.passages["five"]]
    golds = [row["answers"] for row in sampled.rows]
    for name, measured in (("em", exact_match), ("f1", f1_score)):
        scores = [100 * measured(a, gold) for a, gold in zip(predicted, golds, strict=True)]
        mean = sum(scores) / len(scores)
        interval = figures["gold_among_five"][name]
        assert interval["mean"] == pytest.approx(mean, abs=0.01)
        assert interval["low"] <= interval["mean"] <= interval["high"]
    assert figures["gold"]["no_answer"] == 100
    assert figures["gold_among_five"]["no_answer"] == 0
    last = [at == 4 for at in theirs.gold_at]
    assert figures["gold_among_five"]["read_from_gold"] == pytest.approx(
        100 * sum(last) / len(last), abs=0.01
    )
    other = Noting()
    assert measure(other, sampled, 18, tmp_path / "other", {})  # type: ignore[arg-type]
    assert set(other.given) != set(reader.given)


def test_an_evaluation_that_is_stopped_goes_on_and_says_the_same(
    questions: Path, tmp_path: Path
) -> None:
    sampled = sample_questions(questions, 40, seed=1)
    readers: list[Any] = [Noting(), Noting(stop_after=60), Noting()]
    whole = measure(readers[0], sampled, 1, tmp_path / "whole", {"model": "a"})
    with pytest.raises(KeyboardInterrupt):
        measure(readers[1], sampled, 1, tmp_path / "cut", {"model": "a"})
    assert measure(readers[2], sampled, 1, tmp_path / "cut", {"model": "a"}) == whole
    count = [len(reader.given) for reader in readers]
    assert count[0] == count[1] + count[2]
    assert count[1] > 0
    with pytest.raises(InputError, match="another model"):
        measure(readers[2], sampled, 1, tmp_path / "cut", {"model": "b"})


def test_questions_without_a_passage_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "open.jsonl"
    path.write_text('{"question": "who?", "answers": ["me"]}\n')
    reader: Any = Noting()
    with pytest.raises(InputError, match="not every question has its passage"):
        measure(reader, sample_questions(path, 1, 1), 1, tmp_path / "work", {})


def test_the_command_writes_the_report_s_part(
    base: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = ReaderRecipe(steps=1, tokens=100, passage_tokens=40, query_tokens=16, smallest=8)
    run = tmp_path / "run"
    train(
        base,
        [questions],
        run,
        recipe,
        setup=TrainingSetup(device=torch.device("cpu"), dtype=torch.float32),
    )
    command = ["--run", str(run), "--questions", str(questions), "--count", "20"]
    with pytest.raises(InputError, match=r"out: .* is no folder"):
        main([*command, "--work", str(tmp_path / "work"), "--out", str(tmp_path / "no" / "part")])
    assert not (tmp_path / "work").exists()
    out = tmp_path / "part.json"
    main([*command, "--work", str(tmp_path / "work"), "--dtype", "float32", "--out", str(out)])
    part = json.loads(out.read_text())
    assert part == json.loads(capsys.readouterr().out)
    figures = part["baselines"]["extractive_reader"]
    assert list(figures) == ["gold", "gold_among_five", "others_passages"]
    assert figures["gold"]["questions"] == 20
