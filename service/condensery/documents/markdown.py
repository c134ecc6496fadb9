"""Markdown by its headings."""

import itertools
import re
from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.token import Token

from condensery.documents.sections import Outline, Section

# Before the text, as site generators have it; read as Markdown it would be a heading.
_FRONT_MATTER = re.compile(r"\A---[^\S\n]*\n(.*?\n)??(?:---|\.\.\.)[^\S\n]*(?:\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^title:(.+)", re.MULTILINE)
_COMMENT, _COMMENT_END = "<!--", re.compile(r"-->\s*")


def read_markdown(text: str, check: Callable[[], None] = lambda: None) -> list[Section]:
    """Return the sections of a Markdown text, its source as it stands.

    Headings within quotations and lists are text like any other. Comments are left out; of front
    matter the title is a heading above all.

    Args:
        check: Called for each line and each mark within it, as ``Reading.check``: a megabyte takes
            half a minute at worst.
    """
    outline = Outline()
    skipped = 0
    if front := _FRONT_MATTER.match(text):
        skipped = front[0].count("\n")
        text = text[front.end() :]
        if title := _read_title(front[1] or ""):
            outline.add_heading(0, title)
    lines = text.split("\n")
    for token, content in _top_level(_make_parser(check).parse(text)):
        if token.map is None:
            continue
        first, end = token.map
        if token.type == "heading_open":
            outline.add_heading(int(token.tag[1:]), plain_text(content))
        elif token.type != "hr":
            block = "\n".join(lines[first:end])
            if not (token.type == "html_block" and _is_comment(block)):
                outline.add(block, skipped + first + 1)
    return outline.sections


def _make_parser(check: Callable[[], None]) -> MarkdownIt:
    """Return a parser that calls ``check`` as its first rule, which matches nothing."""

    def match_nothing(*_state: object) -> bool:
        check()
        return False

    parser = MarkdownIt("commonmark").enable("table")
    # Within these, which may be long, it is called for each line.
    alt = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("table", "check", match_nothing, {"alt": alt})
    parser.inline.ruler.before("text", "check", match_nothing)
    return parser


# By hand, in time proportional to the text: as regular expressions these two went back again and
# again, the comments' exponentially, and all other threads wait meanwhile.


def _read_title(front: str) -> str:
    """Return the title in front matter, without its quotes; "" where there is none."""
    for match in _TITLE.finditer(front):
        if title := match[1].strip():
            quoted = len(title) > 2 and title[0] in "'\"" and title[-1] == title[0]
            return title[1:-1] if quoted else title
    return ""


def _is_comment(block: str) -> bool:
    """Tell whether a block of markup is comments alone."""
    text, at = block.strip(), 0
    while text.startswith(_COMMENT, at):
        end = _COMMENT_END.search(text, at + len(_COMMENT))
        if end is None:
            return False
        at = end.end()
    return 0 < at == len(text)


def _top_level(tokens: list[Token]) -> list[tuple[Token, Token | None]]:
    """Return the tokens that begin blocks, each with the one that comes after it."""
    pairs = itertools.zip_longest(tokens, tokens[1:])
    return [(token, after) for token, after in pairs if token.level == 0 and token.nesting >= 0]


def plain_text(token: Token | None) -> str:
    """Return an inline token's text without its marks."""
    children = (token.children if token else None) or []
    return "".join(child.content or " " * (child.type == "softbreak") for child in children)
