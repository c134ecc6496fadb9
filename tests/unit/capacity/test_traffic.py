"""Traffic as people write it, and as the load tests have it."""

import json
from pathlib import Path

import pytest

from condensery.capacity.traffic import (
    JOBS,
    MIXES,
    PROFILES,
    RequestKind,
    parse_request,
    read_mix,
    total_rate,
    traffic_of,
)
from condensery.errors import InputError


@pytest.mark.parametrize(
    ("line", "rate", "kind"),
    [
        ("40/s embed", 40, RequestKind("embed", 1, 13)),
        ("0.5 embed 16 tokens=85", 0.5, RequestKind("embed", 16, 85)),
        (
            "2/s rerank 32 tokens=120 model=oscar-mini",
            2,
            RequestKind("rerank", 32, 120, 0, None, "oscar-mini"),
        ),
        ("3/s answer 5 tokens=120 output=20", 3, RequestKind("answer", 5, 120, 20)),
        ("1/s answer streamed", 1, RequestKind("answer", 5, 85)),
        ("1e2/s query passages=100000", 100, RequestKind("query", 1, 13, 0, 100_000)),
        ("1/s write 4", 1, RequestKind("write", 4, 85)),
    ],
)
def test_a_line_is_read(line: str, rate: float, kind: RequestKind) -> None:
    traffic = parse_request(line)
    assert (traffic.rate, traffic.kind) == (rate, kind)


def test_a_kinds_name_is_read_as_that_kind_again() -> None:
    for kind in JOBS.values():
        assert parse_request(f"1/s {kind.name}").kind == kind


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("embed", "embed"),
        ("0/s embed", "0"),
        ("-1/s embed", "-1"),
        ("nan embed", "nan"),
        ("inf embed", "inf"),
        ("many/s embed", "many"),
        ("4/s embedd", "embedd"),
        ("4/s embed 0", "0"),
        ("4/s embed 1.5", "1.5"),
        ("4/s embed tokens=x", "x"),
        ("4/s embed tokens=", "tokens"),
        ("4/s embed length=4", "length=4"),
        ("4/s embed output=4", "output=4"),
        ("4/s rerank passages=4", "passages=4"),
        ("4/s query 3", "COUNT"),
        ("4/s embed streamed", "streamed"),
        ("4/s embed model=", "model="),
    ],
)
def test_a_line_that_is_wrong_is_refused_by_its_word(line: str, told: str) -> None:
    with pytest.raises(InputError, match="--request") as error:
        parse_request(line)
    assert told in error.value.message


def test_a_file_has_lines_and_what_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "mix.json"
    file.write_text(json.dumps({"requests": ["4/s embed", "1/s query"], "p95_ms": 500}))
    mix = read_mix(file)
    assert [line.kind.task for line in mix.traffic] == ["embed", "query"]
    assert (mix.p95_ms, mix.cost_an_hour, total_rate(mix.traffic)) == (500, None, 5)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "mix.json"),
        ("[]", "requests"),
        ("{}", "requests"),
        ('{"requests": []}', "requests"),
        ('{"requests": ["4/s embed", 7]}', r"requests\[1\]"),
        ('{"requests": ["4/s embed", "x"]}', r"requests\[1\]"),
        ('{"requests": ["4/s embed"], "p95": 3}', "p95"),
        ('{"requests": ["4/s embed"], "p95_ms": -3}', "p95_ms.*-3"),
        ('{"requests": ["4/s embed"], "p95_ms": true}', "p95_ms"),
        ('{"requests": ["4/s embed"], "cost_an_hour": "x"}', "cost_an_hour"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_its_field(
    tmp_path: Path, content: str, told: str
) -> None:
    file = tmp_path / "mix.json"
    file.write_text(content)
    with pytest.raises(InputError, match=told):
        read_mix(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json"):
        read_mix(tmp_path / "none.json")


def test_the_load_tests_mixes_are_traffic_at_their_rate() -> None:
    for jobs in MIXES.values():
        traffic = traffic_of(jobs, 48.0)
        assert total_rate(traffic) == pytest.approx(48)
        assert {line.kind for line in traffic} == {JOBS[job] for job in jobs}
    both = next(line for line in traffic_of(MIXES["mix"], 24) if line.kind.task == "answer")
    assert both.rate == pytest.approx(3), "answers whole and streamed cost the same: one line"
    assert PROFILES["spike"].peak == 40
