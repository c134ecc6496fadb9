import pytest

from condensery.errors import InputError
from condensery.methods.oscar.sources import licence_of, read_sources

DATA = {
    "sources": {
        "squad_v1/train_part": {
            "file": "train_part.jsonl.gz",
            "sha256": "00",
            "share": 0.35,
            "examples": 14000,
            "passages": 3000,
            "scored": 0,
            "left_out": {"no passage left": 3, "passage is held out": 0},
        },
        "mine/distilled": {"examples": 5, "passages": 9, "scored": 5, "left_out": {}},
    },
    "squad_v1/train_part_examples": 14000,
    "openstax_kept": 7,
    "openstax_left_out": 1,
    "repeated": 7,
}


def test_counts_are_told_by_set_with_its_licence() -> None:
    sources, others = read_sources(DATA)
    assert [source.line for source in sources] == [
        "SQuAD v1.1, a part of train (CC BY-SA 4.0)",
        "mine/distilled (licence not known)",
        "OpenStax textbooks (CC BY 4.0; OpenStax, Rice University)",
    ]
    assert sources[0].counts == {"examples": 14000, "passages": 3000, "scored": 0}
    assert sources[0].left_out == {"no passage left": 3, "passage is held out": 0}
    assert (sources[2].counts, sources[2].left_out) == ({"kept": 7}, {"": 1})
    assert others == {"repeated": 7}
    assert licence_of(sources) == "cc-by-sa-4.0"
    assert licence_of(sources[1:]) == "unknown"


def test_a_set_that_is_not_known_here_can_be_given_its_licence() -> None:
    sources, _ = read_sources(DATA, {"mine/distilled": "CC BY-SA 3.0"})
    assert sources[1].line == "mine/distilled (CC BY-SA 3.0)"
    assert licence_of(sources[1:]) == "cc-by-sa-4.0"
    with pytest.raises(InputError, match="'yours' is not one of the run's sets: squad_v1"):
        read_sources(DATA, {"yours": "MIT"})
