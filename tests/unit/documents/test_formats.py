import io
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import docx
import pytest
from docx.parts.document import DocumentPart

from condensery.documents.formats import read_docx, read_html, read_pdf
from condensery.documents.sections import Section, make_documents
from condensery.errors import InputError


def texts(sections: list[Section]) -> dict[str, str]:
    return {item.id.split("#")[1]: item.text for item in make_documents("n", sections)}


PAGE = """<!doctype html><html><head><title>Site</title><style>p {}</style></head><body>
<nav><a href="/">Home</a></nav>
<main><header><h1>Radium <em>(Ra)</em></h1></header>
Loose words
<p>It   <b>glows</b>.<br>Always.</p>
<script>alert(1)</script>
<h2>Use</h2><ul><li>Watches</li><li><p>Paint</p></li></ul>
<pre>a  b
  c</pre>
<table><tr><th>Name<th>Year<tr><td>Curie<td>1898</table>
<h2>Empty</h2><!-- not --></main>
<footer>Imprint</footer></body></html>"""


def test_a_page_is_read_by_its_headings_without_what_leads_around_the_site() -> None:
    assert texts(read_html(PAGE.encode(), "x", "utf-8")) == {
        "radium-ra": "Radium (Ra)\n\nLoose words\n\nIt glows.\nAlways.",
        "use": "Radium (Ra) > Use\n\n"
        "- Watches\n\nPaint\n\na  b\n  c\n\nName | Year\n\nCurie | 1898",
    }


def test_a_page_without_a_main_heading_has_its_title_and_broken_markup_is_read() -> None:
    page = "<title>My page</title><p>One<p>Two <b>bold"
    assert texts(read_html(page.encode(), "x", "utf-8")) == {
        "my-page": "My page\n\nOne\n\nTwo bold"
    }
    assert read_html(b" \n", "x", "utf-8") == []
    deep = b"<div>" * 1500 + b"deep" + b"</div>" * 1500
    assert texts(read_html(deep, "x", "utf-8")) == {"text": "deep"}


def test_a_page_is_in_the_encoding_that_it_names_or_is_told() -> None:
    page = '<meta charset="iso-8859-1"><p>für'
    assert texts(read_html(page.encode("latin-1"), "x", "utf-8")) == {"text": "für"}
    assert texts(read_html("<p>für".encode("latin-1"), "x", "latin-1")) == {"text": "für"}
    assert texts(read_html("<p>für €".encode(), "x", "utf-8")) == {"text": "für €"}
    with pytest.raises(InputError, match="encoding"):
        read_html("<p>für".encode("latin-1"), "x", "utf-8")


def write_docx() -> bytes:
    document = docx.Document()
    document.add_heading("Elements", 0)
    document.add_heading("Radium", 1)
    document.add_paragraph("It glows.")
    document.add_paragraph("Watches", style="List Bullet")
    table = document.add_table(2, 2)
    for cell, text in zip(table._cells, ["Name", "Year", "Curie", "1898"], strict=True):
        cell.text = text
    document.add_heading("Nothing below", 2)
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


def test_a_word_file_is_read_by_its_headings() -> None:
    assert texts(read_docx(write_docx(), "x")) == {
        "radium": "Elements > Radium\n\nIt glows.\n\n- Watches\n\nName | Year\nCurie | 1898"
    }


FONT = "<< /Font << /F1 3 0 R >> >> /MediaBox [0 0 612 792]"


def write_pdf(*pages: str) -> bytes:
    """A PDF file whose pages say this, a line each."""
    contents = [
        "BT /F1 12 Tf 14 TL 72 720 Td "
        + "".join(f"({line}) Tj T* " for line in page.split("\n"))
        + "ET"
        for page in pages
    ]
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, content in enumerate(contents):
        objects += [
            f"<< /Type /Page /Parent 2 0 R /Resources {FONT} /Contents {5 + 2 * i} 0 R >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    body, places = "%PDF-1.4\n", []
    for number, item in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{item}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    body += f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return (body + f"startxref\n{body.index('xref')}\n%%EOF\n").encode()


def test_a_pdf_file_has_a_section_a_page_with_its_number() -> None:
    sections = read_pdf(write_pdf("Radium glows.", "", "Helium rises."), "x")
    made = list(make_documents("n", sections))
    assert [(item.id, item.text, item.metadata) for item in made] == [
        ("n#page-1", "Radium glows.", {"page": 1}),
        ("n#page-3", "Helium rises.", {"page": 3}),
    ]


def test_a_check_comes_with_each_element_paragraph_row_and_page() -> None:
    asked: Counter[str] = Counter()
    written, document = io.BytesIO(), docx.Document()
    document.add_table(20, 1)
    for _ in range(20):
        document.add_paragraph("It glows.")
    document.save(written)
    read_html(b"<p>" + b"<b>a</b>" * 40, "x", "utf-8", lambda: asked.update(["html"]))
    read_pdf(write_pdf("Words.", *[""] * 39), "x", lambda: asked.update(["pdf"]))
    read_docx(written.getvalue(), "x", lambda: asked.update(["docx"]))
    assert min(asked[kind] for kind in ("html", "pdf", "docx")) >= 40


def test_a_styles_name_is_looked_up_once_however_many_paragraphs_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    find = DocumentPart.get_style

    def get_style(part: DocumentPart, id: str | None, kind: Any) -> Any:
        asked.append(id)
        return find(part, id, kind)

    written, document = io.BytesIO(), docx.Document()
    for number in range(50):
        document.add_paragraph(f"{number}.", style="List Bullet" if number % 2 else None)
    document.save(written)
    monkeypatch.setattr(DocumentPart, "get_style", get_style)
    (section,) = read_docx(written.getvalue(), "x")
    assert [block.text for block in section.blocks[:2]] == ["0.", "- 1."]
    assert len(asked) <= 4  # a style and whether it is there, for two


def test_a_table_of_more_columns_than_any_has_is_refused_and_not_laid_out() -> None:
    written, document = io.BytesIO(), docx.Document()
    cell = document.add_table(1, 1).cell(0, 0)
    cell._tc.grid_span = 10**7  # a file may say 2 * 10**9: 16 GB of references to one cell
    document.save(written)
    with pytest.raises(InputError, match="x: a table of over 1000 columns"):
        read_docx(written.getvalue(), "x")


def test_files_that_are_damaged_or_without_text_are_refused_by_name() -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(5):
            packed.writestr(str(number), bytes(64 * 2**20))
    read_word: Callable[[bytes, str], Any] = read_docx
    cases = [
        (
            lambda page, name: read_html(page, name, "utf-8"),
            b"<b>" * 5000 + b"x",
            "Excessive depth",
        ),
        (read_pdf, b"not a pdf", "x: pypdf can't read it"),
        (read_pdf, write_pdf("words")[:300], "x: "),
        (read_pdf, write_pdf("", ""), "x: there is no text in it"),
        (read_word, b"no zip", "x: python-docx can't read it"),
        (read_word, write_docx()[:2000], "x: python-docx can't read it"),
        (read_word, bomb.getvalue(), "x: over 256 MiB when unpacked"),
    ]
    for read, content, problem in cases:
        with pytest.raises(InputError, match=problem):
            read(content, "x")


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, read in (("docx", read_docx), ("pypdf", read_pdf)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=r"condensery\[documents\]"):
            read(b"x", "x")
