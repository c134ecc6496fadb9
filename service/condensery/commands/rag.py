"""``condensery eval rag``: ask a running service questions, and judge what it answers."""

import argparse
import hashlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from condensery import __version__
from condensery.atomic_files import write_atomically
from condensery.commands import common
from condensery.commands.ask import add_search_arguments
from condensery.commands.common import AnyClient, add_server_arguments, print_note
from condensery.errors import (
    CondenseryError,
    Forbidden,
    InputError,
    NotFound,
    StorageError,
    Unauthenticated,
    Unavailable,
)
from condensery.methods.rag.figures import Judged, figures, judge
from condensery.methods.rag.questions import (
    PASSAGE_FIELD,
    JudgedQuestion,
    Reply,
    Setting,
    is_right,
    read_judged_questions,
)
from condensery.methods.rag.report import draw_plot, write_page
from condensery.methods.ranking.parts import held
from condensery.methods.trainer.reports import command_line
from condensery.parsers import Parser
from condensery.question import Answer
from condensery.values import Metadata, ModelInfo

if TYPE_CHECKING:
    from condensery.client.questions import QuestionOptions

ABOUT, ROWS, REPORT, PAGE, PLOT = "about.json", "rows.jsonl", "report.json", "report.md", "plot.png"
# Failures that every other question would share: the run stops, and says which.
SHARED = (NotFound, Unauthenticated, Forbidden)
GONE = 10  # questions in a row that no server answers: it is down
SEED = 17  # of the questions drawn


@dataclass(frozen=True, slots=True)
class Task:
    """A question to ask in one setting."""

    question: JudgedQuestion
    setting: Setting

    @property
    def key(self) -> tuple[int, Setting]:
        """Place and setting."""
        return self.question.place, self.setting


class Asker:
    """Asks one question after another, as the command line says; may be used by several threads.

    Args:
        client: Of the service.
        how: Keywords of the questions.
        curve: Whether what is not found is asked again without a threshold.
    """

    def __init__(self, client: AnyClient, how: "QuestionOptions", *, curve: bool) -> None:
        self._client, self._how, self._curve = client, how, curve

    def __call__(self, task: Task) -> Reply:
        """Ask, and return the reply; an error that is this question's own is a reply too.

        Raises:
            CondenseryError: One of ``SHARED``; or Unavailable.
        """
        question, how = task.question, self._how.copy()
        if task.setting == "without_passage":
            how["filter"] = leave_out(how.get("filter"), question.documents)
        blank = Reply(question.place, task.setting, answered=False)
        began = time.perf_counter()
        try:
            answer = self._client.answer(question.question, **how)
            ms = 1000 * (time.perf_counter() - began)
            reply = replace(read_reply(blank, answer), ms=round(ms, 2))
            if self._curve and not reply.answered:
                how["min_relevance"] = 0.0
                again = self._client.answer(question.question, **how)
                below = read_reply(blank, again)
                reply = replace(reply, below=below.answer if below.answered else None)
        except (*SHARED, Unavailable):
            raise
        except CondenseryError as error:
            return replace(blank, error=f"{type(error).__name__}: {error.message}")
        return reply


def leave_out(allowed: Metadata | None, documents: Sequence[str]) -> dict[str, Any]:
    """Return the filter that allows the same but for these documents."""
    without: dict[str, Any] = {"must_not": [{"has_id": list(documents)}]}
    return {"must": [dict(allowed)], **without} if allowed else without


def read_reply(blank: Reply, answer: Answer) -> Reply:
    """Return what an answer says, times left out."""
    answered = answer.finish_reason != "not_found"
    text = answer.answer.strip() if answered else ""
    scored = [c.relevance_score for c in answer.citations if c.relevance_score is not None]
    return replace(
        blank,
        answered=answered,
        answer=text,
        relevance=max(scored, default=None),
        cited=tuple(dict.fromkeys(citation.document_id for citation in answer.citations)),
        verbatim=bool(text) and any(text in citation.text for citation in answer.citations),
        grounded=answer.grounded,
        holding=tuple(dict.fromkeys(holding_documents(answer))),
        server_ms=round(answer.timings.total_ms, 2),
    )


def holding_documents(answer: Answer) -> Iterator[str]:
    """Yield the documents of the passages in which an answer's words stand where it says."""
    for citation in answer.citations:
        if citation.answer_start is not None and citation.answer_end is not None:
            start, end = (
                at - citation.start for at in (citation.answer_start, citation.answer_end)
            )
            words = citation.text[start:end] if 0 <= start < end else ""
            if words and (words in answer.answer or is_right(answer.answer, [words])):
                yield citation.document_id


class Replies:
    """A folder's replies, a line each, kept as they come: a run that ends early goes on.

    Args:
        folder: Made if it is not there.
        about: What replies depend on.

    Raises:
        InputError: It holds those of another evaluation, naming what differs; or can't be read.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._path = folder / ROWS
        path = folder / ABOUT
        try:
            stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else dict(about)
            named = {name for name in {*stored, *about} if stored.get(name) != about.get(name)}
            differing = [f"{n}: {stored.get(n)!r}, not {about.get(n)!r}" for n in sorted(named)]
            lines = self._path.read_bytes().split(b"\n")[:-1] if self._path.exists() else []
            rows = [json.loads(line)["reply"] for line in lines]
            found = [read_row(row) for row in rows]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"out: {folder} is damaged ({error!r}); give another") from error
        if differing:
            raise InputError(
                f"out: {folder} holds the replies of another evaluation ({'; '.join(differing)}):"
                " give another, or remove it",
                field="out",
                value=str(folder),
            )
        # A later line stands for an earlier one: what failed was asked again.
        self.found = {(reply.place, reply.setting): reply for reply in found}
        write_atomically(path, json.dumps(about, indent=1, ensure_ascii=False) + "\n")

    @contextmanager
    def adding(self, questions: Mapping[int, JudgedQuestion]) -> Iterator[Callable[[Reply], None]]:
        """Yield what takes one more reply."""
        if self._path.exists():  # a kill may have cut the last line short
            with self._path.open("r+b") as damaged:
                damaged.truncate(damaged.read().rfind(b"\n") + 1)
        with self._path.open("a", encoding="utf-8") as file:

            def add(reply: Reply) -> None:
                self.found[reply.place, reply.setting] = reply
                file.write(write_row(judge(questions[reply.place], reply)))
                file.flush()

            yield add

    def settle(self, judged: Sequence[Judged]) -> None:
        """Write the rows anew, in the questions' order, one each."""
        write_atomically(self._path, "".join(map(write_row, judged)))


def read_row(row: Mapping[str, Any]) -> Reply:
    """Return the reply of a row, as ``write_row`` wrote it; older rows lack the newest fields."""
    lists = {name: tuple(row[name]) for name in ("cited", "holding") if name in row}
    return Reply(**{**row, **lists})


def write_row(judged: Judged) -> str:
    """Return a reply's line: the question as it stands in its file, the reply, how it is judged."""
    verdict = {
        name: getattr(judged, name) for name in ("right", "em", "f1", "first", "among", "held")
    }
    row = {"question": dict(judged.question.row), "reply": asdict(judged.reply), "judged": verdict}
    return json.dumps(row, ensure_ascii=False) + "\n"


def ask_all(
    tasks: Sequence[Task], ask: Callable[[Task], Reply], add: Callable[[Reply], None], at_once: int
) -> None:
    """Ask all, so many at once, each kept as it comes.

    Raises:
        CondenseryError: One of ``SHARED``, or Unavailable for ``GONE`` questions in a row; what
            was answered is kept.
    """
    stop = threading.Event()
    gone = 0

    def run(task: Task) -> tuple[Reply | None, CondenseryError | None]:
        if stop.is_set():
            return None, None
        try:
            return ask(task), None
        except Unavailable as error:
            message = f"{type(error).__name__}: {error.message}"
            return Reply(task.question.place, task.setting, False, error=message), error

    with (
        ThreadPoolExecutor(at_once) as threads,
        tqdm(total=len(tasks), unit=" questions", disable=None) as bar,
    ):
        futures = [threads.submit(run, task) for task in tasks]
        try:
            for future in as_completed(futures):
                reply, error = future.result()
                if reply is None:
                    continue
                add(reply)
                bar.update()
                gone = gone + 1 if error is not None else 0
                if error is not None and gone >= min(GONE, len(tasks)):
                    raise type(error)(  # its own kind says whose server is down
                        f"{error.message}; so it was for {gone} questions in a row. What was"
                        " answered is kept: the same command goes on"
                    )
        except BaseException:
            stop.set()
            raise


def describe_server(client: AnyClient, args: argparse.Namespace) -> dict[str, Any]:
    """Return which pair and which index are asked.

    Raises:
        CondenseryError: The server is not there, has no such index, or refuses the filter.
    """
    models = [model for model in client.models() if model.pair is not None]
    named = [model for model in models if args.model in (None, model.id)]
    pair: ModelInfo | None = named[0] if named else None
    if pair is None:
        have = ", ".join(model.id for model in models) or "none"
        raise NotFound(f"model: no pair of the name {args.model!r} serves; there are: {have}")
    documents, passages = client.count(args.index, filter=args.filter)
    traits = pair.pair
    return {
        "pair": pair.alias_of or pair.id,
        "version": pair.version,
        "fingerprint": pair.fingerprint,
        "dtype": pair.dtype,
        "min_relevance": traits.min_relevance if traits else None,
        "index": args.index,
        "documents": documents,
        "passages": passages,
    }


def describe(server: Mapping[str, Any], judged: Sequence[Judged], args: argparse.Namespace) -> str:
    """Return the sentence that says what was asked, and of whom."""
    questions = {row.question.place for row in judged}
    return (
        f"{len(questions)} questions of {Path(args.questions).name} to {server['pair']} version"
        f" {server['version']} ({server['dtype']}, `min_relevance` {threshold(server, args):g})"
        f" over the index {args.index}: {server['documents']:,} documents,"
        f" {server['passages']:,} passages; {args.concurrency} at once, {args.top_k} retrieved."
    )


def threshold(server: Mapping[str, Any], args: argparse.Namespace) -> float:
    """Return the ``min_relevance`` that questions were asked with."""
    own = server["min_relevance"] or 0.0
    return float(own if args.min_relevance is None else args.min_relevance)


def make_parser() -> argparse.ArgumentParser:
    """Make the command's parser."""
    parser = Parser(
        prog="condensery eval rag",
        description="Ask a running service questions about an index, and judge its answers: right,"
        " wrong but answered, not found but answerable, cited rightly, in how many milliseconds.",
    )
    parser.add_argument("--index", required=True, help="what is searched")
    parser.add_argument(
        "--questions",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON lines of question, answers, perhaps answerable (false) and the documents that"
        " hold the answer",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder; the same goes on there"
    )
    parser.add_argument(
        "--passage-field",
        default=PASSAGE_FIELD,
        metavar="NAME",
        help="field of a question that names these documents, one id or a list (default:"
        " %(default)s)",
    )
    parser.add_argument("--count", type=int, metavar="N", help="ask so many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=SEED, help="default: %(default)s")
    parser.add_argument(
        "--without-passage",
        action="store_true",
        help="ask each question again with its own documents left out: what is answered then?",
    )
    parser.add_argument(
        "--curve",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask what is not found again without a threshold, for the curve (default)",
    )
    parser.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="questions at once (1)"
    )
    add_search_arguments(parser)
    parser.add_argument("--top-k", type=int, default=20, metavar="N", help="passages to find (20)")
    parser.add_argument("--top-n", type=int, metavar="N", help="passages to read")
    parser.add_argument("--model", help="name of a pair; the server's default else")
    parser.add_argument("--min-relevance", type=float, metavar="SCORE", help="the pair's own else")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="of an answer (64)")
    parser.add_argument("--no-compress", action="store_true", help="passages are read as text")
    add_server_arguments(parser)
    return parser


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse numbers out of their range, before anything is asked."""
    for name, least in (("concurrency", 1), ("count", 1), ("top_k", 1), ("max_tokens", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InputError.at(name, f"{value} is less than {least}", value)
    if args.min_relevance is not None and not 0 <= args.min_relevance <= 1:
        raise InputError.at("min_relevance", f"{args.min_relevance} is not 0 to 1")


def choose(args: argparse.Namespace) -> list[Task]:
    """Read the questions, and return what is to be asked.

    Raises:
        InputError: A row is wrong, or none names its documents though ``--without-passage`` is
            given.
    """
    questions = list(read_judged_questions(args.questions, args.passage_field))
    if args.count is not None and args.count < len(questions):
        drawn = random.Random(args.seed).sample(range(len(questions)), args.count)
        questions = [questions[place] for place in sorted(drawn)]
    tasks = [Task(question, "as_it_is") for question in questions]
    if args.without_passage:
        near = [q for q in questions if q.documents and q.answerable]
        if not near:
            raise InputError(
                f"{args.questions}: no question has {args.passage_field}, which --without-passage"
                " leaves out"
            )
        tasks += [Task(question, "without_passage") for question in near]
    return tasks


def options(args: argparse.Namespace) -> "QuestionOptions":
    """Return the keywords of the questions."""
    return {
        "index": args.index,
        "search": args.search,
        "filter": args.filter,
        "top_k": args.top_k,
        "top_n": args.top_n,
        "model": args.model,
        "mode": "off" if args.no_compress else "auto",
        "min_relevance": args.min_relevance,
        "max_tokens": args.max_tokens,
        "temperature": 0.0,
    }


def run(args: argparse.Namespace, client: AnyClient, words: Sequence[str]) -> dict[str, Any]:
    """Ask what is missing, judge all, and write the report; returns it."""
    tasks = choose(args)
    server = describe_server(client, args)
    about = {
        "questions": hashlib.sha256(args.questions.read_bytes()).hexdigest(),
        "passage_field": args.passage_field,
        "server": server,
        "options": options(args),
        "curve": args.curve,
    }
    replies = Replies(args.out, about)
    questions = {task.question.place: task.question for task in tasks}
    known = {key for key, reply in replies.found.items() if reply.error is None}
    missing = [task for task in tasks if task.key not in known]
    with replies.adding(questions) as add:
        ask_all(missing, Asker(client, options(args), curve=args.curve), add, args.concurrency)
    judged = [judge(task.question, replies.found[task.key]) for task in tasks]
    replies.settle(judged)
    found = figures(judged)
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "command": command_line("eval rag", words),
        "condensery": __version__,
        "questions": args.questions.name,
        "server": server,
        "concurrency": args.concurrency,
        **found,
    }
    write_atomically(args.out / REPORT, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    title = f"{server['pair']} {server['version']}: {args.questions.name} over {args.index}"
    page = {
        "title": title,
        "asked": describe(server, judged, args),
        "command": report["command"],
    }
    write_atomically(args.out / PAGE, write_page(page, found, judged))
    draw_plot(args.out / PLOT, title, found, judged, threshold(server, args))
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``condensery eval rag``; 1 where a question failed."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = make_parser().parse_args(words)
    check_arguments(args)
    try:
        with held(args.out), common.connect(args) as client:
            report = run(args, client, words)
    except OSError as error:
        raise StorageError(f"{args.out}: {error.strerror or error}") from error
    print((args.out / PAGE).read_text(encoding="utf-8"), end="")
    failed = sum(figures["failed"] for figures in report["settings"].values())
    if failed:
        print_note(f"condensery: {failed} questions failed; the same command asks them again")
    return 1 if failed else 0
