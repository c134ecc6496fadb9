import copy
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_pair import tiny_shape

from condensery.errors import InputError
from condensery.methods.oscar.data import (
    Example,
    QaData,
    RetrievedPassage,
    TrainingSets,
    open_sets,
    save_sets,
)
from condensery.methods.oscar.packs import Start, open_pack, write_pack
from condensery.methods.oscar.preparing import Origins, prepare
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.oscar.sampling import Mix
from condensery.methods.oscar.training import train
from condensery.methods.trainer.checkpoints import latest
from condensery.methods.trainer.method import TrainingSetup

SHAPE = tiny_shape(query_tokens=24, passage_tokens=48, generator_layers=3)
RECIPE = Recipe(steps=3, tokens=200, warmup=1, cloze_only=1, cloze=10, seed=4)
# What a machine may lack that trains from a pack, and what `train` must not ask for.
ABSENT = ("pydantic", "pydantic_core", "starlette", "uvicorn", "faiss", "nanoarrow")
ALONE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from condensery.methods.oscar.command import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def start(base_folder: Path, data_folder: Path) -> Start:
    return prepare(Origins(base_folder), data_folder, SHAPE, RECIPE, mix=Mix(smallest=16))


@pytest.fixture(scope="module")
def pack(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack")
    write_pack(folder, start)
    return folder


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_sets_come_back_as_they_were(tmp_path: Path) -> None:
    pair_group, two = [0, 1], [2]
    beside = (RetrievedPassage(1, 0, 1, -2.0), RetrievedPassage(2))
    data = QaData(
        [
            Example(ids(5), 0, 1, 2, None, 3.5, beside),
            Example(ids(6, 7), 2, 0, 0, ids(9, 9)),
            Example(ids(8), 1, 0, 1),
        ],
        [ids(1, 2, 3), ids(4), ids(5, 6)],
        [pair_group, pair_group, two],
    )
    empty = QaData([], [], [])
    sets = TrainingSets([(data, 0.75), (empty, 0.25)], [{"question": "é?"}], {"some": 1})
    save_sets(tmp_path, sets)
    opened = open_sets(tmp_path)
    assert opened.fingerprint == sets.fingerprint
    assert (opened.validation, opened.report) == (sets.validation, sets.report)
    (read, share), (nothing, _) = opened.sets
    assert share == 0.75
    assert nothing == empty
    assert [p.tolist() for p in read.passages] == [[1, 2, 3], [4], [5, 6]]
    assert read.group == [pair_group, pair_group, two]
    assert read.group[0] is read.group[1]
    first, second, third = read.examples
    assert (first.question.tolist(), first.passage, first.start, first.end) == ([5], 0, 1, 2)
    assert (first.label, first.score) == (None, 3.5)
    assert first.beside[0] == beside[0]
    assert math.isnan(first.beside[1].score)
    assert second.label is not None
    assert (second.question.tolist(), second.label.tolist()) == ([6, 7], [9, 9])
    assert math.isnan(third.score)
    assert third.beside == ()


def test_a_fingerprint_tells_sets_apart(start: Start) -> None:
    sets = start.sets
    (data, share), *others = sets.sets
    first, *rest = data.examples
    scored = replace(data, examples=[replace(first, score=1.0), *rest])
    for other in ((data, share / 2), (replace(data, examples=rest), share), (scored, share)):
        assert TrainingSets([other, *others], [], {}).fingerprint != sets.fingerprint
    assert TrainingSets(list(sets.sets), [], {}).fingerprint == sets.fingerprint


def test_a_pack_holds_all_that_a_run_begins_with(start: Start, pack: Path) -> None:
    opened = open_pack(pack)
    assert (opened.recipe, opened.mix, opened.origin) == (start.recipe, start.mix, start.origin)
    assert opened.pair.shape == SHAPE
    assert opened.sets.fingerprint == start.sets.fingerprint
    for (name, a), b in zip(
        start.pair.state_dict().items(), opened.pair.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0.01, atol=1e-4, msg=name)
    torch.testing.assert_close(
        opened.pair.generator.words, start.pair.generator.words, rtol=2e-3, atol=2e-3
    )


def test_a_run_from_a_pack_ends_as_one_without_but_for_rounding(
    start: Start, pack: Path, tmp_path: Path
) -> None:
    base = replace(start, pair=copy.deepcopy(start.pair))
    whole = train(
        base, tmp_path / "a", limit=20, setup=TrainingSetup(dtype=torch.float32)
    ).own_state()
    packed = train(
        open_pack(pack), tmp_path / "b", limit=20, setup=TrainingSetup(dtype=torch.float32)
    ).own_state()
    for name, value in whole.items():
        torch.testing.assert_close(value, packed[name], rtol=0.1, atol=0.02, msg=name)


@pytest.mark.slow
def test_training_from_a_pack_needs_no_pydantic_no_server_and_no_index(
    pack: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    flags = ["--packed", str(pack), "--out", str(out), "--threads", "1", "--limit", "20"]
    code = ALONE.format(absent=set(ABSENT))
    done = subprocess.run(
        [sys.executable, "-c", code, *flags, "--steps", "2", "--device", "cpu"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    checkpoint = latest(out)
    assert checkpoint is not None
    assert checkpoint.step == 2
    assert json.loads((out / "data.json").read_text())["cloze_examples"] == 10
    assert "train oscar --packed" in (out / "command.txt").read_text()


@pytest.mark.parametrize(
    "name", ["run.json", "start.safetensors", "words.safetensors", "sets.json"]
)
def test_a_damaged_pack_is_named(pack: Path, tmp_path: Path, name: str) -> None:
    for path in pack.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text("{")
    with pytest.raises(InputError, match="packed: ") as raised:
        open_pack(tmp_path)
    assert raised.value.field == "packed"
