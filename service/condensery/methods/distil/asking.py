"""Turn sentences of documentation round into questions whose answer is one of their literals.

A literal is a word of code: an option, a class, a file, or a number with its unit. In a sentence
it becomes X; a rule is a form of sentence ("X does Y", "to do Y, use X", "defaults to X") and
ways to ask for its X. The first rule that fits asks; what none fits is seldom asked for.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from condensery.methods.distil.wording import VERBS, base_form, third_person

FEWEST_WORDS, MOST_WORDS = 4, 25  # of a question
FEWEST_TELLING = 3  # words of a question that tell it from another
MOST_ANSWER_WORDS, MOST_ANSWER_CHARACTERS = 6, 60
MOST_REPEATS = 3  # of an answer in its passage

X = "\uf000"  # what is asked for
FIRST_TOKEN = 0xE000  # each other literal of a sentence is one private character
TOKEN = "[\ue000-\uefff]"

# What a literal is, when the sentence says so beside it.
_NOUNS = """
environment variable|command line option|command-line option|command line flag|keyword argument
config option|configuration option|configuration file|query parameter|context manager|entry point
option|flag|switch|setting|parameter|argument|function|method|class|attribute|property|variable
module|package|library|subcommand|command|decorator|exception|error|warning|file|directory|folder
keyword|key|field|value|type|object|header|hook|plugin|extension|tag|filter|signal|event|mode
backend|middleware|operator|constant|model|widget|service|tool|role|task|macro|directive|statement
format|action|handler|callback|column|script|helper|utility|marker|fixture|extra|mixin|protocol
operation|request|response|clause|section|call|message|program|cookie|endpoint|template|instance
algorithm|strategy|dtype|driver|provider|loader|namespace|scheduler|agent|server|worker|rule|check
codec|encoding|syntax|element|node|unit|route|interface|scope|permission|state|status|branch
channel|queue|image|group|database|table|accessor|engine|dialect|construct|session|schema|syntax
policy|resource|transport|formatter|reporter|subclass|base class|metaclass|alias|prefix|suffix
"""
NOUNS = tuple(noun for line in _NOUNS.split("\n") for noun in line.split("|") if noun)
NOUN = "|".join(sorted({*NOUNS}, key=lambda noun: (-len(noun), noun)))
_UNITS = {
    "How long": r"seconds?|secs?|minutes?|hours?|days?|weeks?|months?|years?|milliseconds?|ms",
    "How large": r"bytes?|[kKMGT]i?B|(?:kilo|mega|giga)bytes|bits?|pixels?|digits?|characters?",
    "How many": (
        r"lines?|times|items?|rows?|columns?|connections?|threads?|workers?|processes|requests?|"
        r"retries|attempts?|levels?|entries|messages?|files?|spaces?|iterations?|tasks?"
    ),
    "What": "%|percent",
}
NUMBER = re.compile(rf"(?<![\w.`$-])\d[\d,.]*(?:\s|-)?(?:{'|'.join(_UNITS.values())})(?!\w)")
CODE = re.compile(
    r"``\s*(?P<double>[^`\n]+?)\s*``(?!`)"
    r"|`(?P<single>[^`\n]+?)`(?![`_])"
    r"|(?<![\w`/.-])(?P<flag>--[a-z][\w-]+)(?![\w`])"
    r"|(?<![\w`/.$])(?P<bare>\$?[A-Z][A-Z0-9]*_[A-Z0-9_]+|[a-z]\w*\(\)|[a-z]+(?:_[a-z0-9]+)+)"
    r"(?![\w`(/])"
)
LITERAL = re.compile(r"[\w$@./:%\"'<*&|=?\[{#-]")
PHRASE = re.compile(r"^[A-Za-z]+( [A-Za-z]+)+$")  # words in backquotes are a link or, behind
RUN = re.compile(
    r"\b(?:run|running|execute|type|call|invoke)\W+$", re.IGNORECASE
)  # these, a command

AUXILIARY = (
    "is|are|was|can|could|may|might|must|should|will|would|does not|doesn't|has to|has been|cannot"
)
SENTENCE_END = re.compile(
    r"(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!vs\.)(?<=[.!?:;])\s+(?=[A-Z`\"'(*\ue000-\uefff-])"
)
CLAUSE_END = re.compile(
    r"[,;] (?=(?:which|so|but|and|or|while|whereas|e\.g|i\.e|the|it|you|this|then|making|causing|"
    r"unlike|instead|since|because|although|as|however|not|otherwise|see|for example|such)\b)"
    r"|; |: | - | -- | — | – | \(| (?:and|but|while) (?=[\ue000-\uefff] (?!and\b)[a-z]+s?\b)"
)
OPENING = re.compile(
    r"^(?:(?:Note(?: also)? that|However|Also|Finally|Additionally|Similarly|Here|Then|In addition|"
    r"For example|For instance|Alternatively|Again|Instead|Typically|Usually|Often|Normally|First|"
    r"Second|Next|Therefore|Thus|Moreover|Furthermore|Currently|Internally|Optionally|Please|Note|"
    r"By default|As of [\w .]+|Since [\w .]{1,20}|In this case|On the other hand|Generally|"
    r"In general|In particular|Specifically|In most cases|Of course|Besides|So|But|And|Optional|"
    r"Thereafter|Required|\(?optional\)?)"
    r"\b:?,?\s+)+",
    re.IGNORECASE,
)
VAGUE = re.compile(
    r"\b(this|these|those|such|so|following|above|below|here|latter|former|next section|see|"
    r"previous|e\.g\.?|i\.e\.?|www|https?|example|documentation|instead|foo|bar|todo)\b"
    r"|::|\||[\\{}\[\]<>]{2,}|[;—–]|: (?!wh)|\.\.\.| - |->|=>|\b\w+_(?= |\?|,)|\. [a-z]|~~",
    re.IGNORECASE,
)
_NOT_SUBJECTS = """
it this that they these those he she we i you there which one both all if when since as because
while although though once unless after before for in with by to on at so but and or whether where
what how not note see here now then due given rather like unlike using similarly even just only
until during from upon within without between among via
"""
NOT_SUBJECT = re.compile(rf"(?:{'|'.join(_NOT_SUBJECTS.split())})\b", re.IGNORECASE)
_STOP = """
a an the of to in on for from with by and or is are was be been do does did can could may will
would should must i you my your it its this that what which how where when if than as at into now
new use used using set get have has not no any some all each one also only then there them they me
lets let option name value
"""
STOP = frozenset(_STOP.split())
ADVERBS = r"(?:(?:also|always|automatically|easily|then|usually|now|only|simply|just|either)\s+)?"
YOU = (
    r"(?:(?:you|we|one|users?)\s+(?:can|should|must|may|need to|have to|could|will|might)\s+"
    rf"{ADVERBS})"
)
_DO = """
use using set setting pass passing call calling run running add adding specify specifying invoke
invoking import install enable enabling create define override provide supply give try choose
select include subclass implement edit execute append configure apply modify change write put turn
"""
DO = f"(?P<verb>{'|'.join(_DO.split())})"
IN_ORDER_TO = r"(?:in order to|to|if you (?:want|need|wish|would like|prefer) to)"
VALUE = (
    r"(?:(?:to|as|with|before|after)\s+(?!\w+e\b)\S+\s+|(?:of|in|on|from|with)\s+(?:\S+\s+){1,5}?)?"
)
BE = "(?P<be>is|are|was|can be|may be|must be|should be|will be|could be)"
WHEN = r"(?:if|when|unless|whenever|in case|because|for|on)"
CONDITION = r"(?:If|When|For|Unless|Once|After|While|Whenever)"

RAISED_IF = re.compile(
    rf"^(?P<when>(?:If|When|Unless|Whenever)\s[^{X}]+?),\s+(?:then\s+)?"
    rf"(?:{X}\s+(?:is|will be)\s+(?:raised|thrown)|[^,{X}]*?(?:raises?|throws?)\s+{X})",
    re.IGNORECASE,
)
RAISES = re.compile(
    rf"\b(?:raises?|throws?|raising|raised?)\s+{X}\s*,?\s*(?P<when>{WHEN}\s+[^{X}]+)$|"
    rf"^{X} (?:is|will be) (?:raised|thrown) (?P<then>{WHEN}\s+[^{X}]+)$",
    re.IGNORECASE,
)
DEFAULTS = (
    re.compile(
        rf"^(?P<name>[^,{X}]+?),?\s+(?:which\s+)?(?:is\s+)?defaults?\s+to\s+{X}", re.IGNORECASE
    ),
    re.compile(
        rf"^The default(?: value)?(?: setting)? (?:for|of) (?P<name>[^,{X}]+?) is {X}",
        re.IGNORECASE,
    ),
    re.compile(rf"^(?:The|Our|Its) default (?P<name>[^,{X}]+?) is {X}", re.IGNORECASE),
    re.compile(rf"^By default,? (?P<name>[^,{X}]+?) (?:is|are)(?: set to)? {X}", re.IGNORECASE),
    re.compile(rf"^(?P<name>[^,{X}]+?) (?:is|are)(?: set to)? {X} by default", re.IGNORECASE),
)
TO_USE = re.compile(
    rf"^{IN_ORDER_TO}\s+(?P<rest>[^,{X}]+(?:,\s(?:and|or)[^,{X}]+)?),\s+"
    rf"(?:then |simply |just |please |instead )?{YOU}?{ADVERBS}{DO}\s+"
    rf"(?P<prep>(?:with|on|in|from)\s+)?{X}(?P<tail>.*)$",
    re.IGNORECASE,
)
USE_TO = re.compile(
    rf"^(?:[^{X}]*?(?:,|;|\b(?:can|should|may|must|could|please|simply|just|then|either|also))\s+)?"
    rf"{DO}\s+(?P<prep>(?:with|on|in|from)\s+)?{X}\s+{VALUE}"
    rf"(?P<why>{IN_ORDER_TO}|for)\s+(?P<rest>[^{X}]+)$",
    re.IGNORECASE,
)
BY_DOING = re.compile(
    rf"^(?:(?:you|we|users?)\s+(?:can|could|may|should|must|need to)\s+{ADVERBS}|"
    r"it is possible to\s+)?"
    rf"(?P<deed>[a-z]+\s[^,{X}]+?)\s+(?:by|using|via|through|with)\s+"
    rf"(?:(?:calling|setting|passing|using|adding|running|specifying|means of|providing)\s+)?"
    rf"(?:it with\s+)?{X}(?P<tail>[^{X}]*)$",
    re.IGNORECASE,
)
IF_USE = re.compile(
    rf"^(?P<condition>{CONDITION}\s[^{X}]+?),\s+(?:then |simply |just |please )?{YOU}?(?:want to )?"
    rf"{ADVERBS}{DO}\s+{X}(?P<tail>.*)$",
    re.IGNORECASE,
)
PLACE = re.compile(
    rf"^(?P<what>[^,{X}]+?)\s+{BE}\s+{ADVERBS}(?P<verb>stored|saved|located|written|placed|"
    rf"defined|installed|kept|found|declared|documented|listed|created|put|available|configured|"
    rf"logged|sent|read|loaded|imported|downloaded|recorded|provided|implemented|cached|copied)\s+"
    rf"(?P<prep>in|at|under|to|from|into|on|inside)\s+{X}(?P<tail>.*)$",
    re.IGNORECASE,
)
PASSIVE = re.compile(
    rf"^(?P<what>[^,{X}]+?)\s+{BE}\s+{ADVERBS}(?P<verb>\w+)\s+(?P<between>[^,{X}]{{0,40}}?\s?)"
    rf"(?P<prep>with|by|using|via|through)\s+"
    rf"(?:(?:calling|setting|passing|the use of|means of|using|adding|running|specifying)\s+)?"
    rf"{X}(?P<tail>.*)$",
    re.IGNORECASE,
)
SUBJECT = re.compile(
    rf"^(?:(?P<lead>{CONDITION}\s[^,{X}]+),\s+)?{X}(?P<relative>,? (?:which|that))?"
    rf"(?:\s+(?:also|now|only|always|automatically|then|simply))?"
    rf"\s+(?P<verb>(?:{AUXILIARY}|[a-z]+s))\s+(?P<rest>[^{X}]+)$",
    re.IGNORECASE,
)
RELATIVE = re.compile(
    rf"{X},? (?:which|that)\s+(?:also\s+)?(?P<verb>(?:{AUXILIARY}|[a-z]+s))\s+(?P<rest>[^{X}]+)$"
)
LEAD = re.compile(
    r"(?P<lead>(?:If|When|For|In|On|After|Once|While|With|During|To|By|As|Since|Unless|At|Whenever|"
    r"From|Within|Using|Under|Because|Before|Until|Upon|Given|Without|Although|Like|Unlike)\s[^,]+),\s+"
    r"(?:then\s+)?"
)
CALLED = re.compile(
    rf"(?P<what>\b(?:an?|the)\s+[\w\s-]{{3,50}}?)\s+(?:is\s+|are\s+)?(?P<how>called|named|known as)"
    rf"\s+{X}(?P<tail>[^{X}]*)$",
    re.IGNORECASE,
)
OBJECT = re.compile(
    rf"^(?P<what>(?:The|An?|Each|Every|{TOKEN}|[A-Z]\w+)[^,{X}]{{0,60}}?)\s+{ADVERBS}"
    rf"(?P<verb>[a-z]+s)\s+{X}(?P<tail>[^{X}]*)$"
)
MODAL = re.compile(
    rf"^(?P<what>(?:The|An?|Each|Every|All|You|Your|{TOKEN}|[A-Z]\w+)[^,{X}]{{0,60}}?)\s+"
    rf"(?P<aux>can|may|must|should|will)\s+{ADVERBS}(?P<verb>[a-z]+)\s+{X}(?P<tail>[^{X}]*)$"
)
PLURAL = re.compile(
    rf"^(?P<what>(?:The|All|Most|Some|[A-Z]\w+)[^,{X}]{{0,40}}?s)\s+{ADVERBS}"
    rf"(?P<verb>[a-z]+)\s+{X}(?P<tail>[^{X}]*)$"
)
INVERTIBLE = re.compile(
    rf"^(?P<what>(?:The|An?|Each|Every|All|You|Your|{TOKEN}|[A-Z]\w+)[^,{X}]{{0,60}}?)\s+"
    rf"(?P<aux>is|are|can|may|must|should|will|could)\s+(?P<middle>[^,{X}]*?)"
    rf"(?P<prep>with|in|from|via|through|under|using)\s+{X}(?P<tail>[^{X}]*)$"
)
COUNTED = re.compile(
    rf"^(?P<what>(?:The|An?|Each|Every|{TOKEN}|Maximum|[A-Z]\w+)[^,{X}]{{0,60}}?)\s+"
    rf"(?P<verb>is|are|was|[a-z]+s)\s+(?:(?:also|set|limited|waiting)\s+)?"
    rf"(?P<bound>(?:for |to )?(?:at most|up to|a maximum of|no more than|at least|a minimum of|"
    rf"about|approximately|for|every|to) )?{X}(?P<tail>[^{X}]*)$",
    re.IGNORECASE,
)
DEFAULT_VALUE = re.compile(
    r"\b[Dd]efaults?(?: value)?(?: is|:| to|s to| setting is|\*\*:|:\*\*| =|=)\s+(?:set to )?"
    r"(?:``(?P<double>[^`\n]{1,40})``|`(?P<single>[^`\n]{1,40})`|"
    r"(?P<bare>-?\d[\d.,]*\d?(?: (?:seconds?|minutes?|bytes|ms))?|True|False|None|"
    r"\"[^\"\n]{1,30}\")"
    r"(?![\w]))"
)
# Sphinx's directives that name a thing, and what it is; "" where they don't say.
_DIRECTIVES = {
    "option": "option",
    "confval": "option",
    "cmdoption": "option",
    "setting": "setting",
    "envvar": "environment variable",
    "rst:directive": "directive",
    "attribute": "attribute",
    "function": "function",
    "method": "method",
    "class": "class",
    "data": "variable",
    "django-admin-option": "option",
    "django-admin": "command",
    "templatefilter": "filter",
    "exception": "exception",
    "signal": "signal",
    "tag": "tag",
    "filter": "filter",
    "describe": "",
    "stat": "",
    "fieldlookup": "",
    "templatetag": "tag",
    "program": "command",
}
DEFINITION = re.compile(
    r"^\s*(?:[-*+]\s+|\d+\.\s+|\.\. (?:py:)?(?P<directive>"
    + "|".join(sorted(_DIRECTIVES, key=len, reverse=True))
    + r")::\s*|\|\s*)?"
    r"(?:\*\*)?(?P<head>``[^`\n]+``|`[^`\n]+`|--?[a-zA-Z][\w-]+(?:[ =][\w<>\[\].-]+)?|"
    r"(?<=:: )[^\n]+)(?:\*\*)?(?:\s*\([^)\n]{0,30}\))?(?::type: [^\n]+\n)?"
    r"\s*(?:\s-{1,2}\s|\s?[:–—|]+\s|:\n+\s+|\n+\s{2,})\s*"
    r"(?P<about>[A-Za-z][^|\n]*(?:\n(?!\s*[-*+`|]|\s*\n|\s*\.\.)[^|\n]+)*)",
    re.MULTILINE,
)
FIELDS = frozenset(
    ("param", "type", "return", "returns", "rtype", "raises", "note", "warning", "default")
)
# What an object or a modal's subject is not, if it holds one of these.
CLAUSE = re.compile(rf"\b(that|which|who|if|when|and|{AUXILIARY})\b", re.IGNORECASE)
FINITE = re.compile(
    r"(?<!that )(?<!which )(?<!it )(?<!there )(?<!\w to )"
    r"\b(is|are|was|were|can|could|will|must|should|has|have|does|do|cannot)\b"
)
PROGRAM = re.compile(
    r"^\s*(from \w|import |def |class \w|with .*:$|return |>>>|\.\.\. |\$ |# |@\w|[|+]|\w+ = |"
    r"<|for .*:$|if .*:$|In \[|===|---)|[{};=(\[]$|\)$|^ {5,}\S"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, its answer as it stands in the passage, and the rule that made it."""

    question: str
    answer: str
    rule: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence in which each literal is one private character."""

    text: str
    literals: Sequence[str]

    def written(self, text: str) -> str:
        """Return a part of it with its literals as they are written."""
        return re.sub(TOKEN, lambda match: self.literals[ord(match[0]) - FIRST_TOKEN], text)


def plain(text: str) -> str:
    """Return text without the markup of links, footnotes and tags."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\[([^\]]+)\]\[[^\]]*\]", r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^`>]+>`__?", r"\1", text)
    text = re.sub(r"\s*\[[\w#*^]{1,4}\]_?", "", text)
    text = re.sub(r"(?<=\w)_(?=[ ,.)]|$)", "", text)
    return re.sub(r"\*\*([^*\n]+)\*\*|(?<![\w*`])\*([^*\n`]+)\*(?![\w*])", r"\1\2", text)


def sentences(paragraph: str) -> Iterator[Sentence]:
    """Yield a paragraph's sentences; none that end in a colon or ask something themselves."""
    paragraph = re.sub(r"^\s*(?:(?:[-*+>]|\d+[.)]|#\.)\s+)?", "", paragraph)
    paragraph = re.sub(r"^(?:\.\. \w+::|!!! \w+|> ?|\[!\w+\])\s*", "", paragraph)
    literals: list[str] = []

    def token(match: re.Match[str]) -> str:
        literals.append(next(filter(None, match.groups())))
        return chr(FIRST_TOKEN + len(literals) - 1)

    text = " ".join(plain(CODE.sub(token, paragraph)).split())
    for part in SENTENCE_END.split(text):
        words = part.split()
        if 4 <= len(words) <= 45 and not part.rstrip().endswith((":", "?")):
            yield Sentence(part.strip().rstrip(".;!, "), literals)


def kind(literal: str, rng: random.Random) -> str:
    """Return what a literal looks like, a flag, a class or a file; "" if nobody can tell."""
    forms = (
        (r"--?[a-zA-Z]", ("flag", "option", "option", "command-line option", "switch")),
        (r".*(Error|Exception|Warning)$", ("exception", "error")),
        (
            r"\$?[A-Z][A-Z0-9]*_[A-Z0-9_]+$",
            ("setting", "variable", "option", "environment variable"),
        ),
        (r"[\w.]+\(.*\)$", ("function", "method", "call")),
        (r"@\w", ("decorator",)),
        (
            r".*\w\.(py|toml|cfg|ini|ya?ml|json|txt|md|rst|html?|conf|sh|lock|xml|js|css)$",
            ("file",),
        ),
        (r"[~.]?/[\w./-]*$|.*\w/$", ("directory", "folder", "path")),
        (r"\.?[\d.,]+%?$", ("value", "number")),
        (r"(True|False|None|null|true|false|['\"].*['\"])$", ("value",)),
        (r"[a-z]+ [\w./-]", ("command",)),
        (r"([\w.]*\.)?([A-Z][a-z0-9]+){2,}$", ("class",)),
    )
    return next((rng.choice(names) for form, names in forms if re.match(form, literal)), "")


def is_program(paragraph: str) -> bool:
    """Return whether lines are a program, a session or a table rather than sentences."""
    lines = [line for line in paragraph.split("\n") if line.strip()]
    return 3 * sum(bool(PROGRAM.search(line)) for line in lines) >= len(lines)


def ask(headings: Sequence[str], passage: str, rng: random.Random) -> Iterator[Asked]:
    """Yield questions about a passage; not all of them are good.

    Args:
        headings: The package, then what the passage stands under, outermost first.
    """
    body = re.sub(r"^\s*(```|~~~)[\s\S]*?(?:^\s*\1|\Z)", "\n", passage, flags=re.MULTILINE)
    found = [*DEFINITION.finditer(body)]
    ends = [*(match.start() for match in found[1:]), len(body)]
    for match, until in zip(found, ends, strict=False):
        about, noun = body[match.start("about") : until], _DIRECTIVES.get(match["directive"], "")
        yield from _of_definition(match["head"], about, noun or _noun_of(headings), rng)
    title = headings[-1]
    if len(headings) > 1 and re.fullmatch(
        r"--?[\w-]+|[a-z_.]*_[\w.]+|[A-Z]+_[A-Z_]+|\w+\(\)", title
    ):
        yield from _of_definition(title, body, _noun_of(headings[:-1]), rng)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)", body):
        if not is_program(paragraph):
            for sentence in sentences(paragraph):
                yield from _of_sentence(sentence, rng)


def _noun_of(headings: Sequence[str]) -> str:
    """Return what a section named "Environment variables" or "Options" lists."""
    title = headings[-1].lower() if len(headings) > 1 else ""
    return next((noun for noun in NOUNS if title.endswith(f"{noun}s")), "")


def _of_sentence(sentence: Sentence, rng: random.Random) -> Iterator[Asked]:
    text = OPENING.sub("", sentence.text)
    places = [(mark, sentence.written(mark), False) for mark in re.findall(TOKEN, text)]
    places += [(match[0], match[0], True) for match in NUMBER.finditer(text)]
    for mark, literal, number in places:
        answer = literal.strip().rstrip(",;")
        beside = (
            rf"{TOKEN}(?:\s*,|\s+(?:and|or))\s+(?:the\s+)?{mark}|"
            rf"{mark}(?:\s*,\s*|\s+)(?:(?:and|or|/)\s+)?(?:the\s+)?{TOKEN}"
        )
        if text.count(mark) > 1 or (not number and re.search(beside, text)):
            continue  # one of several
        phrase = re.search(
            rf"(?:\b(?:the|a|an|its|your|our|a new|another)\s+)?(?:\b(?P<before>{NOUN})\s+)?"
            rf"{re.escape(mark)}(?:\s+(?P<after>{NOUN})\b(?!\s+(?:{NOUN})s?\b))?",
            text,
            re.IGNORECASE,
        )
        if not phrase or not LITERAL.match(answer):
            continue
        if PHRASE.match(answer) and not RUN.search(text[: phrase.start()]):
            continue
        noun = (phrase["after"] or phrase["before"] or "").lower() or kind(answer, rng)
        asked = f"{text[: phrase.start()]}{X}{text[phrase.end() :]}"
        asked = re.sub(rf"\s*\((?![^)]*{X})[^)]*\)", "", asked)
        if asked.count(X) != 1 or re.search(rf"{X}['’\w/(-]|[\w/-]{X}", asked):
            continue
        unit = answer if number else ""
        for clause, when in _clauses(asked):
            made = [*_turn(_capital(clause), noun, unit, rng)]
            for rule, question in made:
                whole = f"{question[:-1]} {when}?" if when else question
                yield Asked(sentence.written(_capital(whole)), answer, rule)
            if made:
                break


def _clauses(text: str) -> Iterator[tuple[str, str]]:
    """Yield a sentence with X, then its main clause and when that holds, then X's clause."""
    yield text, ""
    if (lead := LEAD.match(text)) and X not in lead[0]:
        when = _me(_lower(lead["lead"])) if re.match(f"{CONDITION}\\b", lead["lead"]) else ""
        yield OPENING.sub("", text[lead.end() :]), when
    clause = next((each for each in CLAUSE_END.split(text) if X in each), text)
    clause = OPENING.sub("", re.sub(r"^(?:and|but|or|so|then|that|also)\s+", "", clause))
    if clause != text and len(clause.split()) > 4:
        yield clause, ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if re.match(r"[A-Z][a-z' ]", text) else text


def _clause(text: str) -> str:
    """Return a text up to where its clause ends."""
    return CLAUSE_END.split(text.strip(" ,.;"))[0].strip(" ,.;")


def _tail(text: str) -> str:
    """Return what follows X if it goes on with the sentence's own clause."""
    text = _clause(text)
    if re.match(rf"(to|as) ({TOKEN}|True|False|None|[\"'\d])", text):
        return ""
    goes_on = r"(?:in|on|for|when|if|to|at|from|during|of|as|by|until|after|before)\b"
    return f" {text}" if re.match(goes_on, text) else ""


def _me(text: str) -> str:
    """Return what is said to the user as the user says it."""
    text = re.sub(r"\byou(?:'re| are)\b", "I am", text, flags=re.IGNORECASE)
    governs = (
        r"\b(let|allow|enable|give|help|require|ask|prompt|tell|remind|get|make|warn|save|show|keep|"
        r"cause|force|permit|lead|save|offer)(s|ing|ting|ping|es|)"
    )
    text = re.sub(rf"({governs}|\b(?:for|to|with|of|on|by|from|between)) you\b", r"\1 me", text)
    for old, new in (("you", "I"), ("your", "my"), ("yourself", "myself"), ("yours", "mine")):
        text = re.sub(rf"\b{old}\b", new, text, flags=re.IGNORECASE)
    return text


def _turn(text: str, noun: str, number: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield rule and question for a sentence with X, by the first rule that fits.

    Args:
        noun: What X is; "" if nobody can tell.
        number: X as it is written, if it is a number with its unit; else "".
    """
    which = f"which {noun}" if noun and rng.random() < 0.85 else "what"
    for pattern in DEFAULTS:
        if match := pattern.match(text):
            if not NOT_SUBJECT.match(match["name"]):
                yield "default", default_question(_lower(match["name"]), rng)
            return
    if number:
        if (match := COUNTED.match(text)) and not NOT_SUBJECT.match(match["what"]):
            yield from _of_number(match, number)
        return
    if match := RAISED_IF.search(text) or RAISES.search(text):
        when = _me(_clause(_lower(match["when"] or match.groupdict().get("then") or "")))
        if re.search(r"(Error|Exception|Warning)\b", noun, re.IGNORECASE) or noun in (
            "exception",
            "error",
            "",
        ):
            asks = ("What is raised", "Which exception is raised", "Which error do I get")
            yield "raises", f"{rng.choice(asks)} {when}?"
        return
    for rule, form in (("to use", TO_USE), ("use to", USE_TO)):
        if match := form.match(text):
            verb, rest, prep = match["verb"], match["rest"], match["prep"] or ""
            made: Iterable[tuple[str, str]] = ()
            if match.groupdict().get("why", "to").lower() != "for":
                made = [*_to_do(rule, verb, rest, prep, which, rng)]
            elif re.match(r"(\w+ing|the|an?|all|any|each|every)\b", rest):
                do = f"do I {base_form(verb) or 'use'} for {_me(_clause(rest))}"
                made = [("use for", f"{rng.choice(('what', which))} {do}?")]
            if made:
                yield from made
                return
    if match := IF_USE.match(text):
        condition = _me(_lower(_clause(match["condition"])))
        verb = base_form(match["verb"]) or "use"
        ways = (
            f"{which} should I {verb} {condition}?",
            f"{_capital(condition)}, {which} do I {verb}?",
            f"What do I {verb} {condition}?",
        )
        yield "if use", rng.choice(ways)
        return
    if match := PLACE.match(text):
        finite = re.search(rf"\b({AUXILIARY})\b", match["what"])
        if not NOT_SUBJECT.match(match["what"]) and not finite:
            what, (aux, _, rest) = _lower(match["what"]), match["be"].lower().partition(" ")
            end = f"{what} {rest} {match['verb']}{_tail(match['tail'])}?".replace("  ", " ")
            asked = [f"Where {aux} {end}"]
            if noun:
                asked.append(f"{match['prep']} which {noun} {aux} {end}")
            yield "place", rng.choice(asked)
        return
    if match := SUBJECT.match(text) or RELATIVE.search(text):
        yield from _of_subject(match, which)
        return
    if match := PASSIVE.match(text):
        yield from _of_passive(match, noun, which, rng)
        return
    if match := BY_DOING.match(text):
        verb = match["deed"].split(maxsplit=1)[0].lower()
        if verb in VERBS and not re.search(rf"{FINITE.pattern}|(ed|en|an)$", match["deed"]):
            deed = match["deed"][:1].lower() + match["deed"][1:]
            yield from _to_do("by doing", "use", deed + _tail(match["tail"]), "", which, rng)
            return
    if match := CALLED.search(text):
        what = re.sub(r"^an?\b", "the", match["what"], flags=re.IGNORECASE).lower()
        odd = rf"\b({AUXILIARY}|has|have|that|which|and|to|new)\b"
        if len(what.split()) <= 6 and not re.search(odd, what):
            yield "called", f"What is {what}{_tail(match['tail'])} {match['how'].lower()}?"
        return
    if match := OBJECT.match(text):
        base, what = base_form(match["verb"]), match["what"]
        if base and not NOT_SUBJECT.match(what) and not CLAUSE.search(what):
            yield "object", f"{which} does {_lower(what)} {base}{_tail(match['tail'])}?"
        return
    if match := MODAL.match(text) or PLURAL.match(text):
        what, verb = match["what"], match["verb"].lower()
        subject = not NOT_SUBJECT.match(what) or re.match("You$|All", what)
        if verb in VERBS | {"have"} and subject and not CLAUSE.search(what):
            aux = match.groupdict().get("aux") or "do"
            yield "modal", _me(f"{which} {aux} {_lower(what)} {verb}{_tail(match['tail'])}?")
        return
    if match := INVERTIBLE.match(text):
        what, middle = match["what"], match["middle"].strip()
        odd = rf"\b(that|which|who|if|when|and|or|as|but|so|similar|due|set|{AUXILIARY})\b"
        subject = not NOT_SUBJECT.match(what) or re.match("You\b|All", what)
        # "You can do Y listed in X": X belongs to "listed".
        hanging = len(middle.split()) > 2 and re.search(r"(ed|en|ing|available)$", middle)
        if subject and middle and not hanging and not re.search(odd, f"{what} {middle}"):
            wh, prep = f"which {noun}" if noun else "what", match["prep"].replace("using", "with")
            tail = _tail(match["tail"])
            yield "inverted", _me(f"{prep} {wh} {match['aux']} {_lower(what)} {middle}{tail}?")
            return
    # In its place: only a few, since hardly anybody asks like that.
    if noun and rng.random() < 0.4 and not NOT_SUBJECT.match(text) and not re.search("[,—:]", text):
        near = r"\b(the|an?|by|with|in|to|using|from|of|is|on)"
        if re.search(rf"{near} {X}($| (in|for|on|when|to|with|from|as|at|if)\b)", text) and (
            re.search(rf"\b({AUXILIARY}|[a-z]{{3,}}[^s]s)\b.*{X}", text)
        ):
            yield "in place", _me(text.replace(X, f"which {noun}")) + "?"


def _of_subject(match: re.Match[str], which: str) -> Iterator[tuple[str, str]]:
    rest, verb = _clause(match["rest"]), match["verb"].lower()
    known = re.fullmatch(AUXILIARY, verb) or base_form(verb)
    odd = (
        r"(used|shown|described|defined|available|required|true|set)$|above|below|new |deprecat|add"
    )
    if not known or re.match(odd, rest):
        return
    lead = match.groupdict().get("lead") or ""
    when = f" {_lower(_clause(lead))}" if lead and not re.match("For|After", lead) else ""
    front = f"{lead}, " if lead and not when else ""
    yield "subject", _me(f"{front}{which} {verb} {rest}{when}?")


def _of_passive(
    match: re.Match[str], noun: str, which: str, rng: random.Random
) -> Iterator[tuple[str, str]]:
    base, verb = base_form(match["verb"]), match["verb"].lower()
    joined = re.search(r"\b(and|or|but|which|that)\b", match["between"])
    joined = joined or re.search(rf"\b({AUXILIARY})\b", match["what"])
    if not base or verb.endswith(("ing", "s")) or NOT_SUBJECT.match(match["what"]) or joined:
        return
    what, tail = _lower(match["what"]), _tail(match["tail"])
    aux, _, rest = match["be"].lower().partition(" ")
    between = f" {match['between'].strip()}".rstrip()
    done = f"{what} {rest} {verb}{between}".replace("  ", " ")
    asked = [f"{which} {third_person(base)} {what}{between}{tail}?"]
    if match["prep"] == "by":
        asked.append(f"By {'which ' + noun if noun else 'what'} {aux} {done}{tail}?")
    else:
        asked.append(f"How {aux} {done}{tail}?")
        asked.append(f"With {'which ' + noun if noun else 'what'} {aux} {done}{tail}?")
        asked.append(f"What {aux} {done} with{tail}?")
    if aux in ("can", "may"):
        asked.append(f"How do I {base} {_me(what)}{between}{tail}?")
    yield "passive", rng.choice(asked)


def _of_number(match: re.Match[str], number: str) -> Iterator[tuple[str, str]]:
    wh = next(wh for wh, unit in _UNITS.items() if re.search(rf"(?:{unit})$", number))
    what, tail, bound = _lower(match["what"]), _tail(match["tail"]), (match["bound"] or "").strip()
    verb = match["verb"].lower()
    end = " at most" if re.search("most|up to|maximum|more", bound) else ""
    end = " at least" if re.search("least|minimum", bound) else end
    if re.search(rf"\b(that|which|and|if|when|{AUXILIARY}|but)\b", what):
        return
    if verb in ("is", "are", "was"):
        wh = "What" if wh == "How many" or "time" in what else wh
        wh = "How often" if bound == "every" else wh
        yield "number", f"{wh} {verb} {what}{tail}{end}?"
    elif base := base_form(verb) or ("have" if verb == "has" else ""):
        wh = f"How many {number.rsplit(maxsplit=1)[-1]}" if wh == "How many" else wh
        wh = wh.replace("How large", "How much")
        yield "number", f"{wh} does {what} {base}{tail}{end}?"


def _to_do(
    rule: str, verb: str, rest: str, prep: str, which: str, rng: random.Random
) -> Iterator[tuple[str, str]]:
    verb, rest = base_form(verb) or "use", _me(_clause(rest))
    if rest.partition(" ")[0] not in VERBS | {"be", "have", "work", "go"}:
        return
    asked = (
        f"What do I {verb} to {rest}?",
        f"How do I {rest}?",
        f"How can I {rest}?",
        f"How to {rest}?",
        f"{which} do I {verb} {prep}to {rest}?",
        f"What should I {verb} {prep}to {rest}?",
        f"I want to {rest}: {which} do I {verb}?",
        f"With {which} can I {rest}?",
        f"{which} lets me {rest}?",
        f"{which} {third_person(rest)}?",
    )
    # "X does Y and do Z" would be wrong.
    yield rule, rng.choice(asked[:-1] if re.search(r"\b(and|or|yourself|your)\b", rest) else asked)


def default_question(name: str, rng: random.Random) -> str:
    """Return one of the ways to ask for a default."""
    name = re.sub(r"^(?:the )?default (?:value )?(?:of|for) ", "", name)
    short = re.sub(r"^(?:the|an?) ", "", name)
    return rng.choice(
        (
            f"What does {name} default to?",
            f"What is the default of {name}?",
            f"What is the default {short}?",
            f"Which value does {name} have unless it is set?",
            f"What is {name} by default?",
            f"What is {name} if nothing is given?",
            f"Which default does {name} have?",
        )
    )


def _of_definition(head: str, about: str, noun: str, rng: random.Random) -> Iterator[Asked]:
    """Yield questions for and about a name with what is said of it.

    Args:
        noun: What the name is, if the text says so; else "", and its looks tell.
    """
    name = re.sub(r"^(?:async|await|class|static|classmethod|const) ", "", head.strip("`* "))
    name = re.split(r"(?<=\w)[ =](?=[<\[A-Z])|, | [\[-]", name)[0].strip()
    name = re.split(r"(?<=\w)\(", name)[0] if re.match(r"[\w.]+\(.", name) else name
    if not LITERAL.match(name) or len(name.split()) > 2 or name.lower() in FIELDS:
        return
    noun = noun or kind(name, rng)
    called = re.match(r"[\w.]+\(", head)  # what has defaults of its own
    if (match := DEFAULT_VALUE.search(about)) and match.start() < 600 and not called:
        value = match["double"] or match["single"] or match["bare"].rstrip(".,")
        yield Asked(default_question(name, rng), value, "definition default")
    sentence = next(sentences(re.sub(r"\s*\([^()]*\)", "", about)), None)
    if sentence is None or rng.random() < 0.05:
        return
    text = _clause(OPENING.sub("", sentence.text))
    first, _, rest = text.partition(" ")
    which, low = f"which {noun}" if noun else "what", first.lower()
    sets = low in ("specifies", "sets", "defines", "determines", "controls", "specify", "set")
    if not rest:
        return
    if low in VERBS:
        asked = [f"{which} {third_person(low)} {rest}?"] * 3
        asked += [f"{which} lets me {low} {rest}?", f"How do I {low} {rest}?"]
        asked += [f"With {which} do I {rng.choice(('set', 'choose', 'change'))} {rest}?"] * sets
    elif low.endswith("s") and base_form(low):
        asked = [f"{which} {low} {rest}?"] * 2 + [f"{which} lets me {base_form(low)} {rest}?"]
        asked += [f"With {which} do I {rng.choice(('set', 'choose', 'change'))} {rest}?"] * sets
    elif low == "used" and re.match(r"(to|for|by|when|in|as|with)\b", rest):
        asked = [f"{which} is used {rest}?"]
    elif low == "whether":
        asked = [f"{which} says whether {rest}?", f"With {which} do I choose whether {rest}?"]
    elif low in ("if", "when") and (
        found := re.match(r"(?:set|[Tt]rue|given|specified|enabled|[\ue000-\uefff])\S*, (.+)", rest)
    ):
        does = re.sub(r"^(then |this (option )?|it )", "", found[1])
        verb = does.partition(" ")[0]
        asked = [
            f"{which} {does if base_form(verb) and verb[-1] == 's' else 'makes that ' + does}?"
        ]
    elif re.match(r"(?:The|An?|[A-Z][a-z]+)$", first) and not FINITE.search(rest):
        if NOT_SUBJECT.match(first) or low.endswith("ly") or len(text.split()) > 20:
            return
        article = "" if re.match(r"(the|an?|all|any|one|some|no)\b", low) else "the "
        verb = rng.choice(("is", "is", "gives", "holds", "stands for"))
        verb = "holds" if noun in ("directory", "folder", "path", "file") else verb
        article, verb = ("", "is") if low.endswith("ed") else (article, verb)
        asked = [f"{which} {verb} {article}{first if first == 'URL' else low} {rest}?"]
    else:
        return
    yield Asked(sentence.written(_capital(_me(rng.choice(asked)))), name, "definition")


def is_good(asked: Asked, passage: str) -> bool:
    """Return whether a question stands by itself and has one answer in its passage."""
    question, answer = asked.question, asked.answer
    words = question.split()
    if not FEWEST_WORDS <= len(words) <= MOST_WORDS or VAGUE.search(question):
        return False
    if not re.search(r"\d|\w.|.\w", answer) or len(answer) > MOST_ANSWER_CHARACTERS:
        return False
    if len(answer.split()) > MOST_ANSWER_WORDS:
        return False
    if len(answer) > 2 and answer.strip("`-_()$. ").lower() in question.lower():
        return False
    bare = {word.strip("?,.:;\"'()").lower() for word in words}
    noun = re.search(rf"\b[Ww]hich (?:\S+ )?({NOUN})\b", question)
    bare -= {*noun[1].split()} if noun else set()
    telling = {word for word in bare if len(word) > 2 and word not in STOP}
    if len(telling) < FEWEST_TELLING or re.search(r"\b(it|they|them)\?$", question):
        return False
    if re.search(r"^(Which|What|How)[\w ]{0,25} (it|they|that) ", question):
        return False
    odd = any(question.count(a) != question.count(b) for a, b in ("()", "[]", "{}"))
    if odd or question.count('"') % 2 or re.search("[`*#]", question):
        return False
    found = re.findall(rf"(?<![\w-]){re.escape(answer)}(?![\w])", passage)
    return 1 <= len(found) <= MOST_REPEATS


def name_package(question: str, package: str, rng: random.Random) -> str:
    """Return a question that says which package it is about."""
    if package.lower() in question.lower():
        return question
    where = rng.random()
    if where < 0.35 and (match := re.match(rf"((?:With |In )?[Ww]hich) ({NOUN})\b", question)):
        return f"{match[1]} {package} {question[match.start(2) :]}"
    if where < 0.5 and not question.startswith("I "):
        return f"In {package}, {_lower(question)}"
    return f"{question[:-1]} {rng.choice(('in', 'in', 'in', 'with'))} {package}?"


# Headings begin with these as often when they name a thing.
_THINGS = """
access cache call change check command comment contact copy count debug design display document
draft dump end export extract fail file filter fix flag force form format function group help hook
host hint import index issue label launch limit link list lock log look map mark mask match
measure model mount need note notice object offer order output package patch pause place plot plug
point prefix process profile project prompt push query queue quote rank reach read record release
reply report request result return review roll route run sample scale schedule scope search share
shift show sign slice sort source stack start state stop store stream strip support switch tag
target task template test thread tie total touch trace track transfer type update upgrade use
version view wait watch work wrap
"""
THINGS = frozenset(_THINGS.split())


def ask_heading(heading: str, package: str, text: str, rng: random.Random) -> str:
    """Return a heading as a question, "" of one that names no deed.

    Args:
        text: What it stands over: words that are small in it are so in the question.
    """
    heading = re.sub(r"[`*]", "", re.sub(r"^[\d.]+\s+", "", plain(heading))).strip(" :.")
    words = heading.split()
    if not 3 <= len(words) <= 14 or VAGUE.search(heading):
        return ""
    if heading.endswith("?"):
        asks = r"(How|Why|What|Where|When|Which|Can|Is|Does|Do)\b"
        return heading if re.match(asks, heading) else ""
    known = {*re.findall(r"\b[a-z]+\b", text)}
    words = [word.lower() if word.lower() in known | STOP else word for word in words]
    first, second = words[0].lower(), words[1].lower()
    if first == "how" and second == "to":
        words = words[2:]
    elif (
        re.match(r"(for|and|or|of|in|to|as|is|vs|on|by|with|from|the)$", second)
        and first[-3:] != "ing"
    ):
        return ""
    elif first.endswith("ing") and base_form(first):
        words[0] = base_form(first)
    elif first not in VERBS or (first in THINGS and second not in ("the", "a", "an", "your")):
        return ""
    deed = re.sub(
        r"\b(and|or) (\w+ing)\b",
        lambda match: f"{match[1]} {base_form(match[2]) or match[2]}",
        _lower(" ".join(words)),
    )
    of = "" if package.lower() in heading.lower() else f" in {package}"
    mine = _me(deed)
    return rng.choice((f"How do I {mine}{of}?", f"How can I {mine}{of}?", f"How to {deed}{of}?"))
