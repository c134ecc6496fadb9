"""Hold the repository's texts against the repository: what `make check` runs.

Refused are marks of a merge that was never finished, in any tracked file; and in any tracked
Markdown file a link or an anchor that leads nowhere, a command, a flag, a chore of the Makefile,
a script, a test or an environment variable that does not exist.

    python tests/docs_check.py [FOLDER]     # a line a fault, and status 1 if there is any
"""

import argparse
import ast
import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import takewhile
from pathlib import Path, PurePosixPath
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from condensery.cli import make_parser
from condensery.commands import methods
from condensery.settings import CLIENT_VARIABLES, VARIABLE_PREFIX, Settings, variable_of

# `=======` alone too: it is what is left when the other two were taken out in haste. A heading
# underlined with seven signs would look the same; ours begin with `#`.
MARK = re.compile(rb"(<{7}|>{7}|\|{7})( .*)?|={7}")
VARIABLE = re.compile(rf"{VARIABLE_PREFIX}[A-Z0-9_]*[A-Z0-9](?![A-Z0-9_.*<]|\(|\{{)")
FLAG = re.compile(r"--?[A-Za-z][\w-]*")
FOLDERS_OF_CODE = ("service", "tests", "benchmarks", "loadtests", "examples")


def check(root: Path) -> list[str]:
    """Return what is wrong in the files that git tracks under ``root``, a line a fault."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    names = [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
    faults = [fault for name in names for fault in find_marks(root, name)]
    tree = Tree(root, names)
    for name in names:
        if name.endswith(".md"):
            page = tree.page(name)
            faults += [f"{name}:{line}: {fault}" for line, fault in find_dead_links(tree, page)]
            for line, text, is_block in page.code:
                faults += [f"{name}:{line}: {fault}" for fault in tree.check(text, is_block)]
    return faults


def find_marks(root: Path, name: str) -> Iterator[str]:
    content = (root / name).read_bytes()
    if b"\0" in content:
        return  # no text
    for number, line in enumerate(content.splitlines(), 1):
        if MARK.fullmatch(line):
            yield f"{name}:{number}: a merge left its mark: {line.decode(errors='replace')}"


class Page:
    """A Markdown file: its links, its anchors and its code, each with its line."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.links: list[tuple[int, str]] = []
        self.anchors: set[str] = set()
        self.code: list[tuple[int, str, bool]] = []  # line, text, whether it is a block
        self._slugs: dict[str, int] = {}
        tokens = MarkdownIt("commonmark").enable("table").parse(text)
        line = 1
        for place, token in enumerate(tokens):
            line = token.map[0] + 1 if token.map else line  # cells of a table have none
            if token.type == "heading_open":
                self._add_heading(tokens[place + 1])
            elif token.type in ("fence", "code_block"):
                first = line + (token.type == "fence")
                if token.info.strip() in ("", "sh", "bash", "shell", "console"):
                    for skipped, command in join_lines(token.content):
                        self.code.append((first + skipped, command, True))
            self._read(token, line)

    def _read(self, token: Token, line: int) -> None:
        if token.type in ("html_inline", "html_block"):
            reader = _Html()
            reader.feed(token.content)
            self.anchors |= reader.anchors
            self.links += [(line, link) for link in reader.links]
        for child in token.children or ():
            if child.type in ("softbreak", "hardbreak"):
                line += 1
            elif child.type == "code_inline":
                self.code.append((line, child.content, False))
            elif child.type in ("link_open", "image"):
                link = child.attrGet("href") or child.attrGet("src")
                self.links.append((line, str(link or "")))
            self._read(child, line)

    def _add_heading(self, heading: Token) -> None:
        """Note the anchor that GitHub gives a heading."""
        parts = (child for child in heading.children or () if child.type in ("text", "code_inline"))
        words = "".join(child.content for child in parts).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        seen = self._slugs.get(slug, 0)
        self._slugs[slug] = seen + 1
        self.anchors.add(f"{slug}-{seen}" if seen else slug)


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif (tag, name) in (("a", "href"), ("img", "src")):
                self.links.append(value or "")


def join_lines(block: str) -> Iterator[tuple[int, str]]:
    """Yield a block's commands, those that go on after a backslash as one."""
    begun, first = "", 0
    for number, line in enumerate(block.splitlines()):
        first = first if begun else number
        begun += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first, begun
            begun = ""
    if begun:
        yield first, begun


def find_dead_links(tree: "Tree", page: Page) -> Iterator[tuple[int, str]]:
    for line, link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        path, anchor = unquote(parts.path), unquote(parts.fragment)
        target = normalise(PurePosixPath(page.name).parent, path) if path else page.name
        if target is None or (target not in tree.files and target not in tree.folders):
            yield line, f"the link {link} leads to no file"
        elif not anchor:
            continue
        elif not target.endswith(".md"):
            if not re.fullmatch(r"L\d+(-L\d+)?", anchor):
                yield line, f"the link {link} names a place in a file that has none"
        elif anchor not in tree.page(target).anchors:
            yield line, f"the link {link} leads to no heading"


def normalise(folder: PurePosixPath, path: str) -> str | None:
    """Return a path from the root, or None where it leads out of it."""
    steps: list[str] = [] if path.startswith("/") else list(folder.parts)
    for step in path.split("/"):
        if step == "..":
            if not steps:
                return None
            steps.pop()
        elif step not in ("", "."):
            steps.append(step)
    return "/".join(steps) or "."


class Tree:
    """What can be named in a text: files, chores, commands, flags, variables."""

    def __init__(self, root: Path, names: list[str]) -> None:
        self.root = root
        self.files = frozenset(names)
        self.folders = frozenset(
            str(folder) for name in names for folder in PurePosixPath(name).parents
        )
        makefile = self._read("Makefile")
        self._chores = set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))
        self._programs: dict[str, Callable[[list[str], bool], Iterator[str]]] = {
            "condensery": check_command,
            "make": self._check_make,
            "python": self._check_python,
            "python3": self._check_python,
            "pytest": self._check_pytest,
        }

    @functools.cache  # noqa: B019  # a run has one tree
    def page(self, name: str) -> Page:
        return Page(name, self._read(name))

    def _read(self, name: str) -> str:
        path = self.root / name
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def check(self, text: str, is_block: bool) -> Iterator[str]:
        """Yield what a piece of code names that does not exist."""
        for variable in VARIABLE.findall(text):
            if variable not in self._variables():
                yield f"there is no variable {variable}"
        words = split(text)
        if not is_block and text.startswith("--"):
            if FLAG.fullmatch(words[0].partition("=")[0]) and words[0] not in self._all_flags():
                yield f"no command of ours has the flag {words[0]}"
            return
        for command in apart(words, ("&&", "||", ";") + ("|",) * is_block):
            program, rest = find_program(command)
            if program in self._programs:
                yield from self._programs[program](rest, is_block)

    @functools.cache  # noqa: B019
    def _variables(self) -> frozenset[str]:
        """The settings', and what else our code reads by its whole name."""
        ours = {variable_of(name) for name in Settings.model_fields} | CLIENT_VARIABLES
        code = [name for name in self.files if name.endswith(".py")]
        return frozenset(ours).union(
            *(re.findall(rf'"({VARIABLE_PREFIX}[A-Z0-9_]+)"', self._read(name)) for name in code)
        )

    @functools.cache  # noqa: B019
    def _all_flags(self) -> frozenset[str]:
        """Every flag of every command and script, and those of what the Makefile runs."""
        flags = flags_under(make_parser())
        for name in self.files:
            if name.endswith(".py") and name.split("/")[0] in FOLDERS_OF_CODE:
                flags |= self._flags_of(name)
        return flags.union(re.findall(r"(?<=\s)--[a-z][\w-]*", self._read("Makefile")))

    def _check_make(self, words: list[str], is_block: bool) -> Iterator[str]:
        # In a block what it does may follow after some spaces; the chore is the first word.
        named = [word for word in words if "=" not in word and not word.startswith("-")]
        for chore in named[:1] if is_block else named:
            if chore not in self._chores:
                yield f"there is no chore `make {chore}`"

    def _check_python(self, words: list[str], is_block: bool) -> Iterator[str]:
        if words[:1] == ["-m"] and words[1:]:
            if words[1] == "pytest":
                yield from self._check_pytest(words[2:], is_block)
                return
            module = words[1].replace(".", "/")
            first = module.split("/")[0]
            if first not in (*FOLDERS_OF_CODE, "condensery"):
                return
            path = ("service/" if first == "condensery" else "") + module
            name = f"{path}.py" if f"{path}.py" in self.files else f"{path}/__main__.py"
            words = [name, *words[2:]]
        if not words or not words[0].endswith(".py"):
            return
        name = str(PurePosixPath(words[0]))
        if name not in self.files:
            if "/" in name:
                yield f"there is no script {name}"
            return
        for flag in flags_in(words[1:]):
            if flag not in self._flags_of(name) | {"-h", "--help"}:
                yield f"{name} has no flag {flag}"

    @functools.cache  # noqa: B019
    def _flags_of(self, script: str) -> frozenset[str]:
        """The flags that a script adds, it or what it imports of its own folder.

        Read, not run: scripts import what is not installed everywhere (locust).
        """
        flags: set[str] = set()
        read: set[str] = set()
        left = [script]
        while left:
            name = left.pop()
            read.add(name)
            text = self._read(name)
            for node in ast.walk(ast.parse(text, name)):
                # `add` where a parser's `add_argument` has the short name.
                called = node.func if isinstance(node, ast.Call) else None
                by = getattr(called, "attr", getattr(called, "id", ""))
                if isinstance(node, ast.Call) and by in ("add_argument", "add"):
                    spellings = {
                        str(argument.value)
                        for argument in node.args
                        if isinstance(argument, ast.Constant)
                    }
                    if "BooleanOptionalAction" in ast.dump(node):
                        spellings |= {f"--no-{flag.removeprefix('--')}" for flag in spellings}
                    flags |= spellings
                elif isinstance(node, ast.ImportFrom):
                    beside = str(PurePosixPath(name).with_name(f"{node.module}.py"))
                    if beside in self.files - read:
                        left.append(beside)
            if "parse_known_args" in text or name.startswith("service/"):
                # It is a method's command line, or hands over to one what it does not know.
                for module, _ in methods.METHOD_MODULES.values():
                    if module in text or name == f"service/{module.replace('.', '/')}.py":
                        flags |= _flags_when_run(methods.run_method, module)
        return frozenset(flag for flag in flags if flag.startswith("-"))

    def _check_pytest(self, words: list[str], is_block: bool) -> Iterator[str]:
        for option, word in zip(["", *words], words, strict=False):
            path, _, test = word.partition("::")
            if option == "-k" and re.fullmatch(r"\w+", word):
                if not any(word in name for name in self._tests()):
                    yield f"no test is named like {word}"
            elif word.startswith("-") or not path.endswith((".py", "/")):
                continue
            else:
                for file in spread(path):
                    if file.rstrip("/") not in self.files | self.folders:
                        yield f"there is no file of tests {file}"
                    elif test and f"def {test.split('[')[0].split('::')[-1]}(" not in self._read(
                        file
                    ):
                        yield f"there is no test {word}"

    @functools.cache  # noqa: B019
    def _tests(self) -> frozenset[str]:
        names = [name for name in self.files if PurePosixPath(name).name.startswith("test_")]
        tests_by_file = (re.findall(r"def (test_\w+)", self._read(name)) for name in names)
        return frozenset(test for tests in tests_by_file for test in tests)


def check_command(words: list[str], is_block: bool) -> Iterator[str]:
    """Yield what is wrong with the words after ``condensery``.

    In a sentence, `condensery index get | scroll` names two.
    """
    first, *others = apart(words, ("|",)) or [[]]
    path: list[str] = []
    yield from _check_one(first, path)
    for other in others:
        yield from _check_one([*path[:-1], *other], [])


def _check_one(words: list[str], path: list[str]) -> Iterator[str]:
    parser = make_parser()
    for word in words:
        commands = commands_of(parser)
        if flag := next(flags_in([word]), None):
            if flag not in flags_of(parser):
                yield f"`{' '.join(['condensery', *path])}` has no flag {flag}"
        elif word in commands:
            parser = commands[word]
            path.append(word)
        elif commands and not is_placeholder(word):
            yield f"there is no command `{' '.join(['condensery', *path, word])}`"
            return
        elif commands:
            return  # any of them is meant


def is_placeholder(word: str) -> bool:
    return not word.strip("[]") or word.isupper() or word.startswith(("<", ".", "…", "{"))


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def flags_of(parser: argparse.ArgumentParser) -> frozenset[str]:
    """The flags of one command, also of one that reads its arguments when it runs."""
    flags = frozenset(parser._option_string_actions)
    if parser.get_default("takes_rest"):
        flags |= _flags_when_run(parser.get_default("run"), parser.get_default("module"))
    return flags


def flags_under(parser: argparse.ArgumentParser) -> frozenset[str]:
    return flags_of(parser).union(
        *(flags_under(command) for command in commands_of(parser).values())
    )


class _Found(Exception):
    pass


@functools.cache
def _flags_when_run(run: Callable[[argparse.Namespace], object], module: str | None) -> set[str]:
    """Begin a command, and stop it where it would read its arguments."""

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise _Found(parser)

    with patch.object(argparse.ArgumentParser, "parse_known_args", stop):
        try:
            run(argparse.Namespace(rest=[], module=module))
        except _Found as found:
            return set(flags_under(found.args[0]))
    raise AssertionError(f"{module or run} reads no arguments")


def find_program(words: list[str]) -> tuple[str, list[str]]:
    """Return the program that a command runs, without what comes before it, and its arguments."""
    words = list(words)
    while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("$", "exec", "nohup")):
        del words[0]
    if words and words[0] == "torchrun" and "--no-python" in words:
        del words[: words.index("--no-python") + 1]
    return (words[0].rpartition("/")[2], words[1:]) if words else ("", [])


def split(text: str) -> list[str]:
    """Split as a shell does, without comments; where quotes are not closed, at spaces."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return text.split()


def apart(words: list[str], signs: tuple[str, ...]) -> list[list[str]]:
    """Part words at signs."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word in signs:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def flags_in(words: list[str]) -> Iterator[str]:
    """Yield the flags among arguments: `[--base`, `--rounds=2` and `--walk,` are flags too."""
    for word in takewhile(lambda word: word != "--", words):
        name = word.lstrip("[(").partition("=")[0].rstrip("]),.:;…")
        if FLAG.fullmatch(name) and not name.endswith("-"):
            yield name


def spread(path: str) -> list[str]:
    """Write out `{a,b}`."""
    braces = re.search(r"\{([^}]*)\}", path)
    if not braces:
        return [path]
    return [path.replace(braces[0], choice, 1) for choice in braces[1].split(",")]


def main() -> int:
    root = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1]
    faults = check(root)
    print("\n".join(faults) if faults else "no fault found")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
