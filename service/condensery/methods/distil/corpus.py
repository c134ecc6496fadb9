"""What is searched for a question's passages: those of all questions, and those of other files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from condensery.errors import InputError, shorten
from condensery.methods.distil.retrieval import CorpusPassage, titled_text
from condensery.methods.ranking.sets import RankingSet
from condensery.methods.rerank.sources import Answers
from condensery.methods.trainer.questions import TrainingQuestion
from condensery.methods.trainer.rows import read_rows


@dataclass(slots=True)
class Corpus:
    """Passages, each text once (blanks aside).

    Attributes:
        passages: In the order in which they were met; ids are their places.
        gold: Of each question, the places of the passages that it was asked of; none if it came
            without any.
    """

    passages: list[CorpusPassage] = field(default_factory=list)
    gold: list[tuple[int, ...]] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)

    def add(self, text: str, title: str = "") -> int:
        """Return the place of a passage that holds text, new or met before."""
        place = self._places.setdefault(" ".join(text.split()), len(self.passages))
        if place == len(self.passages):
            self.passages.append(CorpusPassage(str(place), text, title))
        return place


def build_corpus(questions: Sequence[TrainingQuestion], files: Iterable[Path] = ()) -> Corpus:
    """Put together what is searched.

    Of a question's passages those are gold that it names; else those that hold one of its answers
    (whole words, as SQuAD's measures compare them), or the first where none does.

    Args:
        questions: With their passages, or without.
        files: More passages: rows with ``text`` and perhaps ``title``; JSONL, folders of it,
            ``datasets`` folders.

    Raises:
        InputError: A file can't be read, or a row has no text; names file, line and value.
    """
    corpus = Corpus()
    own = [
        {
            corpus.add(text, one.title): number in one.gold
            for number, text in enumerate(one.passages)
            if text.strip()
        }
        for one in questions
    ]
    for path in files:
        for row in read_rows(path):
            text, title = row.value.get("text"), row.value.get("title")
            if not isinstance(text, str) or not text.strip():
                raise InputError(
                    f"{row.where}: text: {shorten(text)} is no text", field="text", value=text
                )
            corpus.add(text, title if isinstance(title, str) else "")
    answers = Answers([one.text for one in corpus.passages])
    for one, places in zip(questions, own, strict=True):
        named = tuple(place for place, is_gold in places.items() if is_gold)
        holding = tuple(place for place in places if answers.hold(place, one.answers))
        corpus.gold.append(named or holding or tuple(places)[:1])
    return corpus


def judged_questions(given: RankingSet) -> list[TrainingQuestion]:
    """Return a retrieval set's queries with the passages judged to answer, which are all gold."""
    texts = {one.id: titled_text(one) for one in given.passages}
    return [
        TrainingQuestion(
            *(text, tuple(texts[name] for name in given.judged[query]), (), "", ""),
            where=f"{given.name}, query {query}",
            gold=tuple(range(len(given.judged[query]))),
        )
        for query, text in given.queries.items()
    ]


def choose(found: Sequence[int], gold: Sequence[int], top: int) -> list[int]:
    """Return ``top`` passages as they were found, gold ones among them.

    A gold passage that was not found takes the place of the last that is not gold. Gold ones
    beyond ``top`` are left out.

    Args:
        found: Places in the corpus, best first.
        gold: Those that must be among them.
        top: Most to return.
    """
    kept = list(found[:top])
    for place in gold[:top]:
        if place in kept:
            continue
        others = [one for one in kept if one not in gold]
        if len(kept) == top:
            if not others:
                break
            kept.remove(others[-1])
        kept.append(place)
    return kept
