import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_pair import VOCABULARY, pair_files, tiny_config, tiny_pair, tiny_shape, write_base
from tiny_report import tiny_report

from condensery.errors import InputError, ReportNotFound, StoreError
from condensery.methods.oscar import publishing
from condensery.methods.oscar.preparing import Origins, past, prepare, start_state
from condensery.methods.oscar.publishing import publish, publish_again
from condensery.methods.oscar.recipe import Recipe
from condensery.methods.trainer.checkpoints import save_checkpoint
from condensery.networks.oscar import WORDS, OscarPair
from condensery.networks.oscar_shape import OscarShape
from condensery.question import CompressedPassage
from condensery.runtime.oscar import OscarModel
from condensery.runtime.oscar_pair import load_bert_pair, prepare_for_inference
from condensery.runtime.workers import Workers
from condensery.store import checking
from condensery.store.checking import sha256_of
from condensery.store.manifest import Manifest, StoredModel
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore
from condensery.store.weights import load_state

MIB = 2**20
RECIPE = {"steps": 7, "new_rate": 0.0008, "seed": 5}
DATA = {"squad_examples": 3, "squad_left_out": 1}


def undrawn(**changes: Any) -> dict[str, Any]:
    """Return a report of which nothing can be drawn, which takes a second or two."""
    settings = {"gold": {"em": 32.24, "f1": 49.6}, "gold_among_five": {"em": 26, "f1": 40}}
    report = tiny_report(settings=settings, training=[], **changes)
    del report["abstention"]["curve"][1:]
    return report


@pytest.fixture
def pair() -> OscarPair:
    return tiny_pair()


@pytest.fixture
def base(tmp_path: Path, pair: OscarPair) -> StoredModel:
    words = pair.compressor.backbone.embeddings.word_embeddings.weight.detach()
    files = write_base(tmp_path / "base", words)
    store = ModelStore(None, tmp_path / "store")
    return store.publish(
        files, Manifest(name="tiny-base", kind="encoder", pooling="mean", max_tokens=64)
    )


@pytest.fixture
def run(tmp_path: Path, pair: OscarPair) -> Path:
    """A training run's folder."""
    out = tmp_path / "run"
    out.mkdir()
    about = {"shape": pair.shape.to_dict(), "recipe": RECIPE}
    save_checkpoint(out, 7, pair.own_state(), {"0.master": torch.zeros(1)}, about)
    (out / "data.json").write_text(json.dumps(DATA))
    return out


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(None, tmp_path / "store")


@pytest.fixture
def stored(run: Path, base: StoredModel, store: ModelStore) -> StoredModel:
    return publish(run, base, store, name="tiny-pair", report=undrawn())


@pytest.fixture
def workers() -> Iterator[Workers]:
    started = Workers(1)
    yield started
    started.close()


async def ask(reader: OscarModel) -> tuple[list[CompressedPassage], str]:
    compressed = await reader.compress("who is old?", ["the old mill", "new bread in town"])
    memory = [passage.memory for passage in compressed]
    text = [token.text async for token in reader.generate("who is old?", memory, max_tokens=8)]
    return compressed, "".join(text)


@pytest.mark.tiny_run
async def test_a_published_pair_loads_and_answers_as_the_trained_one(
    stored: StoredModel, base: StoredModel, pair: OscarPair, workers: Workers, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as threads:
        loaded = OscarModel.load(stored, base, workers, dtype=torch.float32, threads=threads)
        files = pair_files(tmp_path / "trained", pair)
        trained = OscarModel.of(
            prepare_for_inference(pair), files, workers, name="trained", threads=threads
        )
        (vectors, text), (wanted, _) = await ask(loaded), await ask(trained)
    assert loaded.info.name == "tiny-pair"
    assert loaded.info.fingerprint == stored.manifest.fingerprint
    assert text
    for a, b in zip(vectors, wanted, strict=True):
        x, y = a.memory.ravel(), b.memory.ravel()
        assert x @ y / np.linalg.norm(x) / np.linalg.norm(y) > 0.999  # int8
        assert not np.array_equal(x, y)


def test_each_matrix_comes_back_within_half_a_step_of_int8_and_all_else_as_bf16(
    stored: StoredModel, base: StoredModel
) -> None:
    source = tiny_pair().own_state()
    pair = load_bert_pair(stored, base, device=torch.device("cpu"), dtype=torch.float32)
    wanted = source["compressor.mapping.0.weight"]
    # What it maps a unit vector to is a column; the weight itself may lie in another layout.
    columns = pair.compressor.mapping[0](torch.eye(wanted.shape[1]))
    mapping = (columns - source["compressor.mapping.0.bias"].bfloat16().float()).T
    step = wanted.abs().amax(dim=1, keepdim=True) / 127
    assert ((mapping - wanted).abs() <= 0.501 * step + 1e-6).all()
    slots = source["compressor.slots.weight"].bfloat16().float()
    assert torch.equal(pair.compressor.slots.weight, slots)


def test_who_goes_on_from_it_has_its_weights_its_commands_and_its_data(
    stored: StoredModel, run: Path, tmp_path: Path, pair: OscarPair
) -> None:
    (run / "command.txt").write_text("condensery train oscar --seed 2\n")
    whole = Origins(tmp_path / "base", start_model="tiny-pair", store=tmp_path / "store")
    mixed = replace(whole, starts=(run,), start_share=0.25)
    before, both = past(whole, stored), past(mixed, stored)
    assert before.data == both.data == DATA
    provenance = stored.manifest.provenance
    assert provenance is not None
    assert list(before.commands) == provenance.command.splitlines()
    assert both.commands == (*before.commands, "condensery train oscar --seed 2")
    (stored_state, _), (state, name) = start_state(whole, stored), start_state(mixed, stored)
    assert stored_state is not None
    assert state is not None
    assert name == f"0.25 of run, 0.75 of tiny-pair {stored.manifest.fingerprint}"
    own = pair.own_state()
    assert state.keys() == own.keys()
    for part, tensor in state.items():
        wanted = 0.75 * stored_state[part].float() + 0.25 * own[part].float()
        torch.testing.assert_close(tensor.float(), wanted, atol=1e-2, rtol=1e-2)
    changed = [n for n in own if not torch.equal(stored_state[n].float(), own[n].float())]
    assert changed  # else nothing was mixed: int8 rounds


def test_who_goes_on_from_it_reads_each_of_its_files_once(
    stored: StoredModel, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = list[Path]()

    def count(path: Path) -> str:
        hashed.append(path)
        return sha256_of(path)

    monkeypatch.setattr(checking, "sha256_of", count)
    origins = Origins(tmp_path / "base", start_model="tiny-pair", store=tmp_path / "store")
    start = prepare(origins, data_folder, tiny_shape(), Recipe(cloze=5))
    assert start.origin["commands"] == stored.manifest.provenance.command.splitlines()
    assert sorted(hashed) == [stored.path.resolve() / name for name in stored.manifest.files]


def test_matrices_are_int8_and_the_words_stay_with_the_base(stored: StoredModel) -> None:
    types: dict[str, str] = {}
    for path in stored.weights:
        with safe_open(path, framework="pt") as file:
            types |= {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no iterator)
    assert WORDS not in types
    own = tiny_pair().own_state()
    assert set(own) == {name for name in types if not name.endswith(".scale")}
    matrices = {name for name, value in own.items() if value.ndim == 2 and min(value.shape) > 4}
    assert {name for name, kind in types.items() if kind == "I8"} == matrices
    assert len(matrices) > 20


def test_the_manifest_says_how_the_pair_was_made_and_how_good_it_is(
    stored: StoredModel, base: StoredModel
) -> None:
    manifest = stored.manifest
    assert (manifest.kind, manifest.method, manifest.dtype) == ("oscar-pair", "oscar", "int8")
    assert manifest.base == "tiny-base"
    assert manifest.base_fingerprint == base.manifest.fingerprint
    assert manifest.shape == tiny_pair().shape.to_dict()
    assert manifest.max_tokens == 12 + 24 + 3
    assert manifest.provenance.seed == 5
    wanted = "condensery train oscar --base MINILM --data DATA --out RUN"
    assert manifest.provenance.command == f"{wanted} --steps 7 --new-rate 0.0008 --seed 5"
    assert manifest.provenance.data == ("SQuAD v1.1, a part of train (CC BY-SA 4.0)",)
    assert manifest.licence == "cc-by-sa-4.0"
    assert manifest.quality["gold"] == {"em": 32.24, "f1": 49.6}
    assert manifest.cost["parameters"] == sum(t.numel() for t in tiny_pair().own_state().values())
    recipe = json.loads((stored.path / "recipe.json").read_text())
    assert recipe == {**RECIPE, "steps_done": 7}


def test_report_card_and_plots_are_stored_in_the_same_step(
    run: Path, base: StoredModel, store: ModelStore
) -> None:
    stored = publish(run, base, store, name="tiny-pair", report=tiny_report())
    assert (stored.manifest.defaults.top_n, stored.manifest.defaults.min_relevance) == (1, 0.4)
    read = StoredReport(stored)
    report = read.report()
    assert report.report == tiny_report()
    assert report.plots == ("abstention", "cost", "passages", "training")
    assert all(read.plot(name).startswith(b"\x89PNG") for name in report.plots)
    text = read.card()
    for name in report.plots:
        assert f"](plots/{name}.png)" in text
    for figure in (
        *("turns a question with a passage of up to 24 tokens into 3 vectors", "32.2 (29.2 to"),
        *("97.2%", "+35.2 to +42.1", "48.4% of the answers", "2.7% stay", "(nothing)", "79%"),
        *("2000 questions of `dev.jsonl.gz`", "Seed 5, 7 steps done.", "cc-by-sa-4.0", "| 3 | 1 |"),
    ):
        assert figure in text, figure


def test_a_pair_that_was_not_measured_says_so_and_has_no_report(
    run: Path, base: StoredModel, store: ModelStore
) -> None:
    stored = publish(run, base, store, name="tiny-pair")
    assert not {"report.json", "plots/cost.png"} & stored.manifest.files.keys()
    assert "- It was not measured." in (stored.path / "card.md").read_text()
    assert (stored.manifest.quality, stored.manifest.defaults.top_n) == ({}, None)
    with pytest.raises(ReportNotFound):
        StoredReport(stored).report()


def test_a_report_does_not_change_the_fingerprint(
    stored: StoredModel, run: Path, base: StoredModel, store: ModelStore
) -> None:
    plain = publish(run, base, store, name="tiny-pair")
    assert (stored.version, plain.version) == ("1", "2")
    assert plain.manifest.fingerprint == stored.manifest.fingerprint


def test_what_was_measured_is_what_is_published(
    run: Path, base: StoredModel, store: ModelStore
) -> None:
    first = publish(run, base, store, name="candidate")
    report = undrawn(fingerprint=first.manifest.fingerprint)
    again = publish(run, base, store, name="tiny-pair", report=report)
    assert again.manifest.fingerprint == first.manifest.fingerprint
    assert f"Measured on what is stored ({first.manifest.fingerprint})" in (
        (again.path / "card.md").read_text()
    )
    other = undrawn(fingerprint="sha256:" + "0" * 64)
    with pytest.raises(
        InputError, match=r"was measured on sha256:0000.* measure what is"
    ) as caught:
        publish(run, base, store, name="other", report=other)
    assert caught.value.field == "report.fingerprint"
    assert "other" not in store.names()


def test_the_command_that_was_written_down_is_told_without_the_machines_folders(
    run: Path, base: StoredModel, store: ModelStore
) -> None:
    command = (
        "condensery train oscar --base /home/me/minilm --questions /d/qamr/train.gz:0.5 a/b.gz"
    )
    (run / "command.txt").write_text(f"{command} --out '/my runs/one' --store ../x\n")
    stored = publish(run, base, store, name="tiny-pair")
    assert stored.manifest.provenance.command == (
        "condensery train oscar --base minilm --questions qamr/train.gz:0.5 a/b.gz --out one "
        "--store x"
    )
    (run / "command.txt").write_text("condensery train oscar --out /r/a\ncondensery train oscar\n")
    stored = publish(run, base, store, name="tiny-pair")
    assert stored.manifest.provenance.command.splitlines() == [
        "condensery train oscar --out a",
        "condensery train oscar",
    ]
    assert "    condensery train oscar --out a\n" in (stored.path / "card.md").read_text()


def test_what_a_run_goes_on_from_is_told_once(
    run: Path, base: StoredModel, store: ModelStore, pair: OscarPair
) -> None:
    origin = {"start_weights": "pair", "commands": ["condensery train oscar --out /r/a"]}
    about = {"shape": pair.shape.to_dict(), "recipe": RECIPE, "origin": origin}
    save_checkpoint(run, 8, pair.own_state(), {"0.master": torch.zeros(1)}, about)
    unwritten = publish(run, base, store, name="tiny-pair").manifest.provenance
    lines = "condensery train oscar --out a\ncondensery train oscar --seed 3\n"
    (run / "command.txt").write_text(lines)
    written = publish(run, base, store, name="tiny-pair").manifest.provenance
    assert unwritten is not None
    assert written is not None
    assert written.command == lines.strip()
    first, last = unwritten.command.splitlines()
    assert first == "condensery train oscar --out a"
    assert last.endswith("--seed 5")
    assert written.notes == unwritten.notes == ("start weights: pair",)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda run: shutil.rmtree(run / "checkpoints"), "holds no checkpoint"),
        (lambda run: change(run, shape=None), "is not of condensery train oscar"),
        (lambda run: change(run, recipe=None), "is not of condensery train oscar"),
        (lambda run: change(run, shape={"family": "causal"}), "not that of a small pair"),
        (lambda run: change(run, shape={"memory_tokens": 0}), "memory_tokens"),
        (lambda run: (run / "data.json").unlink(), r"data\.json can't be read"),
        (lambda run: (run / "data.json").write_text("{"), r"data\.json can't be read"),
    ],
)
def test_a_folder_that_is_no_such_run_is_refused_by_what_is_wrong(
    run: Path, base: StoredModel, store: ModelStore, spoil: Callable[[Path], Any], says: str
) -> None:
    spoil(run)
    with pytest.raises(InputError, match=says) as caught:
        publish(run, base, store, name="tiny-pair", report=tiny_report())
    assert (caught.value.field, caught.value.value) == ("run", str(run))
    assert store.names() == ("tiny-base",)


def change(run: Path, **fields: Any) -> None:
    (state,) = run.glob("checkpoints/step-*/state.json")
    state.write_text(json.dumps({**json.loads(state.read_text()), **fields}))


def test_a_report_that_is_none_is_refused_before_anything_is_written(
    run: Path, base: StoredModel, store: ModelStore
) -> None:
    with pytest.raises(InputError, match="format: 1 is not 2"):
        publish(run, base, store, name="tiny-pair", report=tiny_report(format=1))
    with pytest.raises(StoreError, match="can't be a model's name"):
        publish(run, base, store, name="../x")
    assert store.names() == ("tiny-base",)


def test_the_command_publishes_and_names_what_it_published(
    run: Path,
    base: StoredModel,
    store: ModelStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(publishing, "import_minilm", lambda store: base)
    (run / "data.json").write_text(json.dumps({"mine_examples": 2}))
    path = tmp_path / "report.json"
    path.write_text(json.dumps(undrawn()))
    words = ["--run", str(run), "--name", "tiny-pair", "--store", str(store.own)]
    words += ["--report", str(path)]
    publishing.main([*words, "--data-licence", "mine=CC0", "--licence", "mit"])
    stored = store.open("tiny-pair")
    line = f"tiny-pair version 1: {stored.path}\n{stored.manifest.fingerprint}\n"
    assert capsys.readouterr().out == line
    assert (stored.manifest.licence, stored.manifest.provenance.data) == ("mit", ("mine (CC0)",))
    for wrong, says in (("mine", "'mine' is not SET=LICENCE"), ("x=CC0", "'x' is not one of")):
        with pytest.raises(InputError, match=says):
            publishing.main([*words, "--data-licence", wrong])


def test_what_is_said_of_a_stored_pair_is_made_anew_and_its_weights_stay(
    run: Path, base: StoredModel, store: ModelStore, tmp_path: Path
) -> None:
    (run / "data.json").write_text(json.dumps({"mine_examples": 2}))
    first = publish(
        run, base, store, name="tiny-pair", report=undrawn(), licences={"mine": "CC0, so to say"}
    )
    ranked = {"queries": 4, "pair": {"ndcg10": 0.25, "fingerprint": first.manifest.fingerprint}}
    part = tmp_path / "rerank.json"
    interval = {"mean": 0.5, "low": 0.25, "high": 0.75}
    chosen = {"queries": 4, "ndcg10": {"found": interval, "both - found": interval}}
    near = {
        "threshold": 0.9,
        "rule": "the highest that will do",
        "curve": [{"min_relevance": 0.9, "answered": 95, "wrong_without_gold": 30}],
    }
    passages = {"rank_weight": 0.75, "reported": {"towns": chosen}, "near_misses": near}
    made = {"passages": {"command": "python passages.py"}}
    part.write_text(json.dumps({"rerank": {"afresh": ranked}, "passages": passages, "made": made}))
    words = ["--again", "tiny-pair", "--store", str(store.own), "--part", str(part)]
    publishing.main([*words, "--note", "The set afresh came late."])
    again = store.open("tiny-pair")
    assert (again.version, again.manifest.fingerprint) == ("2", first.manifest.fingerprint)
    weights = [name for name in again.manifest.files if name.endswith(".safetensors")]
    assert weights
    for name in (*weights, "tokenizer.json", "recipe.json", "data.json"):
        assert again.manifest.files[name] == first.manifest.files[name], name
    read = StoredReport(again)
    assert set(read.report().report["rerank"]) == {"afresh"}
    assert read.report().report["settings"] == undrawn()["settings"]
    text = read.card()
    for expected in (
        "| afresh | 4 |",
        "| towns | 4 | 0.500 (0.250 to 0.750) | +0.500 (+0.250 to +0.750) |",
        "- The set afresh came late.",
        "nothing is answered. 0.9 is the highest that will do.",
        "| mine | CC0, so to say | 2 |",
    ):
        assert expected in text, expected
    chosen_of = again.manifest.defaults
    assert (chosen_of.rank_weight, chosen_of.min_relevance) == (0.75, 0.9)
    assert chosen_of.top_n == first.manifest.defaults.top_n
    bounds = {"em_lost_low_95": 0, "em_lost_high_95": 0.2}
    row = {"em": 1.0, "em_lost": 0.1, "changed": 3, **bounds}
    rounded = {"questions": 4, "file": "dev.jsonl", "dtype": "bfloat16", "int8": row}
    how = {"weights": {"command": "condensery eval weights"}}
    third = publish_again("tiny-pair", store, parts={"weights": rounded, "made": how})
    assert StoredReport(third).report().report["made"] == {**made, **how}
    assert third.manifest.quality["generator_weights"] == {
        "measured_on": "4 questions of dev.jsonl",
        "dtype": "bfloat16",
        "int8": {"em": 1.0, "em_lost": 0.1},
    }
    text = StoredReport(third).card()
    assert "| int8 | 1.0 | 0.10 (0.00 to 0.20) | 3.0% |" in text
    assert "| towns | 4 |" in text, "what was there stays"
    ranked["pair"] = {"ndcg10": 0.25, "fingerprint": "sha256:other"}
    with pytest.raises(InputError, match="was ranked by sha256:other"):
        publish_again("tiny-pair", store, parts={"rerank": {"afresh": ranked}})
    store.publish(
        {n: again.path / n for n in again.manifest.files if n != "data.json"},
        again.manifest.model_copy(update={"name": "other"}),
    )
    with pytest.raises(InputError, match="has no data"):
        publish_again("other", store)
    with pytest.raises(SystemExit):
        publishing.main([*words, "--licence", "mit"])


def test_a_pair_of_the_real_size_fits_the_shipped_store(tmp_path: Path) -> None:
    config = tiny_config(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
    )
    layers = {"generator_layers": 6, "generator_heads": 12, "generator_mlp_size": 1536}
    shape = OscarShape(bounds=True, two_way=True, **layers)
    pair = OscarPair(config, shape, torch.randn(len(VOCABULARY), 384))
    run = tmp_path / "run"
    run.mkdir()
    half = {name: value.bfloat16() for name, value in pair.own_state().items()}
    state = {"shape": pair.shape.to_dict(), "recipe": RECIPE}
    save_checkpoint(run, 1, half, {"0.master": torch.zeros(1)}, state)
    (run / "data.json").write_text("{}")
    files = write_base(tmp_path / "base")
    store = ModelStore(None, tmp_path / "store")
    base = store.publish(
        files, Manifest(name="tiny-base", kind="encoder", pooling="mean", max_tokens=64)
    )
    stored = publish(run, base, store, name="large")
    sizes = [path.stat().st_size for path in stored.weights]
    assert len(sizes) > 1
    assert max(sizes) <= 16 * MIB
    # The vocabulary is small here: minilm-l6's adds a bias of 30,522 numbers.
    assert sum(path.stat().st_size for path in stored.path.iterdir()) < 24 * MIB - 2 * 30_522
    names = [set(load_file(path)) for path in stored.weights]
    assert not names[0] & names[1]


def test_how_a_pointer_and_a_generator_serve_is_said_when_they_are_published(
    tmp_path: Path, base: StoredModel, store: ModelStore, run: Path
) -> None:
    walking = tiny_pair(walk=True)
    walks = tmp_path / "walks"
    walks.mkdir()
    about = {"shape": walking.shape.to_dict(), "recipe": RECIPE}
    save_checkpoint(walks, 7, walking.own_state(), {"0.master": torch.zeros(1)}, about)
    (walks / "data.json").write_text(json.dumps(DATA))
    how: dict[str, Any] = {"sharp": True, "quote": True, "end_offset": 1.5, "notes": ["Tried."]}
    made = publish(walks, base, store, name="walking", **how)
    shape = OscarShape.from_dict(made.manifest.shape)
    assert (shape.sharp, shape.quote) == (True, True)
    assert made.manifest.provenance.notes[-1:] == ("Tried.",)
    assert json.loads((made.path / "recipe.json").read_text())["end_offset"] == 1.5
    starts, ends = load_state(made)["compressor.pointer.span.bias"].tolist()
    wanted = walking.own_state()["compressor.pointer.span.bias"].tolist()
    assert (starts, ends) == pytest.approx((wanted[0], wanted[1] + 1.5), abs=0.02)  # bf16
    with pytest.raises(InputError, match=r"end_offset=1: needs a pointer that walks"):
        publish(run, base, store, name="still", end_offset=1)
