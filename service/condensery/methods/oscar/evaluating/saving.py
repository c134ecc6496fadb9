"""Answers as they come, in a folder, so that a killed evaluation goes on where it was."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from condensery.atomic_files import write_atomically
from condensery.errors import DataDirTaken, InputError
from condensery.index.lock import DataDirLock
from condensery.methods.oscar.evaluating.asking import Outcome
from condensery.methods.trainer.trainer import differences

ABOUT, JUDGED = "about.json", "judged.jsonl"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a folder of answers; made if it is not there.

    Raises:
        InputError: One does, or the folder can't be used.
    """
    try:
        lock = DataDirLock(folder)
    except DataDirTaken as error:
        raise InputError(
            f"out: {folder} can't be written to, or another evaluation is writing to it",
            field="out",
            value=str(folder),
        ) from error
    with lock:
        yield


class Answers:
    """A folder of answers: a JSONL file for each way to ask (``Setting.asks``).

    A line is an ``Outcome``, flushed as it is written: a kill loses what was under way. Lines are
    kept across runs of the same evaluation, whatever settings each asks for.

    Args:
        folder: Made if it is not there.
        about: What answers depend on beside the setting. A later run may add to it, and must not
            contradict it.

    Raises:
        InputError: The folder holds another evaluation's answers; names what differs.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / ABOUT
        try:
            stored = json.loads(path.read_text()) if path.exists() else {}
            shared = {name: value for name, value in about.items() if name in stored}
            differing = differences(shared, stored)
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is damaged: {error}; remove {folder}") from error
        if differing:
            raise InputError(
                f"{folder} holds the answers of another evaluation ({'; '.join(differing)}): give "
                "another --out, or remove it",
                field="out",
                value=str(folder),
            )
        write_atomically(path, json.dumps({**stored, **about}, indent=1) + "\n")

    def outcomes(self, asks: str) -> dict[int, Outcome]:
        """Return what was answered so far, by the question's place."""
        rows = self._rows(f"{asks}.jsonl")
        try:
            return {row["place"]: Outcome(**row) for row in rows}
        except (TypeError, KeyError) as error:
            raise InputError(
                f"{self._folder / asks}.jsonl is of another version ({error}); remove "
                f"{self._folder}"
            ) from error

    @contextmanager
    def adding(self, asks: str) -> Iterator[Callable[[Outcome], None]]:
        """Yield what takes one more answer."""
        with self._appending(f"{asks}.jsonl") as write:
            yield lambda outcome: write(asdict(outcome))

    def judgements(self) -> dict[tuple[int, str], float]:
        """Return the scores given so far, by the question's place and the answer."""
        return {(row["place"], row["answer"]): row["score"] for row in self._rows(JUDGED)}

    @contextmanager
    def judging(self) -> Iterator[Callable[[int, str, float], None]]:
        """Yield what takes one more judgement: the question's place, the answer, its score."""
        with self._appending(JUDGED) as write:
            yield lambda place, answer, score: write(
                {"place": place, "answer": answer, "score": score}
            )

    def _rows(self, name: str) -> list[dict[str, Any]]:
        """Return a file's rows; a last line that a kill cut short is left out."""
        path = self._folder / name
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise InputError(f"{path} is damaged: {error}; remove it") from error

    @contextmanager
    def _appending(self, name: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        path = self._folder / name
        if path.exists():
            content = path.read_bytes()
            if not content.endswith(b"\n"):  # a kill cut the last line short
                with path.open("r+b") as damaged:
                    damaged.truncate(content.rfind(b"\n") + 1)
        with path.open("a") as file:

            def write(row: Mapping[str, Any]) -> None:
                file.write(json.dumps(row) + "\n")
                file.flush()

            yield write
