"""A made-up report of ``condensery eval oscar``, every part of it; its figures mean nothing."""

import math
from typing import Any

COUNTS = (1, 2, 5, 10, 20, 50)


def figure(mean: float, half: float = 3.0) -> dict[str, float]:
    mean = round(mean, 2)
    return {"mean": mean, "low": round(max(0, mean - half), 2), "high": round(mean + half, 2)}


def setting(f1: float, passages: float, read: float, seconds: float, tflops: float) -> Any:
    return {
        "passages": passages,
        "read": read,
        "em": figure(0.65 * f1),
        "f1": figure(f1),
        "match": figure(0.8 * f1),
        "seconds": seconds,
        "tflops": tflops,
        "vectors": 8 * read,
        "tokens": 30 + 8 * read,
    }


def tiny_report(**changes: Any) -> dict[str, Any]:
    settings = {
        "no_passage": setting(1.5, 0, 0, 0.02, 0.0004),
        "others_passages": setting(0.9, 5, 5, 0.05, 0.011),
        "gold": setting(49.6, 1, 1, 0.04, 0.004),
        "gold_plain": setting(52.5, 1, 1, 0.06, 0.006),
        "gold_among_five": setting(40.1, 5, 5, 0.06, 0.012),
        "gold_among_five_best_one": setting(48.5, 5, 1, 0.05, 0.0118),
        "gold_among_five_plain": setting(43.4, 5, 5, 0.15, 0.03),
    }
    for count in COUNTS:
        grows = math.log2(count)
        read = min(count, 5)
        settings[f"plain_{count}"] = setting(
            36 + 3 * grows - 0.5 * grows**2, count, count, 0.05 * count, 0.006 * count
        )
        settings[f"compressed_{count}"] = setting(
            34 + 2 * grows - 0.5 * grows**2, count, count, 0.03 + 0.009 * count, 0.0024 * count
        )
        settings[f"reranked_{count}"] = setting(
            34 + 2.2 * grows, count, read, 0.03 + 0.006 * count, 0.0023 * count
        )
        settings[f"bm25_{count}"] = setting(
            33 + 2.5 * min(grows, 2.3), count, read, 0.05 * read, 0.006 * read
        )
    curve = [
        {
            "min_relevance": round(at / 20, 2),
            "answered": round(100 / (1 + math.exp(at / 2 - 8)), 1),
            "f1_answered": round(45 + at, 1),
            "wrong_without_gold": round(100 / (1 + math.exp(at / 1.5 - 3)), 1),
        }
        for at in range(21)
    ]
    report = {
        "format": 2,
        "model": "tiny-pair",
        "fingerprint": None,
        "command": "condensery eval oscar --model tiny-pair --questions dev.jsonl.gz",
        "seed": 17,
        "machine": "2 cores",
        "versions": {"condensery": "0.1.0"},
        "measured_on": {
            "questions": 2000,
            "file": "dev.jsonl.gz",
            "passages_in_corpus": 2067,
            "retrieval": "hybrid",
        },
        "settings": settings,
        "differences": {
            "gold_among_five_minus_no_passage": {"f1": 38.65, "low_95": 35.2, "high_95": 42.06},
            "gold_minus_gold_plain": {"f1": -2.9, "low_95": -4.1, "high_95": -1.75},
        },
        "abstention": {"threshold": 0.4, "curve": curve},
        "replaced": {"questions": 188, "follows_em": 48.4, "keeps_old_answer": 2.66},
        "gold_ranked_first_among_five": 97.17,
        "rerank": {
            "squad_dev_paragraphs": {
                "queries": 1000,
                "depth": 50,
                "bm25": {"ndcg10": 86.89, "low": 85.0, "high": 88.5},
                "encoder": {"ndcg10": 80.2, "low": 78.0, "high": 82.5},
                "pair": {"ndcg10": 91.3, "low": 89.9, "high": 92.6},
                "cross_encoder": {"ndcg10": 93.1},
            },
            "scifact": {
                "queries": 300,
                "depth": 50,
                "bm25": {"ndcg10": 67.62, "low": 62.9, "high": 72.1},
                "encoder": {"ndcg10": 64.5, "low": 59.0, "high": 69.0},
                "pair": {"ndcg10": 68.0, "low": 63.4, "high": 72.4},
            },
        },
        "baselines": {
            "extractive_reader": {
                "gold": {"em": figure(48.0), "f1": figure(60.0)},
                "gold_among_five": {"em": 40.0, "f1": 52.0},
            }
        },
        "training": [
            {
                "step": step,
                "items": 40 * step,
                "gold": {
                    "em": 30 * (1 - math.exp(-step / 600)),
                    "f1": 50 * (1 - math.exp(-step / 700)),
                },
                "plain": {
                    "em": 33 * (1 - math.exp(-step / 700)),
                    "f1": 53 * (1 - math.exp(-step / 800)),
                },
            }
            for step in range(0, 3600, 300)
        ],
        "examples": [
            {"question": "who *is* | old?", "answer": "", "gold": ["the miller", "a miller"]},
            {"question": "when?", "answer": "june 1, 1953", "gold": ["June 1, 1953"]},
        ],
    }
    return {**report, **changes}
