import pytest
from tiny_report import tiny_report

from condensery.methods.oscar import tables
from condensery.methods.oscar.measured import Estimate, check_report


def cells(lines: list[str]) -> list[list[str]]:
    rows = [line for line in lines if line]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_settings_are_told_in_words_by_the_number_of_passages() -> None:
    report = check_report(tiny_report(settings={
        **tiny_report()["settings"],
        "gold_upside_down": {"em": 1, "f1": 2},
    }))  # fmt: skip
    fixed = cells(tables.fixed_settings(report))
    assert fixed[0][:3] == ["the generator is given", "EM", "F1"]
    assert "judge" not in fixed[0]
    assert fixed[2][0] == "no passage"
    assert fixed[4] == [
        *("its passage alone", "32.2 (29.2 to 35.2)", "49.6 (46.6 to 52.6)"),
        *("39.7 (36.7 to 42.7)", "0.0400", "0.00400", "8", "38"),
    ]
    assert fixed[-1][0] == "gold upside down"
    retrieved = cells(tables.retrieved_settings(report))
    assert [row[0] for row in retrieved[2:6]] == [
        "top 1, as text",
        "top 1, all read as vectors",
        "top 1, reranked by the pair, 1 read as vectors",
        "BM25's top 1, 1 read as text",
    ]
    assert retrieved[-2][0] == "top 50, reranked by the pair, 5 read as vectors"
    assert len(retrieved) == 2 + 4 * 6


def test_another_reader_stands_beside_the_pair_with_the_same_passages() -> None:
    _, _, *rows = cells(tables.baseline(check_report(tiny_report()), "extractive_reader"))
    shares = {row[0]: (row[1], row[3]) for row in rows}
    assert shares["its passage alone"] == ("48.0 (45.0 to 51.0)", "67%")  # 32.24 / 48
    assert shares["its passage among five of its article, all read"] == ("40.0", "65%")
    assert shares["the same five, the best scored one read"] == ("40.0", "79%")  # 31.52 / 40
    assert len(rows) == 4


def test_a_reader_that_answers_nothing_has_no_share() -> None:
    nothing = {"none": {"gold": {"em": 0.0, "f1": 0.0}}}
    head, _, row = cells(tables.baseline(check_report(tiny_report(baselines=nothing)), "none"))
    assert "share" not in head
    assert row[1] == "0.0"


def test_rankings_and_their_differences() -> None:
    rerank = {
        "scifact": {
            "queries": 300,
            "depth": 50,
            "bm25": {"ndcg10": 0.676, "low": 0.629, "high": 0.721},
            "pair": {"ndcg10": 0.68},
            "differences": {
                "pair_minus_bm25": {"ndcg10": 0.004, "low_95": -0.01, "high_95": 0.02},
                "encoder_minus_bm25": {"ndcg10": 0.1, "low_95": 0.0, "high_95": 0.2},
            },
        }
    }
    report = check_report(tiny_report(rerank=rerank))
    head, _, row = cells(tables.rerank(report))
    assert head == ["queries of", "queries", "reranked", "BM25", "this pair"]
    assert row == ["scifact", "300", "50", "0.676 (0.629 to 0.721)", "0.680"]
    _, _, *rows = cells(tables.rerank_differences(report))
    assert rows == [["scifact", "pair − bm25", "+0.004", "-0.010 to +0.020"]]
    percent = cells(tables.rerank(check_report(tiny_report())))
    assert percent[2][3] == "86.9 (85.0 to 88.5)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (0.000218, "0.000218"),
        (0.0145, "0.0145"),
        (1.0, "1.00"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345.6, "12346"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert tables.number(value) == text


def test_an_interval_is_there_where_both_ends_are() -> None:
    assert tables.spread(Estimate(mean=1.26, low=1, high=2)) == "1.3 (1.0 to 2.0)"
    assert tables.spread(Estimate(mean=1.26, low=1)) == "1.3"
    assert tables.spread(None) == ""


def test_a_long_curve_becomes_a_few_rows_with_both_ends() -> None:
    abstention = check_report(tiny_report()).abstention
    assert abstention is not None
    _, _, *rows = cells(tables.abstention(abstention.curve))
    assert len(rows) == 11
    assert (rows[0][0], rows[-1][0]) == ("0", "1")
    assert len(cells(tables.abstention(abstention.curve[:1]))) == 3
