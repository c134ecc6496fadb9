"""HTML, PDF and Word files as sections, by the libraries of the extra ``documents``."""

import io
import logging
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from condensery.documents.sections import Outline, Section
from condensery.errors import InputError

DECLARED_BYTES = 4096  # of a page: its encoding is declared within
MAX_UNPACKED_BYTES = 256 * 2**20  # of a Word file, which is a zip
MAX_COLUMNS = 1000  # of its tables: Word has 63, and python-docx makes as many cells as a file says

# What says nothing of its own: ways around a site, what is run or drawn.
_SKIPPED = frozenset(
    ["aside", "button", "footer", "head", "iframe", "nav", "noscript", "script", "select", "style",
     "svg", "template"]
)  # fmt: skip
_INLINE = frozenset(
    ["a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins",
     "kbd", "mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup", "time", "tt", "u",
     "var", "wbr"]
)  # fmt: skip
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_DECLARED = re.compile(rb"charset\s*=|<\?xml[^>]*encoding\s*=", re.IGNORECASE)
_PARAGRAPH_END = re.compile(r"\n(?:[^\S\n]*\n)+")
_HEADING_STYLE = re.compile(r"heading (\d)", re.IGNORECASE)


@contextmanager
def reading_by(source: str, library: str) -> Iterator[None]:
    """Make errors of a library, and its absence, errors about the file."""
    try:
        yield
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(
            f"{source}: the package {error.name} is missing: pip install 'condensery[documents]'"
        ) from error
    # A broken file leads these libraries to any exception, not only to their own.
    except Exception as error:
        problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise InputError(f"{source}: {library} can't read it: {problem}") from error


def read_html(
    content: bytes, source: str, encoding: str, check: Callable[[], None] = lambda: None
) -> list[Section]:
    """Return a page's sections by its headings, without its navigation and scripts.

    Args:
        encoding: Where the page is no UTF-8 and does not say what it is.
        check: Called for each element, as ``Reading.check``.

    Raises:
        InputError: It is in another encoding, or lxml is missing.
    """
    if not content.strip():
        return []
    with reading_by(source, "lxml"):
        from lxml import etree

        content, known = _make_utf8(content, source, encoding)
        parser = etree.HTMLParser(encoding=known, huge_tree=True)
        root = etree.fromstring(content, parser)
        if fatal := [entry.message for entry in parser.error_log if entry.level_name == "FATAL"]:
            raise InputError(f"{source}: lxml can't read it: {fatal[0]}")
        return [] if root is None else _Page(root, check).sections


def _make_utf8(content: bytes, source: str, encoding: str) -> tuple[bytes, str | None]:
    """Return a page and its encoding; None is what it declares."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            return content.decode(encoding).encode(), "utf-8"
        if _DECLARED.search(content[:DECLARED_BYTES]):
            return content, None
        raise InputError(
            f"{source}: not UTF-8, and it does not say what it is; `encoding` names it"
        ) from error
    return content, "utf-8"


class _Page:
    """A page's blocks, collected on one way through its tree."""

    def __init__(self, root: Any, check: Callable[[], None]) -> None:
        from lxml import etree

        self._outline, self._text = Outline(), [""]
        self._verbatim = 0  # elements of preformatted text around
        mains = root.findall(".//main") or root.findall(".//article")
        top = mains[0] if len(mains) == 1 else root
        title = " ".join((root.findtext(".//title") or "").split())
        if title and top.find(".//h1") is None:
            self._outline.add_heading(0, title)
        walk = etree.iterwalk(top, events=("start", "end", "comment", "pi"))
        for event, element in walk:
            check()
            if event == "start" and element.tag in _SKIPPED:
                walk.skip_subtree()
            elif event == "start":
                self._start(element)
            elif event == "end" and element.tag not in _SKIPPED:
                self._end(element)
            if event != "start" and element is not top:
                self._text.append(element.tail or "")
        self._flush()
        self.sections = self._outline.sections

    def _start(self, element: Any) -> None:
        tag = element.tag
        if tag in ("td", "th"):
            self._text.append(" | " if element.getprevious() is not None else "")
        elif tag == "br":
            self._text.append("\n")
        elif tag not in _INLINE:
            self._flush()
            self._text.append("- " if tag == "li" else "")
        self._verbatim += tag == "pre"
        self._text.append(element.text or "")

    def _end(self, element: Any) -> None:
        tag = element.tag
        if tag in _HEADINGS:
            self._outline.add_heading(_HEADINGS[tag], "".join(self._text))
            self._text = []
        elif tag not in _INLINE and tag not in ("td", "th", "br"):
            self._flush()
        self._verbatim -= tag == "pre"

    def _flush(self) -> None:
        text, self._text = "".join(self._text), []
        if not self._verbatim:
            text = "\n".join(" ".join(line.split()) for line in text.split("\n") if line.strip())
        if text.strip() not in ("", "-"):
            self._outline.add(text.strip("\n"))


def read_pdf(
    content: bytes, source: str, check: Callable[[], None] = lambda: None
) -> list[Section]:
    """Return a section a page, with its number.

    Args:
        check: Called for each page, as ``Reading.check``.

    Raises:
        InputError: It is damaged, locked by a password, or only pictures; or pypdf is missing.
    """
    with reading_by(source, "pypdf"):
        import pypdf

        logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it mends is no news
        file = pypdf.PdfReader(io.BytesIO(content))
        if file.is_encrypted and not file.decrypt(""):
            raise InputError(f"{source}: it is locked by a password")
        sections = []
        for number, page in enumerate(file.pages, 1):
            check()
            outline = Outline()
            for paragraph in _PARAGRAPH_END.split(_printable(page.extract_text())):
                outline.add(paragraph.strip())
            (section,) = outline.sections
            sections.append(replace(section, anchor=f"page-{number}", metadata={"page": number}))
        if not any(section.blocks for section in sections):
            raise InputError(f"{source}: there is no text in it, only pictures perhaps")
        return sections


def read_docx(
    content: bytes, source: str, check: Callable[[], None] = lambda: None
) -> list[Section]:
    """Return a Word file's sections by its headings; of tables a line is a row.

    Args:
        check: Called for each paragraph and row, as ``Reading.check``.

    Raises:
        InputError: It is damaged, or too long when unpacked; or python-docx is missing.
    """
    with reading_by(source, "python-docx"):
        import docx

        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            unpacked = sum(entry.file_size for entry in packed.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            raise InputError(f"{source}: over {MAX_UNPACKED_BYTES // 2**20} MiB when unpacked")
        outline = Outline()
        styles: dict[str | None, str] = {}  # names by ids: each is looked for among all of them
        for item in docx.Document(io.BytesIO(content)).iter_inner_content():
            check()
            if isinstance(item, docx.table.Table):
                rows = []
                for row in item.rows:
                    check()
                    # python-docx has no public names for what it counts these by
                    columns = sum(max(1, cell.grid_span) for cell in row._tr.tc_lst)
                    if columns > MAX_COLUMNS:
                        raise InputError(f"{source}: a table of over {MAX_COLUMNS} columns")
                    rows.append(" | ".join(_cells(row)))
                outline.add("\n".join(rows))
                continue
            if (style := styles.get(item._p.style)) is None:
                style = (item.style.name or "") if item.style is not None else ""
                styles[item._p.style] = style
            heading = _HEADING_STYLE.match(style)
            if heading or style == "Title":
                outline.add_heading(int(heading[1]) if heading else 0, item.text)
            else:
                outline.add(f"- {item.text}" if style.startswith("List") else item.text)
        return outline.sections


def _cells(row: Any) -> Iterator[str]:
    """Yield the texts of a row's cells; one over several columns comes once."""
    last = None
    for cell in row.cells:
        if cell._tc is not last:  # python-docx has no public name for it
            yield " ".join(cell.text.split())
        last = cell._tc


def _printable(text: str) -> str:
    """Return text without what fonts without a table of characters leave: zeros, lone halves."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()
