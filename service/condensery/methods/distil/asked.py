"""Questions that a language model writes of passages, as their readers would ask them.

Rules (``documentation``) ask in the words of the text. A model that knows the language asks in
words of its own (Bonifacio et al., InPars, arXiv:2202.05144): a pair that is to serve a collection
can be trained on questions of that very collection.
"""

import argparse
import hashlib
import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from condensery.errors import InputError
from condensery.methods.distil import teacher
from condensery.methods.distil.corpus import Corpus
from condensery.methods.distil.journal import Journal, Line
from condensery.methods.distil.teacher import Teacher, TeacherAnswer
from condensery.methods.trainer.arguments import add_machine, begin
from condensery.networks.dtypes import dtype_name
from condensery.networks.quantised import Weights
from condensery.parsers import Parser
from condensery.runtime.device import choose_dtype

log = logging.getLogger(__name__)
TOKENS_EACH = 26  # of a question and its answer, about
LONGEST_ANSWER = 8  # words
FEWEST_WORDS = 4  # of a question
SYSTEM = "You write questions for a test of a search engine."
# One passage is shown with its questions: small models copy a form better than they obey rules.
SHOWN = """Passage:
Brindle > Storage > Folded tables

Folded tables take less space and are read faster. To make one, give ``fold=True`` to
`brindle.open_table`; ``brindle.table`` does so by default. From version 3.6 on they can also be
watched with ``on_unfold``. At most 64 readers have one open.

Q: How do I have open_table make a folded table?
A: fold=True
Q: Since which Brindle can folded tables be watched?
A: 3.6
Q: What limits how many readers a folded table has?
A: 64"""
PAIR = re.compile(r"^\W*Q\d*[:.*]+ *(\S.*?)\s*\n+\W*A\d*[:.*]+ *(\S.*?)\s*$", re.MULTILINE)
NUMBERS = ("one", "two", "three", "four", "five", "six")


def request(passage: str, count: int) -> str:
    """Return what the model is told of a passage; all but the passage is always the same."""
    some = "one question" if count == 1 else f"{NUMBERS[count - 1]} questions"
    return (
        f"Write {some} of users who have not seen the passage, and answers of one to five words "
        "that are copied from it letter by letter. Name what a question is about; say it in words "
        f"of your own.\n\n{SHOWN}\n\nPassage:\n{passage}"
    )


def questions_in(reply: str, passage: str) -> Iterator[Line]:
    """Yield rows of what a model wrote: a question, its passage, and the answer if it stands there.

    A question without such an answer names its passage as gold, which teaches to rank. Left out is
    what is no question, says its own answer, or comes twice.
    """
    seen = {question.casefold() for question, _ in PAIR.findall(SHOWN)}  # which it may repeat
    for question, said in PAIR.findall(reply):
        plain = question.casefold()
        if not question.endswith("?") or len(question.split()) < FEWEST_WORDS or plain in seen:
            continue
        seen.add(plain)
        answer = said.strip("`'\" ").removesuffix(".").strip("`'\" ")
        if not answer or answer.casefold() in plain:
            continue
        stands = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", passage)
        if stands and len(answer.split()) <= LONGEST_ANSWER:
            yield {"question": question, "answers": [answer], "context": passage}
        else:
            yield {"question": question, "passages": [passage], "gold": [0]}


def lines_of(
    passages: Sequence[tuple[str, str]], replies: Sequence[TeacherAnswer]
) -> Iterator[Line]:
    """Yield a journal's line for each passage: the rows that came of it.

    The last line of a reply that had no room to end is left out: it may be half of an answer.
    """
    for (passage, title), reply in zip(passages, replies, strict=True):
        text = reply.text if reply.finished else reply.text.rpartition("\n")[0]
        rows = list(questions_in(text, passage))
        yield {"rows": [{**row, **({"title": title} if title else {})} for row in rows]}


def make(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Have questions written; goes on where a killed run was.

    Returns:
        How many there are; empty if they were there already.

    Raises:
        InputError: Passages, the model or the settings are of no use; named.
        TrainingStopped: The disk refused.
    """
    corpus = Corpus()
    corpus.add_files(args.passages, fields=("text", "context"))
    passages = [(passage.text.strip(), passage.title) for passage in corpus.passages[: args.limit]]
    dtype = choose_dtype(device, args.dtype)
    digest = hashlib.sha256(json.dumps(passages).encode()).hexdigest()
    about = {
        "passages": f"sha256:{digest}",
        "teacher": teacher.fingerprint(args.teacher),
        "of_passage": args.of_passage,
        "weights": args.weights,
        "dtype": dtype_name(dtype),
    }
    counts: Counter[str] = Counter()

    def see(line: Line) -> None:
        counts["passages"] += 1
        for row in line["rows"]:
            counts["with an answer" if "answers" in row else "to rank"] += 1

    with Journal(args.out, about, see) as journal:
        if journal.done:
            return {}
        writer = Teacher.open(
            args.teacher,
            device=device,
            dtype=dtype,
            max_tokens=TOKENS_EACH * args.of_passage,
            batch=args.batch,
            system=SYSTEM,
            weights=args.weights,
        )
        began, first = time.monotonic(), journal.count
        for start in range(first, len(passages), args.batch):
            some = passages[start : start + args.batch]
            replies = writer.reply([request(passage, args.of_passage) for passage, _ in some])
            journal.append(list(lines_of(some, replies)))
            speed = (journal.count - first) / max(time.monotonic() - began, 1e-9)
            log.info("%d of %d passages, %.2f a second", journal.count, len(passages), speed)
        if not counts["with an answer"] + counts["to rank"]:
            raise InputError(
                f"teacher: {args.teacher} wrote no question of {len(passages)} passages",
                field="teacher",
                value=str(args.teacher),
            )
        journal.finish(_rows, {"figures": dict(counts)})
    return dict(counts)


def _rows(line: Line) -> list[Line]:
    rows: list[Line] = line["rows"]
    return rows


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery distil questions``."""
    parser = Parser(prog="condensery distil questions", description=__doc__)
    add = parser.add_argument
    add("--teacher", type=Path, required=True, help="a chat model's directory")
    add("--passages", type=Path, nargs="+", required=True, help="JSONL rows with text or context")
    add("--limit", type=int, help="take the first so many passages")
    add("--of-passage", type=int, default=3, help="questions of a passage (3)")
    add("--weights", choices=get_args(Weights), default="float", help="the model's, on a CPU")
    add("--batch", type=int, default=16, help="passages read at once (16)")
    add_machine(parser)
    add("--out", type=Path, required=True, help="the rows: FILE.jsonl")
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    for name, most in (("of_passage", len(NUMBERS)), ("batch", 1024), ("limit", 10**9)):
        value = getattr(args, name)
        if value is not None and not 1 <= value <= most:
            raise InputError(f"{name}={value}: must be from 1 to {most}", field=name, value=value)
    figures = make(args, begin(args))
    log.info("the rows are in %s: %s", args.out, figures or "they were there")


if __name__ == "__main__":
    main()
