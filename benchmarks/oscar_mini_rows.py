"""Rows for a pair such as `oscar-mini`, made of the data sets: SQuAD in other words, and mined.

    python benchmarks/oscar_mini_rows.py sets --data DATA --out ROWS
    condensery distil oscar --questions ... ROWS/squad_v2_roundtrip/part.jsonl --out found.jsonl ...
    condensery distil oscar --questions ROWS/squad_v2_roundtrip/rest.jsonl --out rest.jsonl ...
    python benchmarks/oscar_mini_rows.py mined --found found.jsonl --out ROWS/mined/squad.jsonl

``sets`` gives the translated SQuAD its articles' numbers as titles, so that passages of the same
article are known, and the translated wording of each question: only the unanswerable ones have no
other, so the wording would tell. What is searched with in people's own wording (``rest``) comes
with passages that do not answer it, so that nothing is told there. ``mined`` puts the gold passage
first, and leaves out passages that are gold's in other words (the same paragraph, translated),
since those answer too.
"""

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SET = "squad_v2_roundtrip"
ASKED_OF_SEARCH = 24_000  # rows of the translated set, in translated wording
ALIKE = 0.4  # words shared of all words, from which on a passage is another's translation
SEED = 13
WORD = re.compile(r"\w+")

Rows = Iterable[dict[str, Any]]


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a file's rows."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write(path: Path, rows: Rows) -> None:
    """Write rows, and say how many."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {len(lines)} rows")


def reworded(row: dict[str, Any], *, question: str = "question_bt") -> dict[str, Any]:
    """Return a translated row with its article as title, and its question as translated or not."""
    return {
        "question": row.get(question) or row["question"],
        "answers": row["answers"],
        "context": row["context"],
        "title": row["id"].split("_")[0],
    }


def write_sets(data: Path, out: Path) -> None:
    """Write the translated sets, and the two parts of them that are searched with."""
    rows = list(read(data / SET / "train.jsonl.gz"))
    write(out / SET / "train.jsonl", map(reworded, rows))
    write(
        out / SET / "train_unanswerable.jsonl",
        map(reworded, read(data / SET / "train_unanswerable.jsonl.gz")),
    )
    part = random.Random(SEED).sample(range(len(rows)), ASKED_OF_SEARCH)
    write(out / SET / "part.jsonl", (reworded(rows[place]) for place in part))
    rest = sorted({*range(len(rows))} - {*part})
    write(out / SET / "rest.jsonl", (reworded(rows[place], question="question") for place in rest))


def words(text: str) -> frozenset[str]:
    """Return a text's words."""
    return frozenset(WORD.findall(text.lower()))


def without_translations(found: Rows) -> Iterator[dict[str, Any]]:
    """Yield mined rows: gold first, then what is not gold in other words."""
    for row in found:
        passages = row["passages"]
        bags = [words(passages[place]) for place in row["gold"]]

        def alike(text: str, bags: list[frozenset[str]] = bags) -> bool:
            own = words(text)
            return any(len(own & bag) > ALIKE * max(1, len(own | bag)) for bag in bags)

        others = [i for i in range(len(passages)) if i not in row["gold"]]
        order = [*row["gold"], *(i for i in others if not alike(passages[i]))]
        made = {name: value for name, value in row.items() if name != "found"}
        for name in ("passages", "scores"):
            if name in row:
                made[name] = [row[name][i] for i in order]
        yield {**made, "gold": list(range(len(bags)))}


def main() -> None:
    """Run a step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    sets = steps.add_parser("sets")
    sets.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    sets.add_argument("--out", type=Path, required=True)
    mined = steps.add_parser("mined")
    mined.add_argument("--found", type=Path, required=True, help="rows of condensery distil oscar")
    mined.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.step == "sets":
        write_sets(args.data, args.out)
    else:
        write(args.out, without_translations(read(args.found)))


if __name__ == "__main__":
    main()
