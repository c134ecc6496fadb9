import json
from pathlib import Path
from typing import Any

import pytest
import torch

from condensery.errors import InputError
from condensery.methods.oscar.evaluating.parts import (
    machine,
    read_parts,
    training_curve,
)


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_parts_are_merged_by_data_set_and_reader(tmp_path: Path) -> None:
    scifact = {"rerank": {"scifact": {"queries": 3}}, "format": 2}
    both = {
        "rerank": {"squad": {"queries": 4}},
        "baselines": {"extractive_reader": {"gold": 1}},
        "made": {"extractive_reader": {"command": "condensery eval extractive-reader"}},
    }
    paths = [write(tmp_path / "a", scifact), write(tmp_path / "b", both)]
    assert read_parts([*paths, paths[0]]) == {
        "rerank": {"scifact": {"queries": 3}, "squad": {"queries": 4}},
        "baselines": both["baselines"],
        "made": both["made"],
    }
    assert read_parts([]) == {}
    other = write(tmp_path / "c", {"rerank": {"squad": {"queries": 5}}})
    with pytest.raises(InputError, match=r"c: rerank\.squad\.queries is in an earlier part"):
        read_parts([*paths, other])


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"settings": {}}', '{"rerank": 3}', '{"made": {}}']
)
def test_a_file_that_is_no_part_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "part.json").write_text(content)
    with pytest.raises(InputError, match=r"part: .*part\.json"):
        read_parts([tmp_path / "part.json"])
    with pytest.raises(InputError, match=r"part: .*gone\.json"):
        read_parts([tmp_path / "gone.json"])


def test_the_training_curve_is_the_validations_with_the_items_seen(tmp_path: Path) -> None:
    rows = [
        {"step": 50, "steps": 200, "answer": 2.0, "items": 800},
        {"step": 100, "steps": 200, "answer": 1.0, "items": 1600},
        {
            "step": 100,
            "steps": 200,
            "validation": {"gold": {"em": 3.0, "f1": 9.5}, "first": 0.5, "samples": ["a -> b"]},
        },
        {"step": 200, "steps": 200, "items": 3200},
        {"step": 200, "steps": 200, "validation": {"gold": {"em": 4.0, "f1": 10.0}}},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert training_curve(tmp_path) == [
        {"step": 100, "items": 1600, "gold": {"em": 3.0, "f1": 9.5}, "first": 0.5},
        {"step": 200, "items": 3200, "gold": {"em": 4.0, "f1": 10.0}},
    ]
    with pytest.raises(InputError, match=r"log\.jsonl has no validation"):
        training_curve(tmp_path / "elsewhere")


def test_the_machine_is_told_by_what_it_computes_with() -> None:
    description = machine(torch.device("cpu"), torch.float32)
    assert description.endswith("threads, float32")
