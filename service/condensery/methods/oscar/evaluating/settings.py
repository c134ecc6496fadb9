"""In which settings a pair is asked: what it is given, and how the generator reads it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from condensery.errors import InputError, shorten

Source = Literal["none", "others", "gold", "five", "retrieved", "bm25"]
PASSAGES = (1, 2, 5, 10, 20, 50)
FIVE = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to ask all questions.

    Attributes:
        key: Its name in the report.
        source: Where the passages are from: none at all, other articles, the question's own, its
            own among five, retrieved, or retrieved by BM25 whatever retrieval is otherwise.
        count: How many are given.
        read: How many of them the generator reads; 0 is all.
        scored: Whether the pair's own scores order them; else they keep their order.
        plain: Whether their text is read instead of vectors; nothing is compressed then.
    """

    key: str
    source: Source
    count: int
    read: int = 0
    scored: bool = False
    plain: bool = False

    @property
    def keep(self) -> int:
        """How many are read."""
        return min(self.read or self.count, self.count)

    @property
    def asks(self) -> str:
        """What is asked, by a name that settings share where they ask the same.

        Of one passage there is no order, and text that is not read need not be there at all.
        """
        count = self.keep if self.plain else self.count
        order = "scored" if self.scored and count > 1 and not self.plain else "in-order"
        form = "text" if self.plain else "vectors"
        return f"{self.source}-{count}-read-{self.keep}-{order}-{form}"


FIXED = (
    Setting("no_passage", "none", 0),
    Setting("others_passages", "others", FIVE, scored=True),
    Setting("gold", "gold", 1, scored=True),
    Setting("gold_plain", "gold", 1, plain=True),
    Setting("gold_among_five", "five", FIVE, scored=True),
    Setting("gold_among_five_best_one", "five", FIVE, read=1, scored=True),
    Setting("gold_among_five_plain", "five", FIVE, plain=True),
)
FAMILIES = ("plain", "compressed", "reranked", "bm25")
_RETRIEVED = re.compile(rf"({'|'.join(FAMILIES)})_([1-9][0-9]{{0,5}})")


def retrieved(family: str, count: int, read: int, *, by_words: bool) -> Setting:
    """Return the setting ``<family>_<count>``.

    Args:
        family: Of ``FAMILIES``.
        count: Passages retrieved.
        read: Passages read of a family that chooses; at most ``count``.
        by_words: Whether passages are retrieved by BM25 anyway.
    """
    source: Source = "bm25" if by_words or family == "bm25" else "retrieved"
    return Setting(
        key=f"{family}_{count}",
        source=source,
        count=count,
        read=read if family in ("reranked", "bm25") else 0,
        scored=family == "reranked",
        plain=family in ("plain", "bm25"),
    )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What can be measured.

    Attributes:
        gold: Whether every question has its passage.
        corpus: Passages to retrieve from; 0 is no corpus.
        scores: Whether the pair scores passages.
    """

    gold: bool
    corpus: int
    scores: bool

    def refuses(self, setting: Setting) -> str:
        """Say why a setting can't be measured; "" if it can."""
        if setting.source in ("gold", "five", "others") and not self.gold:
            return "needs every question's passage (context)"
        if setting.source in ("retrieved", "bm25") and not self.corpus:
            return "needs a corpus to retrieve from (--corpus)"
        chooses = setting.scored and setting.keep < setting.count
        if (chooses or setting.key.startswith("reranked_")) and not self.scores:
            return "needs a pair that scores passages"
        return ""


def choose(
    names: Sequence[str], passages: Sequence[int], read: int, can: Capabilities, *, by_words: bool
) -> list[Setting]:
    """Return the settings that are asked for, in the report's order.

    Args:
        names: Settings, or families of them (``plain``: all ``plain_K``); none is all that can be.
        passages: The numbers of passages K to retrieve.
        read: How many of K are read by those that choose.
        can: What can be measured.
        by_words: Whether passages are retrieved by BM25 anyway.

    Raises:
        InputError: A name or number is of no use, or can't be measured; names it and says why.
    """
    for number, field in [*((count, "passages") for count in passages), (read, "read")]:
        if number < 1:
            raise InputError(f"{field}: {number} is less than 1", field=field, value=number)
    fixed = {setting.key: setting for setting in FIXED}
    wanted: dict[str, Setting] = {}
    for name in names or (*fixed, *FAMILIES):
        match = _RETRIEVED.fullmatch(name)
        if name in fixed:
            settings = [fixed[name]]
        elif name in FAMILIES:
            settings = [retrieved(name, count, read, by_words=by_words) for count in passages]
        elif match:
            settings = [retrieved(match[1], int(match[2]), read, by_words=by_words)]
        else:
            there = ", ".join((*fixed, *(f"{family}_K" for family in FAMILIES), *FAMILIES))
            raise InputError(
                f"settings: {shorten(name)} is none of {there}", field="settings", value=name
            )
        for setting in settings:
            if why := can.refuses(setting):
                if names:
                    raise InputError(f"settings: {name} {why}", field="settings", value=name)
                continue
            if setting.source in ("retrieved", "bm25") and setting.count > can.corpus:
                raise InputError(
                    f"passages: {setting.count} is more than the corpus has, {can.corpus}",
                    field="passages",
                    value=setting.count,
                )
            wanted[setting.key] = setting
    if not wanted:
        raise InputError(
            "settings: none can be measured: the questions have no passages, and there is no "
            "corpus",
            field="settings",
        )
    order = [*fixed, *FAMILIES]
    return sorted(
        wanted.values(),
        key=lambda setting: (
            (0, order.index(setting.key), 0)
            if setting.key in fixed
            else (1, setting.count, order.index(setting.key.split("_")[0]))
        ),
    )
