"""``condensery eval weights`` on a stored pair."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from condensery.errors import InputError, SettingError
from condensery.methods.oscar.evaluating.asking import Outcome
from condensery.methods.oscar.evaluating.parts import read_parts
from condensery.methods.oscar.measured import check_report
from condensery.methods.oscar.reporting import quality
from condensery.methods.oscar.tables import weights as table
from condensery.methods.oscar.weights import compare, main
from condensery.networks import native, quantised
from condensery.networks.quantised import can_quantise
from condensery.runtime.oscar import OscarModel

EMPTY = Outcome("", 1, 1, 0, 0.5, 0, 8, 20, 1000)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [
        {
            "question": f"When was the mill of town {n} built?",
            "answers": [str(1500 + n)],
            "context": f"The mill of town {n} by the river was built in {1500 + n}.",
        }
        for n in range(6)
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def said(*answers: str) -> list[Outcome]:
    return [replace(EMPTY, answer=answer, place=place) for place, answer in enumerate(answers)]


def test_what_rounding_costs_is_counted_on_the_same_questions() -> None:
    rows: list[Any] = [{"answers": [answer]} for answer in "abcd"]
    figures = compare(rows, {"float": said(*"abcx"), "int8": said(*"abxx"), "int4": said(*"bbcd")})
    assert figures["float"]["em"]["mean"] == 75
    assert "em_lost" not in figures["float"]
    assert figures["int8"] | {"em": 0} == {
        "em": 0,
        "em_lost": 25,
        "em_lost_low_95": 0,
        "em_lost_high_95": 75,
        "changed": 25,
    }
    assert figures["int4"]["em_lost"] == 0
    assert figures["int4"]["changed"] == 50


def test_it_is_measured_and_becomes_a_part_of_a_report(
    store_with_pair: Path,
    questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not can_quantise("int8", torch.device("cpu")):
        pytest.skip("no AVX2, VNNI or AMX")
    monkeypatch.setattr(quantised, "SMALLEST", 1)
    out = tmp_path / "weights.json"
    words = ["--store", str(store_with_pair), "--questions", str(questions), "--weights", "int8"]
    main([*words, "--dtype", "float32", "--out", str(out)])
    content = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == content
    part = content["weights"]
    assert part["questions"] == 6
    assert set(part) == {"questions", "file", "dtype", "smallest", "float", "int8"}
    assert content["made"]["weights"]["command"].startswith("condensery eval weights --store ")
    merged = read_parts([out])
    report = check_report(
        {
            "format": 2,
            "model": "oscar-mini",
            "measured_on": {"questions": 6},
            "settings": {"gold": {"em": 1, "f1": 2}},
            **merged,
        }
    )
    assert report.weights is not None
    measured = quality(report)["generator_weights"]
    assert measured["measured_on"] == "6 questions of questions.jsonl"
    assert measured["dtype"] == "float32"
    assert measured["smallest"] == 1
    assert measured["int8"]["em_lost"] == part["int8"]["em_lost"]
    assert any(line.startswith("| int8 |") for line in table(report.weights))
    # Answers are kept, and asked for once.
    answers = sorted(path.name for path in (tmp_path / "weights.answers").glob("*.jsonl"))
    assert len(answers) == 2
    before = (tmp_path / "weights.answers" / answers[0]).read_bytes()
    main([*words, "--dtype", "float32", "--out", str(out)])
    assert (tmp_path / "weights.answers" / answers[0]).read_bytes() == before
    capsys.readouterr()


@pytest.mark.skipif(not can_quantise("int8", torch.device("cpu")), reason="no products of 8 bits")
def test_a_compressors_are_measured_too_and_are_no_part_of_a_report(
    store_with_pair: Path,
    questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "compressor.json"
    ran: list[str] = []
    load = OscarModel.load

    def noted(*args: Any, **how: Any) -> OscarModel:
        model = load(*args, **how)
        ran.append(model.info.dtype)
        return model

    monkeypatch.setattr(OscarModel, "load", noted)
    words = ["--store", str(store_with_pair), "--questions", str(questions), "--dtype", "float32"]
    main([*words, "--weights", "int8", "--out", str(out)])  # the generator's, kept beside
    capsys.readouterr()
    main([*words, "--of", "compressor", "--out", str(out)])
    assert ran == ["float32", "float32, generator int8", "float32", "float32, compressor int8"]
    content = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == content
    part = content["compressor_weights"]
    assert set(part) == {"questions", "file", "dtype", "float", "int8"}
    answers = out.with_name("compressor.answers")
    kept = sorted(path.stem for path in answers.glob("*.jsonl"))
    assert len(kept) == 3
    assert sum("compressor-int8" in name for name in kept) == 1
    with pytest.raises(InputError, match="holds neither of"):
        read_parts([out])
    with pytest.raises(InputError, match="weights: 'int4' is not one of float, int16, int8"):
        main([*words, "--of", "compressor", "--weights", "int4"])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--weights", "int8,int2"], "weights.*int2"),
        (["--count", "0"], "count: 0 is less than 1"),
        (["--out", "/nowhere/at/all.json"], "out: /nowhere/at is no folder"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    store_with_pair: Path, questions: Path, more: list[str], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        main(["--store", str(store_with_pair), "--questions", str(questions), *more])


def test_what_this_cpu_is_not_for_is_refused_before_floats_are_asked(
    store_with_pair: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_is_vnni_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    monkeypatch.setattr(native, "has_words", lambda: False)
    out = tmp_path / "weights.json"
    words = ["--store", str(store_with_pair), "--questions", str(questions), "--out", str(out)]
    with pytest.raises(SettingError, match="'int8' is for a CPU with"):
        main(words)
    assert not list(tmp_path.glob("weights.answers/*.jsonl"))


def test_questions_need_their_passages(store_with_pair: Path, tmp_path: Path) -> None:
    path = tmp_path / "bare.jsonl"
    path.write_text(json.dumps({"question": "When?", "answers": ["then"]}) + "\n")
    with pytest.raises(InputError, match="each needs its passage"):
        main(["--store", str(store_with_pair), "--questions", str(path)])
