"""Make questions about packages' documentation: what a pair is to know of options and code.

Nobody wrote such questions down, but docstrings say in set forms what people ask of them: a
parameter's default and type, which parameter does what, which error is raised when. Each question
is asked of the docstring that answers it; the other parameters beside it, and the functions beside
that, are what is near and does not answer. With --prose, READMEs and the pages of docs/ are read
instead, from source archives: see `prose`.
"""

import argparse
import ast
import email
import json
import logging
import random
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.methods.distil import prose
from condensery.parsers import Parser

log = logging.getLogger(__name__)
MOST_CHARACTERS = 1200  # of a passage; a longer docstring is cut at blank lines
FEWEST_WORDS, MOST_WORDS = 4, 24  # of a description that a question is made of
LEFT_OUT = ("/tests/", "/test/", "/_vendor/", "/vendor/", "/vendored/", "/examples/")

# Of a docstring in NumPy's form, in Google's, in reStructuredText's.
NUMPY = re.compile(r"^(\*{0,2}[A-Za-z_]\w*) ?: ?(\S[^\n]*)\n((?:    +[^\n]+\n?)+)", re.MULTILINE)
GOOGLE = re.compile(
    r"^ {4,8}([A-Za-z_]\w*) ?(?:\(([^)\n]+)\))?: (\S[^\n]*(?:\n {8,}\S[^\n]*)*)", re.MULTILINE
)
REST = re.compile(r"^:param (?:(\w+) )?(\w+): (\S[^\n]*(?:\n +\S[^\n]*)*)", re.MULTILINE)
REST_RAISES = re.compile(r"^:raises? ([\w.]+): (\S[^\n]*(?:\n +\S[^\n]*)*)", re.MULTILINE)
DEFAULT = re.compile(
    r"(?:defaults? to|default is|default value is|by default,? |default[:=] ?|[(,] ?default )"
    r"[ `'\"]*(?!(?:the|a|an|to|this|that|it)\b)([\w.+-]+(?:\([^)]{0,20}\))?)",
    re.IGNORECASE,
)
RAISES = re.compile(r"^ *(\w+(?:Error|Exception))(?:: ?|\n +)([^\n]+)", re.MULTILINE)
ERROR = re.compile(r"[A-Z]\w*(?:Error|Exception|Warning)")
# What comes behind them in a docstring is in their form, and is no parameter.
BEHIND_PARAMETERS = re.compile(r"^ *(?:Returns?|Yields?|Raises?)(?::| *\n *-{3,})", re.MULTILINE)
CODE = re.compile(r"``?([\w./-][\w.\[\]()=:/<>-]*)``?")
SENTENCE = re.compile(r"[^.!?\n]+(?:\n[^.!?\n]+)*[.!?]?")


@dataclass(frozen=True, slots=True)
class Documented:
    """A docstring under its name and signature.

    Attributes:
        name: What is documented, with its modules.
        signature: Its arguments, in brackets; "" of what takes none.
        text: The docstring.
        defaults: Each argument's default as it is written in the signature.
    """

    name: str
    signature: str
    text: str
    defaults: dict[str, str]

    @property
    def short(self) -> str:
        """What people call it."""
        return self.name.rsplit(".", 1)[-1]


def read_sources(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the Python files of a wheel or a folder, and a wheel's METADATA: name and text.

    Raises:
        InputError: It is neither.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            yield file.relative_to(path).as_posix(), file.read_text("utf-8", errors="replace")
        return
    try:
        with zipfile.ZipFile(path) as wheel:
            for name in sorted(wheel.namelist()):
                if name.endswith((".py", ".dist-info/METADATA")):
                    yield name, wheel.read(name).decode("utf-8", errors="replace")
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(
            f"packages: {path} is neither a wheel nor a folder: {error}",
            field="packages",
            value=str(path),
        ) from error


def documented_in(name: str, source: str) -> Iterator[Documented]:
    """Yield what is documented in a file: public things, or all that METADATA describes.

    Nothing of a file that can't be parsed.
    """
    if name.endswith("METADATA"):
        message = email.message_from_string(source)
        yield Documented(str(message["Name"]), "", str(message.get_payload()), {})
        return
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    yield from _walk(tree, module)


def _walk(node: ast.AST, name: str) -> Iterator[Documented]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if child.name.startswith("_"):
            continue
        own = f"{name}.{child.name}"
        takes: ast.AST | None = child
        text = ast.get_docstring(child) or ""
        if isinstance(child, ast.ClassDef):
            takes = next((n for n in child.body if getattr(n, "name", "") == "__init__"), None)
            if isinstance(takes, ast.FunctionDef):
                text = "\n\n".join(filter(None, (text, ast.get_docstring(takes))))
            yield from _walk(child, own)
        if not text:
            continue
        signature, defaults = "", {}
        if isinstance(takes, ast.FunctionDef | ast.AsyncFunctionDef):
            signature = f"({re.sub(r'^(self|cls)(, )?', '', ast.unparse(takes.args))})"
            defaults = _defaults(takes.args)
        yield Documented(own, signature if len(signature) < 400 else "", text, defaults)


def _defaults(arguments: ast.arguments) -> dict[str, str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = list(zip(reversed(positional), reversed(arguments.defaults), strict=False))
    pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d]
    return {argument.arg: ast.unparse(value) for argument, value in pairs}


def passages(documented: Documented) -> Iterator[str]:
    """Yield a docstring's passages, paragraphs together, the first under name and signature."""
    piece = documented.name + documented.signature
    for paragraph in re.split(r"\n\s*\n", documented.text.rstrip()):
        if piece and len(piece) + len(paragraph) > MOST_CHARACTERS:
            yield piece
            piece = documented.name
        piece = f"{piece}\n\n{paragraph}"
    yield piece


def ask(documented: Documented, passage: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield questions that a passage answers, each with the answer as it stands there."""
    if documented.signature and passage.startswith(documented.name + documented.signature):
        yield from _of_signature(documented, rng)
    for name, kind, about in _parameters(passage):
        yield from _of_parameter(documented, name, kind, about, rng)
    for match in REST_RAISES.finditer(passage):
        yield _raised(documented, match[2], rng), match[1]
    for match in NUMPY.finditer(passage + "\n"):
        if ERROR.fullmatch(match[1]):
            yield _raised(documented, match[3], rng), match[1]
    for match in RAISES.finditer(passage):
        yield _raised(documented, match[2], rng), match[1]
    for sentence in SENTENCE.finditer(passage):
        names = CODE.findall(sentence.group())
        if names and len(sentence.group().split()) >= FEWEST_WORDS + 3:
            code = rng.choice(names)
            rest = re.sub(r"``?" + re.escape(code) + r"``?", " ", sentence.group())
            what = rng.choice(("what", "which option", "which name", "what value", "which"))
            if words := _said(rest, rng):
                of = f" in {documented.short}" if rng.random() < 0.5 else ""
                yield f"{what.capitalize()} {words}{of}?", code


def _of_signature(documented: Documented, rng: random.Random) -> Iterator[tuple[str, str]]:
    for name, value in documented.defaults.items():
        if value != "None":
            yield _default(documented, name, rng), value


def _parameters(passage: str) -> Iterator[tuple[str, str, str]]:
    """Yield each parameter's name, type ("" where none is said) and description."""
    passage = BEHIND_PARAMETERS.split(passage, maxsplit=1)[0]
    for match in NUMPY.finditer(passage + "\n"):
        yield match[1].lstrip("*"), match[2].strip(), match[3]
    for match in GOOGLE.finditer(passage):
        yield match[1], (match[2] or "").strip(), match[3]
    for match in REST.finditer(passage):
        yield match[2], (match[1] or "").strip(), match[3]


def _of_parameter(
    documented: Documented, name: str, kind: str, about: str, rng: random.Random
) -> Iterator[tuple[str, str]]:
    for text in (kind, about):
        if match := DEFAULT.search(text):
            yield _default(documented, name, rng), match[1].rstrip(".")
            break
    own = re.split(r",? ?(?:optional|default)", kind)[0].strip(" ,")
    if own and len(own) < 40:
        asked = rng.choice(
            (
                "What type is {name} of {of}?",
                "Which type does {of} expect for {name}?",
                "What does {name} have to be in {of}?",
                "What kind of value is {name}?",
            )
        )
        yield asked.format(name=name, of=documented.short), own
    first = SENTENCE.search(about.strip())
    words = _said(first.group(), rng) if first else ""
    if words:
        asked = rng.choice(
            (
                "Which parameter of {of} says {words}?",
                "Which argument of {of} is for {words}?",
                "Which option sets {words}?",
                "What do I pass to {of} for {words}?",
                "Which setting of {of} is {words}?",
            )
        )
        yield asked.format(of=documented.short, words=words), name


def _default(documented: Documented, name: str, rng: random.Random) -> str:
    asked = rng.choice(
        (
            "What is the default of {name} in {of}?",
            "What is {name} of {of} by default?",
            "Which value does {name} have if none is given to {of}?",
            "What does {of} take for {name} unless told otherwise?",
            "What is the default value of {name}?",
            "How much is {name} in {of} if it is not set?",
        )
    )
    spelled = name.replace("_", " ") if rng.random() < 0.3 else name
    return asked.format(name=spelled, of=documented.short)


def _raised(documented: Documented, when: str, rng: random.Random) -> str:
    words = _said(when, rng) or "something is wrong"
    asked = rng.choice(
        (
            "Which error does {of} raise {words}?",
            "What is raised by {of} {words}?",
            "Which exception says {words}?",
            "What error do I get {words}?",
        )
    )
    return asked.format(of=documented.short, words=words)


def _said(text: str, rng: random.Random) -> str:
    """Return a description as part of a question: markup and some of its words left out."""
    words = re.sub(r":\w+:|[`*~]", "", text).split()
    if not FEWEST_WORDS <= len(words) <= MOST_WORDS:
        return ""
    keep = rng.uniform(0.7, 1.0)
    kept = [word for word in words if rng.random() < keep]
    said = " ".join(kept).strip(" .,;:")
    return said[:1].lower() + said[1:]


def stands_once(answer: str, passage: str) -> bool:
    """Return whether an answer stands in a passage, and once: else nobody knows which is meant."""
    found = re.findall(rf"(?<![\w.]){re.escape(answer)}(?!\w)", passage)
    return len(found) == 1


def make(
    packages: Sequence[Path], out: Path, *, of_passage: int, most: int, seed: int
) -> dict[str, int | dict[str, int]]:
    """Write the rows, and return how many there are of each package.

    Args:
        packages: Wheels, or folders of Python files.
        out: The rows: question, context, answers, title (package and module).
        of_passage: Most questions of a passage.
        most: Most questions of a package.
        seed: Where all chance comes from.

    Raises:
        InputError: A package can't be read.
    """
    lines: list[str] = []
    counts: Counter[str] = Counter()
    for path in packages:
        package = path.name.split("-")[0]
        rng = random.Random(f"{seed} {package}")
        rows: list[str] = []
        for name, source in read_sources(path):
            if any(part in f"/{name}" for part in LEFT_OUT):
                continue
            for documented in documented_in(name, source):
                for passage in passages(documented):
                    asked = [*ask(documented, passage, rng)]
                    fitting = [
                        (question, answer)
                        for question, answer in dict(asked).items()
                        if 0 < len(answer) < 60
                        and (stands_once(answer, passage) or f"\n{answer} :" in passage)
                    ]
                    rng.shuffle(fitting)
                    for question, answer in fitting[:of_passage]:
                        row = {
                            "question": question,
                            "context": passage,
                            "answers": [answer],
                            "title": f"{package} {documented.name.rpartition('.')[0]}",
                        }
                        rows.append(json.dumps(row, ensure_ascii=False) + "\n")
        chosen = rng.sample(rows, min(most, len(rows)))
        lines += chosen
        counts[package] += len(chosen)
    write_atomically(out, "".join(lines))
    return {"questions": len(lines), "of": dict(counts)}


def main(argv: list[str] | None = None) -> None:
    """Run ``condensery distil documentation``."""
    parser = Parser(prog="condensery distil documentation", description=__doc__)
    add = parser.add_argument
    packages = "wheels, or folders of Python; with --prose source archives (.tar.gz), or wheels"
    add("--packages", type=Path, nargs="+", required=True, help=packages)
    add("--prose", action="store_true", help="read READMEs and pages of docs/, not docstrings")
    headings = "with --prose: rows of headings to rank passages for, FILE.jsonl"
    add("--headings", type=Path, help=headings)
    add("--of-passage", type=int, default=2, help="most questions of a passage (2)")
    add("--most", type=int, default=600, help="most questions of a package (600)")
    add("--seed", type=int, default=13, help="(13)")
    add("--out", type=Path, required=True, help="the rows: FILE.jsonl")
    args: argparse.Namespace = parser.parse_args(sys.argv[1:] if argv is None else argv)
    for name in ("of_passage", "most"):
        value = getattr(args, name)
        if value < 1:
            raise InputError(f"{name}: {value} is less than 1", field=name, value=value)
    if args.headings and not args.prose:
        raise InputError(
            f"headings: {args.headings} is written with --prose alone",
            field="headings",
            value=str(args.headings),
        )
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for path in filter(None, (args.out, args.headings)):
        path.parent.mkdir(parents=True, exist_ok=True)
    sizes = {"of_passage": args.of_passage, "most": args.most, "seed": args.seed}
    if args.prose:
        log.info("%s", prose.make(args.packages, args.out, **sizes, headings=args.headings))
    else:
        log.info("%s", make(args.packages, args.out, **sizes))
    log.info("the rows are in %s", args.out)


if __name__ == "__main__":
    main()
