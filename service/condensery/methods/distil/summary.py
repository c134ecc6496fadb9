"""What there is to say of distillation data: what it holds, what was left out, how gold fares."""

from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from condensery.errors import InputError, shorten
from condensery.methods.distil.journal import Line

SILENT = "the teacher says nothing"
UNFINISHED = "the teacher's answer is too long"
UNREAD = "the teacher can't read so much"
OF_TEACHER = (SILENT, UNFINISHED, UNREAD)
WATCHED = 200  # questions by which a teacher is judged
SHOWN = 3  # examples of each reason


@dataclass(slots=True)
class Summary:
    """Counts over the lines of a journal.

    Args:
        questions: How many there will be.
        most_unlabelled: Share of the first ``WATCHED`` that a teacher may make no label of.
    """

    questions: int
    most_unlabelled: float = 1.0
    _seen: int = 0
    _rows: int = 0
    _unlabelled: int = 0
    _left_out: Counter[str] = field(default_factory=Counter)
    _examples: dict[str, list[str]] = field(default_factory=dict)
    _with_gold: int = 0
    _found: int = 0
    _gaps: list[float] = field(default_factory=list)
    _first: int = 0

    def see(self, line: Line) -> None:
        """Count a line."""
        self._seen += 1
        reason = line.get("left_out")
        if reason is None:
            self._rows += 1
            self._see_gold(line)
            return
        self._left_out[reason] += 1
        shown = self._examples.setdefault(reason, [])
        if len(shown) < SHOWN:
            shown.append(f"{line['where']}: {line['said']}")
        self._unlabelled += reason in OF_TEACHER and self._seen <= WATCHED

    def check(self) -> None:
        """Stop for a teacher of no use.

        Raises:
            InputError: It makes no label of too many of the first questions; names examples.
        """
        of = min(WATCHED, self.questions)
        if self._unlabelled > self.most_unlabelled * of:
            reasons = [
                f"{reason} ({self._left_out[reason]}): {'; '.join(self._examples[reason])}"
                for reason in OF_TEACHER
                if reason in self._left_out
            ]
            raise InputError(
                f"teacher: no label of {self._unlabelled} of the first {min(self._seen, of)} "
                f"questions (most_unlabelled is {self.most_unlabelled:.0%} of {of}): "
                f"{'; '.join(reasons)}",
                field="teacher",
            )

    def figures(self) -> dict[str, Any]:
        """Return what was counted; shares are of 1."""
        figures: dict[str, Any] = {
            "questions": self._seen,
            "rows": self._rows,
            "left_out": dict(self._left_out),
            "examples_left_out": self._examples,
        }
        if self._with_gold:
            figures["gold_found"] = round(self._found / self._with_gold, 4)
        if self._gaps:
            figures["score_gap"] = round(fmean(self._gaps), 4)
            figures["gold_scored_first"] = round(self._first / len(self._gaps), 4)
        return figures

    def _see_gold(self, line: Line) -> None:
        if "found" in line:
            self._with_gold += 1
            self._found += line["found"]
        scores, gold = line.get("scores"), line.get("gold")
        others = [s for i, s in enumerate(scores or ()) if i not in (gold or ())]
        if scores and gold and others:
            best = max(scores[place] for place in gold)
            self._gaps.append(best - fmean(others))
            self._first += best > max(others)


def left_out(reason: str, where: str, value: object) -> Line:
    """Return the line of a question that no row is made of."""
    return {"left_out": reason, "where": where, "said": shorten(value, 200)}
