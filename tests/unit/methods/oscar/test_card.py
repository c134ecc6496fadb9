from typing import Any

import pytest
from tiny_report import tiny_report

from condensery.methods.oscar.card import CardFacts, card
from condensery.methods.oscar.measured import check_report
from condensery.methods.oscar.sources import read_sources
from condensery.networks.oscar_causal_shape import CausalShape, CompressorShape, GeneratorShape
from condensery.networks.oscar_shape import BertShape, OscarShape
from condensery.store.manifest import Manifest, Provenance

BARE = {
    "format": 2,
    "model": "pair",
    "measured_on": {"questions": 3},
    "settings": {"gold": {"em": 1.25, "f1": 2.5}},
}
PROMPT = GeneratorShape(before="", between="", after="", memory=("<m>",) * 8, stop=(2,))
HEADINGS = (
    *("### From retrieved", "### Beside", "### Reranking", "### When to say", "### Against"),
    *("### Examples", "Measured by", "scored best for", "is replaced", "| difference"),
)


def made(shape: dict[str, Any], **fields: Any) -> CardFacts:
    manifest_fields: dict[str, Any] = {
        "name": "pair",
        "kind": "oscar-pair",
        "method": "oscar",
        "max_tokens": 195,
        "dtype": "int8",
        "shape": shape,
        "licence": "mit",
        "cost": {"parameters": 18_995_517},
        "provenance": Provenance(command="condensery train oscar --steps 7", seed=5),
    }
    return CardFacts(Manifest(**{**manifest_fields, **fields}), [], {})


def test_a_card_of_every_part_has_every_section() -> None:
    report = check_report(tiny_report())
    text = card(made(OscarShape().to_dict(), base="minilm-l6"), report, ["cost", "training"])
    for heading in HEADINGS:
        assert heading in text, heading
    assert "![F1 against what a question costs](plots/cost.png)" in text
    assert "plots/passages.png" not in text


def test_parts_that_were_not_measured_leave_their_sections_out() -> None:
    text = card(made(OscarShape().to_dict()), check_report(BARE))
    for heading in HEADINGS:
        assert heading not in text, heading
    assert "3 questions. Measured on the trained pair" in text
    assert "| its passage alone | 1.2 | 2.5 |" in text
    assert "](plots/" not in text


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (
            OscarShape(memory_tokens=6, fewer=(3, 1), generator_layers=2, copy=False).to_dict(),
            [
                *("128 tokens into 6 vectors (3 or 1 on request) and a relevance score",),
                *("The generator has 2 layers and reads up to 2048 positions",),
            ],
        ),
        (
            CausalShape(
                CompressorShape(layout="joined", text_tokens=256, shared=True, rerank=True), PROMPT
            ).to_dict(),
            ["the generator with adapters of its own", "256 tokens in all into 8 vectors and a"],
        ),
        (
            CausalShape(
                CompressorShape(layout="joined", text_tokens=128, question=False), PROMPT
            ).to_dict(),
            ["a causal language model, turns a passage of", "into 8 vectors; longer passages"],
        ),
        (
            CausalShape(BertShape(), PROMPT).to_dict(),
            ["an encoder of BERT's size", "The generator is a causal language model"],
        ),
    ],
)
def test_what_it_is_follows_from_its_shape(shape: dict[str, Any], says: list[str]) -> None:
    text = card(made(shape), None)
    for words in says:
        assert words in text, words
    assert ("pointer" in text) == bool(shape.get("copy"))
    assert ("long, composed" in text) == bool(shape.get("copy"))
    assert "19.0 million" in text


def test_limits_are_told_from_the_figures() -> None:
    text = card(
        made(OscarShape().to_dict(), defaults={"min_relevance": 0.2}), check_report(tiny_report())
    )
    assert "of the right passage costs 2.9 points of F1" in text  # 52.5 - 49.6
    assert "something to 58.3% of the questions" in text  # the curve at 0.2
    assert "by default 0.2." in text
    better = tiny_report()
    better["settings"]["gold"]["f1"] = 60.0
    assert "of the right passage costs" not in card(
        made(OscarShape().to_dict()), check_report(better)
    )


def test_what_it_was_made_from_is_told_with_licences_and_counts() -> None:
    sources, others = read_sources(
        {"sources": {"squad_v1/train_part": {"examples": 1400, "left_out": {"gone": 3}}}, "x_y": 7}
    )
    manifest = made(OscarShape().to_dict(), provenance=Provenance(
        command="condensery train oscar --steps 7", seed=5, notes=("start: oscar-mini",)
    )).manifest  # fmt: skip
    text = card(CardFacts(manifest, sources, others, 1700), None)
    assert "| SQuAD v1.1, a part of train | CC BY-SA 4.0 | 1,400 | gone 3 |" in text
    assert "Also: x y 7." in text
    assert "- start: oscar-mini" in text
    assert "    condensery train oscar --steps 7\n\nSeed 5, 1,700 steps done." in text
    assert text.endswith("## Licence\n\nmit.\n")
    share_alike = manifest.model_copy(update={"licence": "cc-by-sa-4.0"})
    assert card(CardFacts(share_alike, sources, others), None).endswith(
        "cc-by-sa-4.0, as SQuAD v1.1, a part of train asks of work based on it.\n"
    )


def test_a_ranked_set_that_training_read_a_part_of_is_called_in_domain() -> None:
    ranking = {"queries": 3, "bm25": {"ndcg10": 0.5}}
    names = ("scifact", "squad_dev_paragraphs", "msmarco_dl1920_pool")
    report = check_report({**BARE, "rerank": dict.fromkeys(names, ranking)})
    sources, _ = read_sources(
        {
            "sources": {
                "rows/scifact": {"examples": 916, "passages": 3677},
                "squad_v1/train_part": {"examples": 14688, "left_out": {}},
            }
        }
    )
    text = card(CardFacts(made(OscarShape().to_dict()).manifest, sources, {}), report)
    assert "`scifact` is in-domain: training read 916 examples, 3,677 passages of rows/" in text
    assert "`squad_dev_paragraphs` is in-domain: training read 14,688 examples of SQuAD" in text
    assert "`msmarco_dl1920_pool`: no set of this name was trained on" in text
    assert "rankings of scifact, squad_dev_paragraphs, msmarco_dl1920_pool" in text
    # What is said to be kept out is what sets.load_sets keeps out, left out or not.
    assert "Kept out by each run: questions that SQuAD's dev set asks" in text
    nothing = {"kept_out": "nothing by a run without --data"}
    text = card(CardFacts(made(OscarShape().to_dict()).manifest, sources, nothing), report)
    assert "Kept out by each run" not in text
    assert "Also: kept out nothing by a run without --data." in text
