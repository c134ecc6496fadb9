"""mteb's tasks over local rows, against figures worked out from the same vectors by hand."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tests.unit.methods.conftest import QUERIES, Stored

from condensery.errors import InputError
from condensery.methods.judging.sets import (
    Candidates,
    Cap,
    JudgedSet,
    JudgingRecipe,
    Kind,
    LabelledTexts,
    PairRows,
    Rows,
    read_judged_set,
)
from condensery.methods.ranking.measures import ndcg
from condensery.methods.ranking.sets import RankingSet
from condensery.store.importing import import_model
from condensery.store.reports import StoredReport
from condensery.store.store import ModelStore
from condensery.values import Floats

pytest.importorskip("mteb", reason="needs the extra `bench`: make test-bench")

from condensery.methods.judging import command, tasks

pytestmark = pytest.mark.bench
DIMS = 12
RECIPE = JudgingRecipe(experiments=4, samples_per_label=3)


class Drawn:
    """An encoder whose vectors are drawn by the text; of what begins alike, alike."""

    name, about = "drawn", {"fingerprint": "sha256:1"}

    def __init__(self, noise: float = 0.6) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self._noise = noise

    def embed(self, texts: Sequence[str], prompt: str) -> Floats:
        self.asked.append((prompt, list(texts)))
        return np.stack([self.vector(text) for text in texts])

    def vector(self, text: str) -> Floats:
        topic, own = (
            np.random.default_rng(int.from_bytes(hashlib.sha256(word.encode()).digest()[:8]))
            .normal(size=DIMS)
            .astype(np.float32)
            for word in (text.split(maxsplit=1)[0], text)
        )
        vector: Floats = topic + self._noise * own
        return vector / np.linalg.norm(vector)

    def cosines(self, left: Sequence[str], right: Sequence[str]) -> NDArray[np.float64]:
        pairs = zip(left, right, strict=True)
        return np.array([float(self.vector(a) @ self.vector(b)) for a, b in pairs])

    def prompt(self, purpose: str | None, instruction: str) -> str:
        return f"{purpose}|{instruction}"

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def make_set(kind: Kind, rows: Rows, count: int) -> JudgedSet:
    return JudgedSet(kind, "made: up", rows, "sha256:0", count)


def pairs(count: int = 40) -> PairRows:
    topics = ["mill", "river", "bread"]
    left = [f"{topics[n % 3]} left {n}" for n in range(count)]
    right = [f"{topics[n % 3 if n % 2 else (n + 1) % 3]} right {n}" for n in range(count)]
    return PairRows(left, right, [float(n % 2) for n in range(count)])


def labelled(count: int = 30) -> LabelledTexts:
    topics = ["mill", "river", "bread"]
    numbers = [n % 3 for n in range(count)]
    train = [f"{topics[label]} learnt {n}" for n, label in enumerate(numbers)]
    texts = [f"{topics[label]} asked {n}" for n, label in enumerate(numbers)]
    return LabelledTexts(texts, numbers, train, numbers)


def candidates() -> tuple[Candidates, ...]:
    return tuple(
        Candidates(
            f"mill query {n}",
            [f"{'mill' if place % 3 else 'river'} {n} {place}" for place in range(6)],
            [place in (0, 4) for place in range(6)],
        )
        for n in range(7)
    )


def run(item: JudgedSet, encoder: Drawn) -> tasks.Score:
    return tasks.judge(item, encoder, encoder.embed, RECIPE)


def test_similarity_is_the_rank_correlation_of_cosines() -> None:
    rows = pairs()
    rows = PairRows(rows.left, rows.right, [n % 7 + n / 100 for n in range(40)])
    encoder = Drawn()
    wanted = spearmanr(encoder.cosines(rows.left, rows.right), rows.figures).statistic
    assert run(make_set("sts", rows, 40), encoder).value == pytest.approx(wanted, abs=1e-6)


def average_precision(scores: NDArray[np.float64], relevant: Sequence[bool]) -> float:
    found, total = 0, 0.0
    for place, row in enumerate(np.argsort(-scores), start=1):
        if relevant[row]:
            found += 1
            total += found / place
    return total / found


def test_pairs_are_measured_by_average_precision() -> None:
    rows, encoder = pairs(), Drawn(noise=1.5)
    cosines = encoder.cosines(rows.left, rows.right)
    wanted = average_precision(cosines, [figure == 1 for figure in rows.figures])
    score = run(make_set("pairs", rows, 40), encoder)
    assert score.value == pytest.approx(wanted, abs=1e-6)
    assert 0.5 < score.value < 1


def test_search_is_measured_by_trec_evals_ndcg(beir: Path) -> None:
    item, encoder = read_judged_set("retrieval", str(beir), Cap()), Drawn(noise=2.0)
    rows = item.rows
    assert isinstance(rows, RankingSet)
    texts = {p.id: f"{p.title} {p.text}".strip() for p in rows.passages}
    hits = {
        name: sorted(texts, key=lambda p: -float(encoder.vector(texts[p]) @ encoder.vector(query)))
        for name, query in rows.queries.items()
    }
    by_query = ndcg(hits, rows.judged)
    score = run(item, encoder)
    assert score.value == pytest.approx(np.mean([*by_query.values()]), abs=1e-5)
    assert score.value < 1


def test_reranking_is_measured_by_mean_average_precision() -> None:
    rows, encoder = candidates(), Drawn(noise=1.0)
    wanted = [
        average_precision(encoder.cosines([row.query] * 6, row.passages), row.relevant)
        for row in rows
    ]
    score = run(make_set("reranking", rows, 7), encoder)
    assert score.value == pytest.approx(np.mean(wanted), abs=1e-5)
    assert len(set(wanted)) > 1


@pytest.mark.parametrize("kind", ["classification", "clustering"])
def test_labels_that_vectors_tell_apart_are_found_and_others_are_not(kind: Kind) -> None:
    item = make_set(kind, labelled(), 30)
    assert run(item, Drawn(noise=0.05)).value == pytest.approx(1.0)
    assert run(item, Drawn(noise=20.0)).value < 0.7


def sets() -> list[JudgedSet]:
    return [
        make_set("sts", pairs(), 40),
        make_set("pairs", pairs(), 40),
        make_set("reranking", candidates(), 7),
    ]


@pytest.mark.parametrize("item", sets(), ids=lambda item: item.kind)
def test_all_rows_as_they_are_measure_as_mteb_says(
    item: JudgedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intervals are made by the measure itself: of rows that are drawn once each it is the same."""
    monkeypatch.setattr(tasks.Local, "rows_drawn", lambda _, count: [np.arange(count)])
    score = run(item, Drawn(noise=1.0))
    assert score.resamples == [pytest.approx(score.value, abs=1e-5)]


@pytest.mark.parametrize(
    "item",
    [
        *sets(),
        make_set("classification", labelled(), 30),
        make_set("clustering", labelled(), 30),
    ],
    ids=lambda item: item.kind,
)
def test_resamples_lie_round_the_score_and_are_drawn_alike_for_all(item: JudgedSet) -> None:
    first, again = run(item, Drawn(noise=1.5)), run(item, Drawn(noise=1.5))
    assert first == again
    drawn = np.array(first.resamples)
    assert drawn.mean() == pytest.approx(first.value, abs=0.03)
    assert drawn.std() > 0
    alike = np.array(run(item, Drawn(noise=1.45)).resamples)
    assert np.corrcoef(drawn, alike)[0, 1] > 0.5


def test_each_kind_is_asked_with_its_purpose_and_mtebs_instruction(beir: Path) -> None:
    encoder = Drawn()
    run(read_judged_set("retrieval", str(beir), Cap()), encoder)
    asked = dict(encoder.asked)
    assert set(asked) == {
        "search_query|Retrieve text based on user query.",
        "search_document|",
    }
    assert asked["search_query|Retrieve text based on user query."] == [*QUERIES.values()][:4]
    encoder = Drawn()
    run(make_set("classification", labelled(), 30), encoder)
    assert {prompt for prompt, _ in encoder.asked} == {"classification|Classify user passages."}
    encoder = Drawn()
    run(make_set("sts", pairs(), 40), encoder)
    assert {prompt for prompt, _ in encoder.asked} == {"None|Retrieve semantically similar text."}


@pytest.fixture
def folders(tmp_path: Path, beir: Path) -> list[str]:
    """Write rows in the words of the tiny tokenizer; returns the command's flags for them."""
    words = ["mill", "river", "bread", "market"]
    content: dict[str, list[dict[str, Any]]] = {
        "alike": [
            {"text1": f"old {words[n % 4]}", "text2": f"the {words[n % 3]}", "score": n % 5}
            for n in range(24)
        ],
        "same": [
            {
                "text1": f"old {words[n % 4]}",
                "text2": f"the {words[n % 3]}",
                "label": int(n % 5 < 2),
            }
            for n in range(24)
        ],
        "kinds": [{"text": f"{words[n % 4]} in town {n}", "label": n % 4} for n in range(40)],
    }
    for name, rows in content.items():
        (tmp_path / name).mkdir()
        for split in ("train", "test"):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / name / f"{split}.jsonl").write_text(text)
    return [
        "--sts", str(tmp_path / "alike"), "--pairs", str(tmp_path / "same"),
        "--reranking", str(tmp_path / "same"), "--classification", str(tmp_path / "kinds"),
        "--clustering", str(tmp_path / "kinds"), "--retrieval", str(beir),
        "--experiments", "3", "--workers", "1", "--dtype", "float32", "--rounds", "1",
    ]  # fmt: skip


def test_stored_encoders_are_judged_killed_gone_on_with_and_published(
    folders: list[str],
    stored: Stored,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = stored("bert")
    root, out = model.root, tmp_path / "out"
    words = ["--model", "bert", "--store", str(root), "--out", str(out), *folders]
    judge, judged = tasks.judge, []

    def dying(item: JudgedSet, *rest: Any) -> tasks.Score:
        if len(judged) == 3:
            raise KeyboardInterrupt
        judged.append(item.key)
        return judge(item, *rest)

    monkeypatch.setattr(tasks, "judge", dying)
    with pytest.raises(KeyboardInterrupt):
        command.main(words)
    kept = {path: path.read_text() for path in (out / "encoders/bert").glob("*.json")}
    monkeypatch.setattr(tasks, "judge", judge)
    # The same goes on, with one more model.
    import_model(ModelStore(None, root), tmp_path / "bert", "bert2", pooling="cls")
    command.main([*words, "--model", "bert2", "--publish"])
    done = [path for path, text in kept.items() if '"made"' in text]
    assert len(done) == 3
    assert all(path.read_text() == kept[path] for path in done)
    report = json.loads((out / "report.json").read_text())
    assert [*report["models"]] == ["bert", "bert2"]
    first, other = report["models"].values()
    assert [*first["sets"]] == [*report["sets"]]
    assert len(first["sets"]) == 6
    for row in (first, other):
        for figure in (*row["sets"].values(), *row["means"].values()):
            assert figure["low"] <= figure["value"] <= figure["high"]
        assert row["speed"]["texts_a_second"] > 0
    assert other["minus_first"]["of"] == "bert"
    assert (out / "report.md").read_text() == capsys.readouterr().out
    assert all(
        (out / name).read_bytes().startswith(b"\x89PNG") for name in ("quality.png", "sets.png")
    )
    assert not list(out.rglob("*.npy"))
    for name, row in report["models"].items():
        new = ModelStore(None, root).open(name)
        part = StoredReport(new).report().report[command.PART]
        assert {key: part[key]["value"] for key in report["sets"]} == {
            key: figure["value"] for key, figure in row["sets"].items()
        }
    # Another version of the model, of other numbers, is no continuation.
    import_model(ModelStore(None, root), tmp_path / "bert", "bert", pooling="cls")
    with pytest.raises(InputError, match="fingerprint"):
        command.main(words)
