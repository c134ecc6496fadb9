"""Markdown by its headings."""

import itertools
import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

from condensery.documents.sections import Outline, Section

# Before the text, as site generators have it; read as Markdown it would be a heading.
_FRONT_MATTER = re.compile(r"\A---[^\S\n]*\n(.*?\n)??(?:---|\.\.\.)[^\S\n]*(?:\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^title:[^\S\n]*(['\"]?)(.+?)\1[^\S\n]*$", re.MULTILINE)
_COMMENT = re.compile(r"\A\s*(?:<!--.*?-->\s*)+\Z", re.DOTALL)


def read_markdown(text: str) -> list[Section]:
    """Return the sections of a Markdown text, its source as it stands.

    Headings within quotations and lists are text like any other. Comments are left out; of front
    matter the title is a heading above all.
    """
    outline = Outline()
    skipped = 0
    if front := _FRONT_MATTER.match(text):
        skipped = front[0].count("\n")
        text = text[front.end() :]
        if title := _TITLE.search(front[1] or ""):
            outline.add_heading(0, title[2])
    lines = text.split("\n")
    for token, content in _top_level(MarkdownIt("commonmark").enable("table").parse(text)):
        if token.map is None:
            continue
        first, end = token.map
        if token.type == "heading_open":
            outline.add_heading(int(token.tag[1:]), plain_text(content))
        elif token.type != "hr":
            block = "\n".join(lines[first:end])
            if not (token.type == "html_block" and _COMMENT.match(block)):
                outline.add(block, skipped + first + 1)
    return outline.sections


def _top_level(tokens: list[Token]) -> list[tuple[Token, Token | None]]:
    """Return the tokens that begin blocks, each with the one that comes after it."""
    pairs = itertools.zip_longest(tokens, tokens[1:])
    return [(token, after) for token, after in pairs if token.level == 0 and token.nesting >= 0]


def plain_text(token: Token | None) -> str:
    """Return an inline token's text without its marks."""
    children = (token.children if token else None) or []
    return "".join(child.content or " " * (child.type == "softbreak") for child in children)
