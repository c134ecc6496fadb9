"""Write rows for the supervised stage of memory encoders out of sets of pairs, negatives in batch.

    python benchmarks/llm2comp_rows.py --data DATA --out rows.jsonl

SQuAD's training questions with their paragraphs and with the sentences that answer them (ReQA), and
OpenStax's terms with their definitions, of training splits alone; each row has its set's
instruction.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from condensery.methods.trainer.rows import read_rows

PARAGRAPH = "Given a question, retrieve the passage that answers it"
SENTENCE = "Given a question, retrieve the sentence that answers it"
DEFINITION = "Given a term, retrieve its definition"


def rows(data: Path) -> Iterator[dict[str, str]]:
    """Yield rows, set by set."""
    for row in read_rows(data / "squad_v1" / "train_part.jsonl.gz"):
        question, context = row.value["question"], row.value["context"]
        yield {"query": question, "positive": context, "instruction": PARAGRAPH}
    for name, instruction in (("reqa_squad_train", SENTENCE), ("openstax_glossary", DEFINITION)):
        for row in read_rows(data / name / "pairs.jsonl.gz"):
            query, positive = row.value["text1"], row.value["text2"]
            yield {"query": query, "positive": positive, "instruction": instruction}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--out", type=Path, required=True, help="JSONL")
    args = parser.parse_args()
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows(args.data)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
