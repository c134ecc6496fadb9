"""An encoder of a language model in one command: trained, measured, published, served."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving import embed
from tests.unit.methods.conftest import TOPICS
from tiny_memory import put_language_model, write_language_model
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from condensery.errors import CondenseryError, InputError
from condensery.methods.llm2comp.build_command import main
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.sets import read_set
from condensery.methods.ranking.similarities import read_similarities, spearman
from condensery.methods.trainer import trainer
from condensery.methods.trainer.checkpoints import latest
from condensery.store.manifest import StoredModel
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore

pytestmark = pytest.mark.usefixtures("one_thread")
STAGES = ("pretext", "unsupervised", "supervised")
SMALL = [
    "--memory-tokens", "2", "--lora-rank", "2", "--lora-alpha", "4", "--held-out", "12",
    "--pretext-embeddings", "memory", "--instruction", "find it", "--threads", "1",
    "--workers", "1", "--rounds", "1", "--measure-dtype", "float32", "--dtype", "float32",
    "--device", "cpu", "--every", "2",
    *(f for stage in STAGES for f in (f"--{stage}-steps", "4", f"--{stage}-batch", "4",
                                      f"--{stage}-length", "48", f"--{stage}-rate", "1e-3")),
    "--supervised-passage-length", "48",
]  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> StoredModel:
    folder = write_language_model(tmp_path / "lm", "llama")
    return put_language_model(ModelStore(None, tmp_path / "store"), folder)


@pytest.fixture
def data(tmp_path: Path, tuning_rows: Path) -> dict[str, Path]:
    rng = random.Random(3)
    words = [*TOPICS, "the", "is", "old", "how", "long"]
    lines = [" ".join(rng.choices(words, k=rng.randrange(25, 40))) for _ in range(60)]
    texts, pairs = tmp_path / "texts.jsonl", tmp_path / "pairs.jsonl"
    rows = [{"text": line, "source": "kept" if n % 4 else "gone"} for n, line in enumerate(lines)]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = [
        {"text1": f"the {one} is old", "text2": f"the old {two}", "score": i + 6 * (one == two)}
        for one in TOPICS
        for i, two in enumerate(TOPICS)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in scored))
    return {"text": texts, "pairs": pairs, "rows": tuning_rows}


def run(base: StoredModel, out: Path, *flags: object) -> StoredModel:
    words = [base.name, "--store", base.root, "--name", "compressed", "--out", out]
    main([*map(str, (*words, *SMALL, *flags))])
    return ModelStore(None, base.root).open("compressed")


def given(data: dict[str, Path], *names: str) -> list[object]:
    return [word for name in names or data for word in (f"--{name}", data[name])]


def test_three_stages_are_trained_measured_and_published_beside_the_base(
    base: StoredModel, data: dict[str, Path], beir: Path, tmp_path: Path
) -> None:
    flags = (*given(data), "--set", beir, "--without", "source=gone", "--note", "Made up here.")
    made = run(base, tmp_path / "run", *flags)
    about = made.manifest
    assert (about.kind, about.method, about.base) == ("encoder", "llm2comp", base.name)
    assert about.prompts["query"] == "find it:{text}\n"
    weights = load_file(made.path / "model.safetensors")
    assert weights["memory_tokens.weight"].shape[0] == 2
    assert not [name for name in weights if name.endswith("up_proj.weight")]
    report = StoredReport(made).report().report
    models = ["language model, last token", "language model, weighted mean", *STAGES]
    for figures in report["quality"].values():
        assert [*figures["models"]] == [*models, "as stored and served"]
    alike = read_similarities(data["pairs"])
    left, right = (embed(made, [pair[side] for pair in alike.pairs]) for side in (0, 1))
    measured = report["quality"][alike.name]["models"]["as stored and served"]
    assert measured == pytest.approx(spearman(left, right, alike.scores), abs=1e-6)
    served = report["quality"]["tiny"]["models"]["as stored and served"]
    assert served == pytest.approx(searched(made, beir, "find it:{text}\n"))
    assert report["cost"]["parameters"] == about.cost["parameters"]
    work = {row["tokens"]: row["flops"] for row in report["cost"]["by_length"]}
    assert work[128] == about.cost["flops_128_tokens"]
    assert {*report["speed"]} == {"batch_64", "batch_1"}
    assert {*report["embeddings"]} == {*models}
    card = StoredReport(made).card()
    assert str(tmp_path) not in card
    assert "- Made up here.\n" in card
    for plot in ("losses", "spectrum", "memory-tokens"):
        assert StoredReport(made).plot(plot).startswith(b"\x89PNG")
        assert f"(plots/{plot}.png)" in card
    again = run(base, tmp_path / "run", *flags)  # all is there: nothing is trained again
    assert again.version == "2"
    assert again.manifest.fingerprint == about.fingerprint


def searched(stored: StoredModel, folder: Path, prompt: str) -> float:
    """Work it out from the served vectors."""
    ranking = read_set(folder)
    passages = embed(
        stored, [f"{p.title}\n{p.text}" if p.title else p.text for p in ranking.passages]
    )
    queries = embed(stored, [prompt.replace("{text}", text) for text in ranking.queries.values()])
    names = [passage.id for passage in ranking.passages]
    hits = {
        query: [names[place] for place in np.argsort(-row, kind="stable")]
        for query, row in zip(ranking.queries, queries @ passages.T, strict=True)
    }
    scores = ndcg(hits, ranking.judged)
    return sum(scores.values()) / len(scores)


def test_a_build_that_was_killed_in_every_stage_goes_on_to_the_same_bits(
    base: StoredModel, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (*given(data, "text", "rows"), "--rounds", 0)
    whole = run(base, tmp_path / "whole", *flags)
    save = trainer.save_checkpoint
    for stage in STAGES:

        def die(out: Path, step: int, *rest: Any, stage: str = stage) -> Any:
            if out.name == stage and step == 4:
                raise KeyboardInterrupt
            return save(out, step, *rest)

        monkeypatch.setattr(trainer, "save_checkpoint", die)
        with pytest.raises(KeyboardInterrupt):
            run(base, tmp_path / "killed", *flags)
        last = latest(tmp_path / "killed" / stage)
        assert last is not None
        assert last.step == 2
    monkeypatch.undo()
    again = run(base, tmp_path / "killed", *flags)
    assert again.manifest.fingerprint == whole.manifest.fingerprint


def test_a_build_goes_on_with_the_same_settings_alone(
    base: StoredModel, data: dict[str, Path], tmp_path: Path
) -> None:
    flags = (*given(data, "text"), "--stages", "pretext")
    run(base, tmp_path / "run", *flags)
    other = ("--stages", "pretext", "unsupervised", "--pretext-rate", "2e-3", "--memory-tokens", 3)
    with pytest.raises(InputError) as caught:
        run(base, tmp_path / "run", *given(data, "text"), *other)
    assert caught.value.field == "out"
    for name in ("network.memory_tokens: 2, not 3", "pretext.rate: 0.001, not 0.002", "stages: "):
        assert name in str(caught.value)


@pytest.mark.tiny_run
def test_stages_are_skipped_tokens_merged_and_the_base_left_behind(
    base: StoredModel, data: dict[str, Path], tmp_path: Path
) -> None:
    flags = ("--stages", "pretext", "supervised", "--merge-above", 0.0001, "--stored", "int8",
             "--whole", "--supervised-adapters", "continued")  # fmt: skip
    made = run(base, tmp_path / "run", *given(data, "text", "rows"), *flags)
    assert made.manifest.base is None
    assert made.manifest.dtype == "int8"
    assert not (tmp_path / "run" / "unsupervised").exists()
    report = StoredReport(made).report().report
    assert report["stages"] == ["pretext", "supervised"]
    similarity = np.array(report["embeddings"]["supervised"]["similarity"])
    effective = made.manifest.shape.get("effective_tokens", [0, 1])
    assert effective == ([0] if similarity.min() > 0.0001 else [0, 1])
    assert np.isfinite(embed(made, ["the old mill"])).all()


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--memory-tokens", "0"], "memory_tokens"),
        (["--memory-tokens", "48"], "memory_tokens"),
        (["--memory-tokens", "8", "--max-tokens", "9"], "memory_tokens"),
        (["--max-tokens", "4097"], "max_tokens"),
        (["--merge-above", "1"], "merge_above"),
        (["--pooling", "last"], "pooling"),
        (["--without", "source"], "without"),
        (["--rounds", "-1"], "rounds"),
        (["--pretext-steps", "0"], "steps"),
        (["--supervised-negatives", "1", "--rows", "ROWS"], "negatives"),
        (["--text", "SHORT"], "text"),
    ],
)
def test_what_can_t_be_made_is_refused_before_any_work(
    flags: list[str], field: str, base: StoredModel, data: dict[str, Path], tmp_path: Path
) -> None:
    short, rows = tmp_path / "short.txt", tmp_path / "bare.jsonl"
    short.write_text("".join(f"the {topic} is old\n" for topic in TOPICS))
    rows.write_text('{"query": "where is the mill", "positive": "by the river"}\n')
    named = {"SHORT": str(short), "ROWS": str(rows)}
    with pytest.raises(InputError) as caught:
        run(base, tmp_path / "run", *given(data), *(named.get(flag, flag) for flag in flags))
    assert caught.value.field == field
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("names", [("rows",), ("text",)])
def test_a_stage_without_data_is_refused_before_the_first_is_trained(
    names: tuple[str, ...], base: StoredModel, data: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        run(base, tmp_path / "run", *given(data, *names))
    assert caught.value.field == ("text" if names == ("rows",) else "rows")
    assert not (tmp_path / "run").exists()


def test_bases_that_can_t_be_encoders_are_refused_by_name(
    base: StoredModel, data: dict[str, Path], tmp_path: Path
) -> None:
    store = ModelStore(None, base.root)
    folder = tmp_path / "lm"
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())

    def refused(name: str, field: str) -> None:
        stored = put_language_model(store, folder, name)
        with pytest.raises(CondenseryError) as caught:
            run(stored, tmp_path / "run", *given(data))
        assert getattr(caught.value, "field", None) == field
        assert not (tmp_path / "run").exists()

    bare = Tokenizer.from_str(words.to_str())
    bare.post_processor = TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    bare.save(str(folder / "tokenizer.json"))
    refused("no-start", "start_token")
    many = Tokenizer.from_str(words.to_str())
    many.add_tokens(["<more>"])
    many.save(str(folder / "tokenizer.json"))
    refused("colliding", "model")
    words.save(str(folder / "tokenizer.json"))
    config["model_type"] = "bert"
    (folder / "config.json").write_text(json.dumps(config))
    refused("bert", "model")


def test_weights_that_are_not_finite_are_found_before_training(
    base: StoredModel, data: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "lm" / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("up_proj.weight"))
    weights[name][0, 0] = torch.nan
    save_file(weights, path, {"format": "pt"})
    stored = put_language_model(ModelStore(None, base.root), tmp_path / "lm", "broken")
    with pytest.raises(CondenseryError, match="not finite"):
        run(stored, tmp_path / "run", *given(data))
    assert not (tmp_path / "run").exists()
