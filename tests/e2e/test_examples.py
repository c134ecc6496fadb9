"""What the README tells people to run, run."""

import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
TOUR = EXAMPLES / "tour.py"


def test_the_tour_visits_every_door_and_finds_them_in_order(live_server: Any) -> None:
    command = [sys.executable, str(TOUR), "--url", live_server.url, "--grpc", live_server.grpc]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" stops, 0 failed")
    assert "left out" not in done.stdout


def test_the_tour_says_which_doors_are_shut(live_server: Any) -> None:
    command = [sys.executable, str(TOUR), "--url", live_server.url, "--grpc", "127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=110)
    assert done.returncode == 1
    assert "  ok   POST /embed: " in done.stdout
    assert "  FAIL gRPC Rag/Answer: " in done.stdout
    assert "gRPC health" in done.stdout.splitlines()[-1]


def test_what_is_read_once_is_answered_from_as_often_as_one_asks(live_server: Any) -> None:
    command = [sys.executable, str(EXAMPLES / "read_once.py"), "--url", live_server.url]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert printed["from the vectors"].strip() == printed["again, streamed"].strip() != ""
    assert printed["rhine"].endswith(" vectors")
    assert printed["agreement"].startswith("F1 ")
