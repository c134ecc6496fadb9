"""An answer in the source's words: where it stands in the passages read, and as it stands there.

What a generator writes is compared with the passages (``text_form``) while it comes. As long as it
stands somewhere in other letters than it was written in, it is held back, since it may still turn
out to stand nowhere; all else passes at once. So an answer that stands nowhere comes out as it was
generated, and the pieces of a stream join to the whole answer either way.

Of several places the one is taken (``_choose``)

1. that was written to the letter, where the answer has capitals: its generator knows case;
2. that the pair points at (``CompressedPassage.pointer``);
3. in the passage that ranks best;
4. in the sentence that shares most with the question;
5. that comes first.

Punctuation around an answer ("Lake Constance.") may be missing there: it stays as it was written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from condensery.jobs.text_form import GAP, Codes, Places, TextForm, extend_form, make_form
from condensery.sentences import Span, sentence_around, shared_letters, words_of

# Of so many places at most each is looked at; while there are more, nothing passes.
MOST_PLACES = 64
FEW_PLACES = 8  # so many are compared one by one, not character by character
# Once so many characters are compared so many places of a passage are kept: prose has fewer.
SURE_CHARACTERS, KEPT_PLACES = 4, 4096


@dataclass(frozen=True, slots=True)
class PassageRead:
    """A passage that an answer is read from.

    Attributes:
        text: As far as it is read.
        pointer: Its characters that the pair points at; None where it does not point.
    """

    text: str
    pointer: Span | None = None


@dataclass(frozen=True, slots=True)
class Grounded:
    """An answer and where it stands.

    Attributes:
        text: In the source's words, where it stands somewhere; else as it was generated.
        spans: Of each passage, its characters that the answer's words are; None where they are not.
        stopped: Whether it was cut before a stop string that is one in the source's letters only.
    """

    text: str
    spans: tuple[Span | None, ...]
    stopped: bool = False

    @property
    def grounded(self) -> bool:
        """Whether it stands anywhere."""
        return any(span is not None for span in self.spans)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an answer stands in a passage.

    Attributes:
        text: How it reads with the source's words.
        before: Characters of it before those.
    """

    passage: int
    span: Span
    text: str
    before: int


def _narrow(starts: Places, there: Codes, codes: Codes, known: int) -> Places:
    """Keep the places at which a form goes on as ``codes`` do, the first ``known`` compared."""
    starts = starts[starts + len(codes) <= len(there)]
    while len(starts) > FEW_PLACES and known < len(codes):
        starts, known = starts[there[starts + known] == codes[known]], known + 1
        if known >= SURE_CHARACTERS:
            starts = starts[:KEPT_PLACES]
    if known == len(codes):
        return starts
    rest = codes[known:]
    same = [bool((there[at + known : at + len(codes)] == rest).all()) for at in starts.tolist()]
    return starts[np.array(same, np.bool_)]


def _agreed(text: str, other: str, known: int) -> str:
    """Return what two texts begin with alike, the first ``known`` characters not compared."""
    if other.startswith(text):
        return text
    pairs = enumerate(zip(text[known:], other[known:], strict=False), known)
    return text[: next((at for at, (one, two) in pairs if one != two), len(other))]


class AnswerWords:
    """The words of one answer, while they come.

    Args:
        passages: That it is read from, best first.
    """

    def __init__(self, question: str, passages: Sequence[PassageRead]) -> None:
        self._question = question
        self._passages = passages
        self._forms = [make_form(passage.text) for passage in passages]
        self._generated = ""
        self._form = make_form("")  # of what was generated, as long as it stands somewhere
        self._shown = ""
        self._compared = 0  # characters of the answer's form
        # Of each passage the places of its form at which the answer, so far, stands.
        self._starts: list[Places] | None = None
        self._nowhere = not passages

    def push(self, text: str) -> str:
        """Add what was generated; returns what may be shown now."""
        self._generated += text
        if self._nowhere:
            return self._show(self._generated)
        self._form = form = extend_form(self._form, text)
        words = form.words()
        if words is None:
            return ""
        if not self._advance(form, words):
            self._nowhere = True
            return self._show(self._generated)
        if sum(map(len, self._starts or ())) > MOST_PLACES:
            return ""
        certain = self._generated
        for found in self._found():
            there = self._at(form, words, *found).text
            certain = _agreed(certain, there, len(self._shown))
        return self._show(certain.rstrip())  # whether a blank is one there, its next word says

    def end(self, *, cut: bool, stop: Sequence[str] = ()) -> tuple[str, Grounded]:
        """Return what is still to be shown, and the whole.

        Args:
            cut: Whether it may end within a word: it was cut, or perhaps so.
            stop: Strings that end it; in the source's letters too.
        """
        spans, chosen = self._ground(cut)
        if chosen is None:
            return self._show(self._generated), Grounded(self._generated, spans)
        whole = Grounded(chosen.text, spans)
        stops = [at for text in stop if (at := chosen.text.find(text)) >= 0]
        if stops:
            whole = self._stop(chosen, max(min(stops), len(self._shown)))
        return self._show(whole.text), whole

    def _stop(self, place: _Place, size: int) -> Grounded:
        """Return an answer cut to ``size`` characters, by the place it was taken from alone."""
        start, end = place.span
        spans: list[Span | None] = [None] * len(self._passages)
        if size > place.before:
            spans[place.passage] = (start, min(end, start + size - place.before))
        return Grounded(place.text[:size], tuple(spans), stopped=size < len(place.text))

    def _show(self, text: str) -> str:
        """Return what of a text was not shown yet."""
        shown = len(self._shown)
        if len(text) > shown:
            self._shown = text
        return text[shown:]

    def _advance(self, form: TextForm, words: Span) -> bool:
        """Keep the places at which the answer stands as far as it has come; False if none is."""
        first, last = words
        codes, known = form.codes[first:last], self._compared
        if self._starts is None:
            first_code = codes[:1] & ~GAP
            # Before its first word another one may stand there.
            self._starts = [
                np.flatnonzero(other.borders[:-1] & (other.codes & ~GAP == first_code))
                for other in self._forms
            ]
            known = 1
        for number, other in enumerate(self._forms):
            self._starts[number] = _narrow(self._starts[number], other.codes, codes, known)
        self._compared = len(codes)
        return any(map(len, self._starts))

    def _found(self) -> Iterator[tuple[int, int]]:
        for number, starts in enumerate(self._starts or ()):
            for start in starts.tolist():
                yield number, start

    def _at(self, form: TextForm, words: Span, passage: int, start: int) -> _Place:
        """Return how the answer reads at a place, its punctuation included if it is there too."""
        other, (first, last) = self._forms[passage], words
        before, end = start, start + last - first
        while first and before and form.codes[first - 1] == other.codes[before - 1]:
            first, before = first - 1, before - 1
        while (
            last < len(form.codes)
            and end < len(other.codes)
            and form.codes[last] == other.codes[end]
        ):
            last, end = last + 1, end + 1
        span = other.span(before, end)
        here = form.span(first, last)
        source = self._passages[passage].text[slice(*span)]
        text = self._generated
        whole = f"{text[: here[0]]}{source}{text[here[1] :]}"
        return _Place(passage, span, whole, here[0])

    def _ground(self, cut: bool) -> tuple[tuple[Span | None, ...], _Place | None]:
        """Return where the answer stands in each passage, and the place that it is taken from."""
        form, words = self._form, self._form.words()
        if words is None and len(form.codes):  # signs alone, then
            words = 0, len(form.codes)
            self._nowhere = self._nowhere or not self._advance(form, words)
        if self._nowhere or words is None or self._starts is None:
            return (None,) * len(self._passages), None
        size = words[1] - words[0]
        best: list[_Place | None] = []
        for number, (starts, other) in enumerate(zip(self._starts, self._forms, strict=True)):
            ended = other.borders[starts + size]
            ending = starts if cut and not ended.any() else starts[ended]
            likely = self._likely(number, ending)
            best.append(self._choose([self._at(form, words, number, start) for start in likely]))
        chosen = self._choose([place for place in best if place is not None])
        return tuple(None if place is None else place.span for place in best), chosen

    def _likely(self, passage: int, starts: Places) -> list[int]:
        """Return the places in a passage to choose from: the first ones, and those pointed at."""
        pointer = self._passages[passage].pointer
        first: list[int] = starts[:MOST_PLACES].tolist()
        if len(starts) > MOST_PLACES and pointer is not None:
            at = self._forms[passage].at[starts]
            first += starts[(at >= pointer[0]) & (at < pointer[1])][:MOST_PLACES].tolist()
        return first

    def _choose(self, places: Sequence[_Place]) -> _Place | None:
        """Return the best place, as the module says."""
        if len(places) < 2:
            return places[0] if places else None
        cased = self._generated != self._generated.lower()
        asked = words_of(self._question)

        def rank(place: _Place) -> tuple[bool, bool, int, int, int]:
            text, pointer = (
                self._passages[place.passage].text,
                self._passages[place.passage].pointer,
            )
            start, end = place.span
            pointed = pointer is not None and start < pointer[1] and pointer[0] < end
            altered = cased and place.text != self._generated
            shared = shared_letters(text[slice(*sentence_around(text, start, end))], asked)
            return altered, not pointed, place.passage, -shared, start

        return min(places, key=rank)
