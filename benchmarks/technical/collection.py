"""Make the technical collection of the packages that are installed: READMEs and docstrings.

Nothing of them is shipped here; a fresh environment (`make install`) has them all. Files are
parsed, never imported, so that the same files give the same documents:

    python benchmarks/technical/collection.py --out technical
    condensery index add technical technical/documents.jsonl
    condensery eval rag --index technical --questions technical/questions.jsonl --out technical/rag

A question whose words no longer stand in its file (another version of a package) is left out and
named on standard error; so is one that was unanswerable, and whose answer came in (`absent`).
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

HERE = Path(__file__).parent
QUESTIONS = HERE / "questions.jsonl"
MOST_CHARACTERS = 1500  # of a document; a longer section is cut at blank lines
FEWEST_CHARACTERS = 40  # of a section or a docstring, that it says anything

# What each package's METADATA carries: its README.
READMES = (
    *("accelerate", "annotated-types", "anyio", "charset-normalizer", "click", "cloudpickle"),
    *("faiss-cpu", "filelock", "fsspec", "grpcio-tools", "h11", "httpcore", "httptools", "httpx"),
    *("huggingface-hub", "hypothesis", "idna", "import-linter", "jsonschema-rs", "markdown-it-py"),
    *("nanoarrow", "networkx", "numpy", "openai", "orjson", "packaging", "peft", "pillow"),
    *("pluggy", "psutil", "pydantic", "pydantic-core", "pyrate-limiter", "pytest"),
    *("pytest-asyncio", "pytest-timeout", "pytest-xdist", "regex", "requests", "rich", "ruff"),
    *("safetensors", "schemathesis", "scipy", "sortedcontainers", "starlette", "tokenizers"),
    *("tqdm", "transformers", "trustme", "urllib3", "uvicorn", "uvloop"),
)
# Whose docstrings: files and folders (without their subfolders) in the packages' own.
DOCSTRINGS: Mapping[str, tuple[str, ...]] = {
    "anyio": ("anyio/_core", "anyio/abc", "anyio/from_thread.py", "anyio/to_thread.py"),
    "faiss-cpu": ("faiss/contrib",),
    "filelock": ("filelock",),
    "fsspec": ("fsspec", "fsspec/implementations"),
    "huggingface-hub": (
        "huggingface_hub/file_download.py",
        "huggingface_hub/_snapshot_download.py",
    ),
    "hypothesis": ("hypothesis/_settings.py", "hypothesis/strategies/_internal/core.py"),
    "networkx": (
        "networkx/algorithms/shortest_paths",
        "networkx/algorithms/centrality",
        "networkx/algorithms/link_analysis",
    ),
    "numpy": ("numpy/lib", "numpy/linalg", "numpy/fft", "numpy/_core/numeric.py"),
    "packaging": ("packaging",),
    "peft": ("peft/tuners/lora", "peft/tuners/ia3", "peft/tuners/prefix_tuning"),
    "pluggy": ("pluggy",),
    "psutil": ("psutil/__init__.py",),
    "pydantic": ("pydantic",),
    "pytest": ("_pytest",),
    "requests": ("requests",),
    "safetensors": ("safetensors",),
    "scipy": ("scipy/optimize/_minimize.py", "scipy/optimize/_root.py"),
    "sortedcontainers": ("sortedcontainers",),
    "starlette": ("starlette", "starlette/middleware"),
    "tokenizers": ("tokenizers", "tokenizers/models", "tokenizers/trainers"),
    "torch": ("torch/nn/modules", "torch/nn/utils", "torch/utils/data", "torch/optim"),
    "transformers": ("transformers/generation", "transformers/training_args.py"),
    "urllib3": ("urllib3", "urllib3/util"),
}

HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$")
UNDERLINE = re.compile(r"^([=\-~^\"'*+#])\1{2,}\s*$")
FENCE = re.compile(r"^\s*(```|~~~)")
BADGE = re.compile(r"^\s*(\[?!\[|\.\. (image|\|)|<(img|p|a|h\d|/|br|div|picture|source))")


@dataclass(frozen=True)
class Part:
    """A stretch of a file's documentation under its headings.

    Attributes:
        where: The file in the package, or ``README``.
        signature: What stands behind the last heading, where the text begins.
    """

    package: str
    version: str
    where: str
    headings: tuple[str, ...]
    text: str
    signature: str = ""


def read_package(name: str) -> Iterator[Part]:
    """Yield what is documented of an installed package, in the files' order; none if it is not."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    if name in READMES:
        yield from read_readme(name, found)
    for place in DOCSTRINGS.get(name, ()):
        path = Path(str(found.locate_file(place)))
        files = sorted(path.glob("*.py*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix in (".py", ".pyi") and file.is_file():
                where = file.relative_to(Path(str(found.locate_file("")))).as_posix()
                yield from read_docstrings(name, found.version, where, file)


def read_readme(name: str, found: Distribution) -> Iterator[Part]:
    """Yield the sections of what METADATA says, Markdown's or reStructuredText's."""
    text = str(found.metadata.get_payload() or found.metadata.get("Description", ""))
    for headings, lines in split_sections(text.replace("\r\n", "\n").split("\n")):
        body = "\n".join(line.rstrip() for line in lines if not BADGE.match(line)).strip("\n")
        yield Part(name, found.version, "README", headings, body)


def split_sections(lines: Sequence[str]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield each section's headings, outermost first, and its lines."""
    trail: list[tuple[int, str]] = []
    levels: list[str] = []  # of underlines, in the order in which they come up
    body: list[str] = []
    fenced = False
    for place, line in enumerate(lines):
        following = lines[place + 1] if place + 1 < len(lines) else ""
        fenced ^= bool(FENCE.match(line))
        title, level = "", 0
        if not fenced and (found := HEADING.match(line)):
            title, level = found[2], len(found[1])
        elif not fenced and is_title(line, following):
            mark = following[0]
            levels += [mark] if mark not in levels else []
            title, level = line.strip(), 1 + levels.index(mark)
        if title:
            yield tuple(name for _, name in trail), body
            trail = [entry for entry in trail if entry[0] < level] + [(level, plain(title))]
            body = []
        elif not (UNDERLINE.match(line) and place and is_title(lines[place - 1], line)):
            body.append(line)
    yield tuple(name for _, name in trail), body


def is_title(line: str, following: str) -> bool:
    """Tell whether a line is a title for what is drawn under it."""
    words = line.strip()
    return (
        bool(words)
        and not line.startswith((" ", "|", "-", "*", ">"))
        and bool(UNDERLINE.match(following))
        and len(following.strip()) >= len(words) - 2
        and len(words) < 90
    )


def plain(title: str) -> str:
    """Return a heading without markup."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]|<[^>]+>", r"\1", title).strip()


def read_docstrings(package: str, version: str, where: str, file: Path) -> Iterator[Part]:
    """Yield each docstring under the name and the signature of what it documents."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    module = where.rsplit(".", 1)[0].replace("/", ".").removesuffix(".__init__")
    yield from walk(Part(package, version, where, (module,), ""), tree, module)


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def walk(part: Part, node: Documented, name: str) -> Iterator[Part]:
    """Yield a node's docstring and those of what is public in it."""
    text, signature = ast.get_docstring(node) or "", ""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        signature = f"({ast.unparse(node.args)})"
    elif isinstance(node, ast.ClassDef):
        init = next((at for at in node.body if getattr(at, "name", "") == "__init__"), None)
        if isinstance(init, ast.FunctionDef):
            text = "\n\n".join(filter(None, (text, ast.get_docstring(init))))
            signature = f"({ast.unparse(init.args).removeprefix('self').removeprefix(', ')})"
    yield Part(part.package, part.version, part.where, (name,), text, signature)
    for child in node.body:
        if isinstance(child, Documented) and not child.name.startswith("_"):  # type: ignore[union-attr]
            yield from walk(part, child, f"{name}.{child.name}")  # type: ignore[union-attr]


def cut(text: str, most: int = MOST_CHARACTERS) -> Iterator[str]:
    """Yield a text's pieces: paragraphs together, as many as there is space for."""
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if piece and len(piece) + len(paragraph) + 2 > most:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
    if piece.strip():
        yield piece


def make_documents(packages: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the collection's documents, of all packages or of these.

    Returns:
        ``id``, ``text`` (under a line of its headings) and ``metadata`` (package, version, file).
    """
    names = packages or sorted({*READMES, *DOCSTRINGS})
    documents: list[dict[str, Any]] = []
    seen: set[str] = set()
    for name in names:
        counts: dict[str, int] = {}
        for part in read_package(name):
            if len(part.text.strip()) < FEWEST_CHARACTERS:
                continue
            for place, piece in enumerate(cut(part.text.strip("\n"))):
                heading = " > ".join((part.package, *part.headings))
                heading += part.signature if place == 0 else ""
                text = f"{heading}\n\n{piece.rstrip()}"
                if text in seen:
                    continue
                seen.add(text)
                counts[part.where] = counts.get(part.where, 0) + 1
                about = {"package": name, "version": part.version, "file": part.where}
                id_ = f"{name}:{part.where}#{counts[part.where]}"
                documents.append({"id": id_, "text": text, "metadata": about})
    return documents


def squeeze(text: str) -> str:
    """Return a text with each stretch of white space one blank: a quotation may run over lines."""
    return " ".join(text.split())


def check_question(
    question: Mapping[str, Any], documents: Sequence[Mapping[str, Any]], squeezed: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """Return the question with its documents (``passage_id``), and what keeps it out, if anything.

    Args:
        question: A row of ``questions.jsonl``.
        documents: The collection.
        squeezed: Their texts, squeezed.
    """
    pairs = list(zip(documents, squeezed, strict=True))
    if not question["answerable"]:
        for document, text in pairs:
            for phrase in question["absent"]:
                of_package = document["metadata"]["package"] == question["package"]
                if of_package and phrase.casefold() in text.casefold():
                    return {}, f"absent: {phrase!r} stands in {document['id']}"
        return {key: value for key, value in question.items() if key != "absent"}, ""
    package = question["package"]
    of_package = [document for document, _ in pairs if document["metadata"]["package"] == package]
    if not of_package:
        return {}, f"package: {package!r} is not installed"
    version = of_package[0]["metadata"]["version"]
    evidence = squeeze(question["evidence"])
    right = [
        document["id"]
        for document, text in pairs
        if evidence in text and document["metadata"]["package"] == package
    ]
    if not any(place.startswith(f"{package}:{question['file']}#") for place in right):
        hint = "" if version in SpecifierSet(question["versions"]) else f", not {version}"
        wanted = f"{package} {question['versions']}{hint}"
        return {}, f"evidence: {evidence!r} is not in {question['file']} ({wanted})"
    return {**question, "passage_id": right, "version": version}, ""


def read_own(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of ``questions.jsonl`` with their lines; one that is wrong ends the run."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(line)
        for name in ("package", "file", "versions", "evidence") if row["answerable"] else ():
            if not isinstance(row.get(name), str):
                raise SystemExit(f"{path}, line {number}: {name}: {row.get(name)!r} is no text")
        try:
            SpecifierSet(row.get("versions", ""))
        except InvalidSpecifier as error:
            raise SystemExit(f"{path}, line {number}: versions: {error}") from error
        yield number, row


def main(argv: Sequence[str] | None = None) -> int:
    """Write documents and questions; 0 even where questions were left out, which are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for both files")
    args = parser.parse_args(argv)
    documents = make_documents()
    squeezed = [squeeze(document["text"]) for document in documents]
    kept, left_out = [], 0
    for number, question in read_own(QUESTIONS):
        row, problem = check_question(question, documents, squeezed)
        if problem:
            left_out += 1
            print(f"{QUESTIONS.name}, line {number}: left out: {problem}", file=sys.stderr)
        else:
            kept.append(row)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, rows in (("documents", documents), ("questions", kept)):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (args.out / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    packages = {document["metadata"]["package"] for document in documents}
    missing = sorted({*READMES, *DOCSTRINGS} - packages)
    print(
        f"{len(documents)} documents of {len(packages)} packages, {len(kept)} questions"
        f" ({left_out} left out)" + (f"; not installed: {', '.join(missing)}" if missing else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
