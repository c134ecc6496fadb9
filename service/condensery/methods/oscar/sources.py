"""The data sets that a run names in ``data.json``: what they are, their licences, their counts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from condensery.errors import InputError, shorten

# By the set's own name, or its folder's: what it is, and its licence (of the copy; of its texts).
KNOWN = {
    "squad": ("SQuAD v1.1, a part of train", "CC BY-SA 4.0"),
    "squad_v1": ("SQuAD v1.1, a part of train", "CC BY-SA 4.0"),
    "squad_v2_roundtrip": (
        "SQuAD v2.0 train, translated there and back",
        "Apache-2.0; SQuAD CC BY-SA 4.0",
    ),
    "documentation": (
        "Questions about docstrings of some hundred Python packages",
        "each package's own: BSD, MIT, Apache-2.0, PSF, LGPL",
    ),
    "qamr": ("QAMR dev", "MIT; Wikipedia CC BY-SA, Wikinews CC BY"),
    "fairytaleqa": ("FairytaleQA train", "Apache-2.0; stories in the public domain"),
    "hotpotqa_distractor_sample": ("HotpotQA, a sample", "BSD-3-Clause; HotpotQA CC BY-SA 4.0"),
    "webquestions": ("WebQuestions train", "CC BY 4.0"),
    "wikipedia": ("Wikipedia passages from 2WikiMultihopQA and SQuAD train", "CC BY-SA"),
    "openstax": ("OpenStax textbooks", "CC BY 4.0; OpenStax, Rice University"),
    "cloze": ("Cloze questions made from those passages", "as theirs"),
}
UNKNOWN = "licence not known"
KEPT_OUT_OF = "kept_out"  # of data.json: says what, where a run kept nothing out
COUNTS = ("examples", "passages", "kept", "scored")
LEFT_OUT = "left_out"
SHARE_ALIKE = "cc-by-sa-4.0"


@dataclass(frozen=True, slots=True)
class Source:
    """A data set.

    Attributes:
        name: As the run calls it: its folder and file, ``rows/scifact``.
        title: What it is.
        licence: Its licence, in words.
        counts: How many of what (``COUNTS``).
        left_out: How many were left out, by the reason; "" is one that was not told.
    """

    name: str
    title: str
    licence: str
    counts: Mapping[str, int]
    left_out: Mapping[str, int]

    @property
    def line(self) -> str:
        """As provenance has it."""
        return f"{self.title} ({self.licence})"

    @property
    def is_known(self) -> bool:
        """Whether what it is, and its licence, stand in ``KNOWN``."""
        return _known(self.name) is not None

    @property
    def families(self) -> frozenset[str]:
        """First words of its folder's name and its own: ``squad`` of ``squad_v1/train_part``."""
        return frozenset(family(part) for part in self.name.split("/"))


def family(name: str) -> str:
    """Return a data set's name without its version, split or part."""
    return re.split(r"[-_:.]", name.lower(), maxsplit=1)[0]


def read_sources(
    data: Mapping[str, Any], licences: Mapping[str, str] | None = None
) -> tuple[list[Source], dict[str, Any]]:
    """Return the data sets of a run's ``data.json``, and what else it says.

    A set's counts are an object under its name in ``sources``, or ``<set>_examples``,
    ``<set>_kept`` and ``<set>_left_out``.

    Args:
        data: What ``train oscar`` wrote.
        licences: Licences of sets that are not known here, by name.

    Raises:
        InputError: A licence is of a set that the run did not read.
    """
    named = data.get("sources")
    counted: dict[str, dict[str, Any]] = (
        {name: dict(counts) for name, counts in named.items() if isinstance(counts, Mapping)}
        if isinstance(named, Mapping)
        else {}
    )
    others: dict[str, Any] = {}
    for key, value in data.items():
        what = next((w for w in (*COUNTS, LEFT_OUT) if key.endswith(f"_{w}")), None)
        if what and isinstance(value, int):
            counted.setdefault(key.removesuffix(f"_{what}"), {}).setdefault(what, value)
        elif key != "sources":
            others[key] = value
    own = dict(licences or {})
    strange = next((name for name in own if name not in counted), None)
    if strange is not None:
        raise InputError(
            f"licences: {shorten(strange)} is not one of the run's sets: {', '.join(counted)}",
            field="licences",
            value=strange,
        )
    return [_source(name, counts, own.get(name)) for name, counts in counted.items()], others


def _source(name: str, counts: Mapping[str, Any], licence: str | None) -> Source:
    words = _known(name) or (name, UNKNOWN)
    left_out = counts.get(LEFT_OUT, {})
    return Source(
        name=name,
        title=words[0],
        licence=licence or words[1],
        counts={what: counts[what] for what in COUNTS if isinstance(counts.get(what), int)},
        left_out={"": left_out} if isinstance(left_out, int) else dict(left_out),
    )


def _known(name: str) -> tuple[str, str] | None:
    return KNOWN.get(name) or KNOWN.get(name.partition("/")[0])


def licence_of(sources: list[Source]) -> str:
    """Return the licence of what was trained on ``sources``, where one of them asks for its own."""
    shares = any("BY-SA" in source.licence for source in sources)
    return SHARE_ALIKE if shares else "unknown"
