"""What the loads send: the sample index's questions and passages."""

import json
from pathlib import Path

SAMPLES = Path(__file__).resolve().parents[1] / "service" / "condensery" / "samples"
LONG = 520  # characters: about 115 tokens


def _read(name: str) -> list[dict[str, str]]:
    lines = (SAMPLES / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


QUESTIONS = [line["question"] for line in _read("questions.jsonl")]
PASSAGES = [line["text"] for line in _read("passages.jsonl")]
SAMPLE_IDS = {line["id"] for line in _read("passages.jsonl")}


def long_passages(count: int) -> list[str]:
    """Return so many different passages of about 115 tokens each."""
    whole = " ".join(PASSAGES)
    step = (len(whole) - LONG) // max(1, count)
    return [whole[start : start + LONG] for start in range(0, count * step, step)][:count]
