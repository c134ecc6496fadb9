"""Make questions about the prose of packages' documentation: READMEs and the pages of docs/.

What people ask of such text is mostly answered by a word of code: the option that does it, the
error that is raised, the default. Each section is cut into passages under a line of its headings,
as an index of the text has them; `asking` turns their sentences round, `wording` says the
questions in other words. A section's heading that names a deed ("Configuring logging") makes a
question too, one that is only to be ranked: its passage is the right one of several.
"""

import email
import json
import random
import re
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from condensery.atomic_files import write_atomically
from condensery.errors import InputError
from condensery.methods.distil.asking import Asked, ask, ask_heading, is_good, name_package
from condensery.methods.distil.wording import reword

T = TypeVar("T")
# Of a passage: closed from the first on, never beyond the second.
ENOUGH_WORDS, MOST_WORDS = 90, 130
FEWEST_WORDS = 15  # of a section's last passage
WORDINGS = 2  # of a question, most
NAMED = 1 / 3  # of the questions say which package they are about
IN_PLACE = 0.05  # of a package's questions, most, by the rule that sounds least like people
ENGLISH = 0.04  # of a text's words, fewest that are the commonest of English
MOST_BYTES = 1_000_000  # of a file; larger ones are generated
NEAR, PASSAGES = 4, 8  # passages to rank: most of the heading's own file beside it, and in all
MOST_HEADINGS = 40  # of a package

SUFFIXES = (".md", ".rst", ".txt")
FOLDERS_LEFT_OUT = re.compile(
    r"/(\.[\w-]+|tests?|testing|_?vendor(ed)?|third[-_]?party|node_modules|locales?|translations|"
    r"licen[cs]es|includes?|fixtures|templates?|site-packages|changelogs?|newsfragments|changes|"
    r"whats[-_]?new|news|release([-_]?notes)?s?|relnotes|_?static|specs|_sources|_includes|"
    r"[a-z]{2}[-_][A-Z]{2}|zh|ja|ko|fr|de|es|pt|ru|it|pl|uk|tr|vi|fa|hu|id|bn|em|az)/"
)
FILES_LEFT_OUT = re.compile(
    r"licen[cs]e|copying|authors|contributors|credits|change(s|log)|history|news|release|notice|"
    r"requirements|constraints|whats[-_]?new|sources|top_level|manifest|code_of_conduct|security|"
    r"thanks|entry_points|dependency_links|robots|cmakelists|spelling|word(s|list)|donors|"
    r"sponsors|migrat|upgrading|roadmap|deprecat|output|expected|agents\.md|claude|gemini|versions\.rst",
    re.IGNORECASE,
)
HEADINGS_LEFT_OUT = re.compile(
    r"(v(ersion)?[ .]?)?\d+\.\d|change(s|log)\b|change ?log|history|releases?\b|what's new|news$|"
    r"licen[cs]e|credits|authors|contributors|unreleased",
    re.IGNORECASE,
)
HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$")
UNDERLINE = re.compile(r"^([=\-~^\"'*+#.:_`])\1{2,}\s*$")
FENCE = re.compile(r"^\s*(```|~~~)")
# Lines that draw or link, and say nothing.
NOISE = re.compile(
    r"^\s*(\[?!\[|\.\. (_|\||image|figure|raw|index|include|literalinclude|automodule|module|"
    r"currentmodule|contents|highlight|sectionauthor|codeauthor|versionadded|versionchanged)|"
    r"<!--|</?(img|p|a|h\d|br|div|picture|source|details|summary)\b|:(maxdepth|hidden|caption|"
    r"glob|alt|width|align|target|class|name|local|depth|titlesonly|orphan|members|noindex)\b|"
    r"(single|pair|triple): |\{[%{]|!!! *$|\[[^\]]+\]: *http|::: ?\w)"
)
LISTING = re.compile(r"^\s*(\.\. (toctree|tabularcolumns|only|ifconfig|autosummary)|```\{toctree)")
ROLE = re.compile(r"(?::([\w:+-]+):|\{([\w:+-]+)\})`[~!.]*([^`<]+?)(?:\s*<[^`>]+>)?`")
LINKS = ("ref", "doc", "term", "numref", "std:ref", "std:doc", "any", "pep", "rfc", "issue")


@dataclass(frozen=True, slots=True)
class Section:
    """What a file says under its headings, outermost first; the first is the package."""

    where: str
    headings: tuple[str, ...]
    text: str


def read_prose(path: Path) -> tuple[str, list[tuple[str, str]]]:
    """Return a package's name and its files of prose, name and text.

    What PKG-INFO or METADATA describes is its ``README``; files of that name are then left out.

    Args:
        path: A source archive (.tar.gz), or a wheel.

    Raises:
        InputError: It is neither.
    """
    members: dict[str, bytes] = {}
    try:
        if path.name.endswith(".whl"):
            with zipfile.ZipFile(path) as wheel:
                for name in wheel.namelist():
                    if name.endswith(".dist-info/METADATA"):
                        members[name] = wheel.read(name)
        else:
            with tarfile.open(path) as archive:
                for info in archive:
                    if info.isfile() and info.size <= MOST_BYTES and is_prose(info.name):
                        file = archive.extractfile(info)
                        members[info.name] = file.read() if file else b""
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise InputError(
            f"packages: {path} is neither a source archive nor a wheel: {error}",
            field="packages",
            value=str(path),
        ) from error
    package, files = path.name.split("-", maxsplit=1)[0], []
    for name, content in sorted(members.items()):
        text = content.decode("utf-8", errors="replace").replace("\r\n", "\n")
        if name.endswith(("/PKG-INFO", "/METADATA")):
            message = email.message_from_string(text)
            package = str(message["Name"] or package)
            described = str(message.get_payload() or message["Description"] or "")
            files.append(("README", re.sub(r"^ {8}", "", described, flags=re.MULTILINE)))
        else:
            files.append((name.split("/", 1)[-1], text))
    files = [(name, text) for name, text in files if is_english(text)]
    if any(name == "README" and len(text) > 500 for name, text in files):
        files = [pair for pair in files if not pair[0].startswith("README.")]
    return package, files


def is_english(text: str) -> bool:
    """Return whether a text's commonest words are those of English; other tongues have few."""
    words = re.findall(r"\w+", text.lower())
    common = sum(word in ("the", "to", "and", "of", "is", "in", "for", "this") for word in words)
    return common >= ENGLISH * len(words) > 0


def is_prose(name: str) -> bool:
    """Return whether a member of a source archive is documentation to read."""
    parts = PurePosixPath(name).parts[1:]
    if parts == ("PKG-INFO",):
        return True
    if not parts or not name.endswith(SUFFIXES) or FILES_LEFT_OUT.search(parts[-1]):
        return False
    return not FOLDERS_LEFT_OUT.search(f"/{'/'.join(parts)}") and not (
        len(parts) == 1 and name.endswith(".txt")
    )


def sections(package: str, where: str, text: str) -> Iterator[Section]:
    """Yield a file's sections, Markdown's or reStructuredText's."""
    trail: list[tuple[int, str]] = []
    marks: list[str] = []  # of underlines, in the order in which they come up
    body: list[str] = []
    fenced = False
    hidden = -1  # how far a listing is indented, while its block lasts
    lines = [*text.split("\n"), ""]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        fenced ^= bool(FENCE.match(line))
        indent = len(line) - len(line.lstrip())
        if hidden >= 0 and (not line.strip() or indent > hidden):
            continue
        hidden = indent if LISTING.match(line) else -1
        if hidden >= 0:
            continue
        title, level = "", 0
        if not fenced and (found := HEADING.match(line)):
            title, level = found[2], len(found[1])
        elif not fenced and _is_title(line, following):
            marks += [] if following[0] in marks else [following[0]]
            title, level = line.strip(), 1 + marks.index(following[0])
        if title:
            yield _section(package, where, trail, body)
            trail = [entry for entry in trail if entry[0] < level]
            trail.append((level, _heading(title)))
            body = []
        elif not NOISE.match(line) and (FENCE.match(line) or not UNDERLINE.match(line)):
            body.append(line.rstrip())
    yield _section(package, where, trail, body)


def _section(
    package: str, where: str, trail: Sequence[tuple[int, str]], body: Sequence[str]
) -> Section:
    text = ROLE.sub(_literal, "\n".join(body).strip("\n"))
    # Sphinx's default role with a target, `Name <module.Name>`.
    text = re.sub(r"(?<![`:])`([\w.]+(?:\(\))?) <[\w.]+>`(?![`_])", r"``\1``", text)
    return Section(where, (package, *(name for _, name in trail)), text)


def _literal(role: re.Match[str]) -> str:
    """Return one of Sphinx's roles as READMEs would have it: they can't have any."""
    words = role[3].strip()
    return words if (role[1] or role[2]) in LINKS or " " in words else f"``{words}``"


def _is_title(line: str, following: str) -> bool:
    words = line.strip()
    return (
        bool(words)
        and not line.startswith((" ", "|", "-", "*", ">", "=", "~", "`" * 3))
        and bool(UNDERLINE.match(following))
        and len(following.strip()) >= len(words) - 2
        and len(words) < 90
    )


def _heading(title: str) -> str:
    """Return a heading without markup."""
    title = re.sub(r"\{#[^}]*\}|</?[a-zA-Z][^>]*>", "", ROLE.sub(_literal, title))
    title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"`([^`<]+?) <[^`>]+>`_*|[`*]", r"\1", title).strip()


def passages(section: Section) -> Iterator[str]:
    """Yield a section's passages, paragraphs together, each under a line of its headings."""
    head = " > ".join(section.headings)
    pieces: list[str] = []
    count = 0
    for paragraph in _paragraphs(section.text):
        words = len(paragraph.split())
        if pieces and count + words > MOST_WORDS:
            yield "\n\n".join((head, *pieces))
            pieces, count = [], 0
        pieces.append(paragraph)
        count += words
        if count >= ENOUGH_WORDS:
            yield "\n\n".join((head, *pieces))
            pieces, count = [], 0
    if count >= FEWEST_WORDS:
        yield "\n\n".join((head, *pieces))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs; of one that is too long, runs of its lines."""
    for paragraph in re.split(r"\n\s*\n", text):
        run: list[str] = []
        count = 0
        for line in paragraph.split("\n"):
            words = len(line.split())
            if run and count + words > MOST_WORDS:
                yield "\n".join(run)
                run, count = [], 0
            run.append(line)
            count += words
        if count:
            yield "\n".join(run)


def questions(headings: Sequence[str], passage: str, rng: random.Random) -> list[list[Asked]]:
    """Return the good questions of a passage, in other words, those about the same together."""
    wordings: dict[str, dict[str, Asked]] = {}
    under = passage.partition("\n\n")[2]
    for made in [each for _ in range(WORDINGS) for each in ask(headings, under, rng)]:
        question = reword(made.question, rng)
        if rng.random() < NAMED:
            question = name_package(question, headings[0], rng)
        asked = Asked(question[:1].upper() + question[1:], made.answer, made.rule)
        same = wordings.setdefault(asked.answer, {})
        if len(same) < WORDINGS and is_good(asked, passage):
            same.setdefault(asked.question, asked)
    return [[*same.values()] for same in wordings.values() if same]


def make(
    packages: Sequence[Path],
    out: Path,
    *,
    of_passage: int,
    most: int,
    seed: int,
    headings: Path | None = None,
) -> dict[str, int | dict[str, int]]:
    """Write the rows, and return how many there are of each package.

    Args:
        packages: Source archives (.tar.gz), or wheels.
        out: The rows: question, context, answers, title (package and file).
        of_passage: Of how many things a passage is asked at most; each in up to two wordings.
        most: Most questions of a package.
        seed: Where all chance comes from.
        headings: Where rows of headings go, if anywhere: question, passages, gold.

    Raises:
        InputError: A package can't be read.
    """
    lines: list[str] = []
    ranked: list[str] = []
    counts: dict[str, int] = {}
    for path in packages:
        package, files = read_prose(path)
        rng = random.Random(f"{seed} {package}")
        cut = [
            (section, [*passages(section)])
            for where, text in files
            for section in sections(package, where, text)
            if not any(HEADINGS_LEFT_OUT.match(heading) for heading in section.headings[1:])
        ]
        rows: dict[str, dict[str, object]] = {}
        in_place: dict[str, dict[str, object]] = {}
        for section, texts in cut:
            for passage in texts:
                things = questions(section.headings, passage, rng)
                for asked in [each for same in _some(things, of_passage, rng) for each in same]:
                    row: dict[str, object] = {
                        "question": asked.question,
                        "context": passage,
                        "answers": [asked.answer],
                        "title": f"{package}/{section.where}",
                    }
                    (in_place if asked.rule == "in place" else rows).setdefault(asked.question, row)
        few = _some([*in_place.values()], int(len(rows) * IN_PLACE), rng)
        chosen = _some([*rows.values(), *few], most, rng)
        lines += [json.dumps(row, ensure_ascii=False) + "\n" for row in chosen]
        counts[package] = counts.get(package, 0) + len(chosen)
        if headings is not None:
            of_headings = _some([*_ranked(package, cut, rng)], MOST_HEADINGS, rng)
            ranked += [json.dumps(row, ensure_ascii=False) + "\n" for row in of_headings]
    write_atomically(out, "".join(lines))
    if headings is not None:
        write_atomically(headings, "".join(ranked))
    return {"questions": len(lines), "headings": len(ranked), "of": counts}


def _some(items: Sequence[T], most: int, rng: random.Random) -> list[T]:
    return rng.sample(items, min(most, len(items)))


def _ranked(
    package: str, cut: Sequence[tuple[Section, Sequence[str]]], rng: random.Random
) -> Iterator[dict[str, object]]:
    """Yield headings as questions with passages to rank: one is right, some are of its file."""
    seen: set[str] = set()
    for section, texts in cut:
        if not texts or len(section.headings) < 2:
            continue
        heading = section.headings[-1]
        question = ask_heading(heading, package, section.text, rng)
        if not question or question in seen:
            continue
        seen.add(question)
        others = [(other, text) for other, own in cut for text in own if other is not section]
        near = [text for other, text in others if other.where == section.where]
        far = [text for other, text in others if other.where != section.where]
        wrong = _some(near, NEAR, rng)
        wrong += _some(far, PASSAGES - 1 - len(wrong), rng)
        if len(wrong) < NEAR:
            continue
        # Half of them without the heading: else its words would give the passage away.
        right = texts[0]
        if rng.random() < 0.5:
            right = right.replace(f" > {heading}", "", 1)
        place = rng.randrange(len(wrong) + 1)
        yield {
            "question": question,
            "passages": [*wrong[:place], right, *wrong[place:]],
            "answers": [],
            "label": "",
            "gold": [place],
            "title": f"{package}/{section.where}",
        }
