"""What is searched for a question's passages: those of all questions, and those of other files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from condensery.errors import InputError, shorten
from condensery.methods.ranking.retrieval import CorpusPassage, titled_text
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

    def add_files(self, paths: Iterable[Path], fields: Sequence[str] = ("text",)) -> None:
        """Add the passages of files' rows, with their titles.

        Args:
            paths: JSONL, folders of it, ``datasets`` folders.
            fields: Of a row, the first of them that it has is its passage.

        Raises:
            InputError: A file can't be read, or a row has no text; names file, line and value.
        """
        for path in paths:
            for row in read_rows(path):
                name = next((name for name in fields if name in row.value), fields[0])
                text, title = row.value.get(name), row.value.get("title")
                if not isinstance(text, str) or not text.strip():
                    raise InputError(
                        f"{row.where}: {name}: {shorten(text)} is no text", field=name, value=text
                    )
                self.add(text, title if isinstance(title, str) else "")


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
            corpus.add(text, question.title): number in question.gold
            for number, text in enumerate(question.passages)
            if text.strip()
        }
        for question in questions
    ]
    corpus.add_files(files)
    answers = Answers([passage.text for passage in corpus.passages])
    for question, places in zip(questions, own, strict=True):
        named = tuple(place for place, is_gold in places.items() if is_gold)
        holding = tuple(place for place in places if answers.hold(place, question.answers))
        corpus.gold.append(named or holding or tuple(places)[:1])
    return corpus


def judged_questions(ranking_set: RankingSet) -> list[TrainingQuestion]:
    """Return a retrieval set's queries with the passages judged to answer, which are all gold."""
    texts = {passage.id: titled_text(passage) for passage in ranking_set.passages}
    return [
        TrainingQuestion(
            *(text, tuple(texts[name] for name in ranking_set.judged[query]), (), "", ""),
            where=f"{ranking_set.name}, query {query}",
            gold=tuple(range(len(ranking_set.judged[query]))),
        )
        for query, text in ranking_set.queries.items()
    ]


def choose(hits: Sequence[int], gold: Sequence[int], top: int) -> list[int]:
    """Return ``top`` passages as they were found, gold ones among them.

    A gold passage that was not found takes the place of the last that is not gold. Gold ones
    beyond ``top`` are left out.

    Args:
        hits: Places in the corpus, best first.
        gold: Those that must be among them.
        top: Most to return.
    """
    kept = list(hits[:top])
    for place in gold[:top]:
        if place in kept:
            continue
        others = [place for place in kept if place not in gold]
        if len(kept) == top:
            if not others:
                break
            kept.remove(others[-1])
        kept.append(place)
    return kept
