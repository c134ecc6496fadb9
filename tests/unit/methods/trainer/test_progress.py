import json
import logging
from pathlib import Path

import pytest

from condensery.methods.trainer import progress
from condensery.methods.trainer.checkpoints import TrainingStopped
from condensery.methods.trainer.progress import (
    StagesProgress,
    line,
    read_log,
    record,
    rewind,
)


def test_rows_are_written_and_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    record(tmp_path, {"step": 50, "steps": 3600, "loss": 2.3125, "items": 800})
    record(tmp_path, {"step": 50, "steps": 3600, "validation": {"f1": 12.5}})
    assert read_log(tmp_path) == [
        {"step": 50, "steps": 3600, "loss": 2.3125, "items": 800},
        {"step": 50, "steps": 3600, "validation": {"f1": 12.5}},
    ]
    assert caplog.messages == [
        "step 50/3600 · loss 2.312 · items 800",
        'step 50/3600 · validation {"f1": 12.5}',
    ]


def test_a_line_says_how_long_it_will_take() -> None:
    assert line({"step": 1, "steps": 2, "seconds_left": 4260.0}) == "step 1/2 · 1:11 h left"


def test_a_bar_says_how_long_all_stages_take(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    stages = StagesProgress({"first": 100.0, "second": 300.0})
    stages.begin_step("first", 5, 10)  # a run that was killed before its sixth step
    clock[0] = 300.0
    stages.begin_step("first", 8, 10)  # 30 of the work in 300 s, 320 are left
    clock[0] = 301.0
    stages.begin_step("first", 9, 10)  # too soon
    clock[0] = 500.0
    stages.begin_step("second", 0, 4)
    assert caplog.messages == [
        f"[{'#' * 6}{'.' * 24}] 20% of all stages · 0:53 h left",
        f"[{'#' * 8}{'.' * 22}] 25% of all stages · 0:50 h left",
    ]


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert [row["step"] for row in read_log(tmp_path)] == [1, 2]
    assert [row["step"] for row in rewind(tmp_path, 1)] == [1]
    assert (tmp_path / "log.jsonl").read_text() == json.dumps({"step": 1}) + "\n"


def test_without_a_log_there_are_no_rows(tmp_path: Path) -> None:
    assert read_log(tmp_path) == rewind(tmp_path, 3) == []
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_a_row_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(TrainingStopped, match=r"step 3: .*log\.jsonl"):
        record(tmp_path, {"step": 3, "steps": 4})
