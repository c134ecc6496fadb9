"""Traffic as people write it, and as the load tests have it."""

import pytest

from condensery.capacity.traffic import (
    JOBS,
    MIXES,
    PROFILES,
    RequestKind,
    parse_request,
    total_rate,
    traffic_of,
)
from condensery.errors import InputError


@pytest.mark.parametrize(
    ("line", "rate", "kind"),
    [
        ("40/s embed", 40, RequestKind("embed", 1, 13)),
        ("0.5 rerank 3 model=me", 0.5, RequestKind("rerank", 3, 85, 0, None, "me")),
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
        ("nan embed", "nan"),
        ("many/s embed", "many"),
        ("4/s embedd", "embedd"),
        ("4/s embed 0", "0"),
        ("4/s embed tokens=x", "x"),
        ("4/s embed length=4", "length=4"),
        ("4/s embed output=4", "output=4"),
        ("4/s rerank passages=4", "passages=4"),
        ("4/s query 3", "3"),
        ("4/s embed streamed", "streamed"),
        ("4/s embed model=", "model"),
    ],
)
def test_a_line_that_is_wrong_is_refused_by_its_word(line: str, told: str) -> None:
    with pytest.raises(InputError, match="--request") as error:
        parse_request(line)
    assert told in error.value.message


def test_the_load_tests_mixes_are_traffic_at_their_rate() -> None:
    for jobs in MIXES.values():
        traffic = traffic_of(jobs, 48.0)
        assert total_rate(traffic) == pytest.approx(48)
        assert {line.kind for line in traffic} == {JOBS[job] for job in jobs}
    both = next(line for line in traffic_of(MIXES["mix"], 24) if line.kind.task == "answer")
    assert both.rate == pytest.approx(3), "answers whole and streamed cost the same: one line"
    assert PROFILES["spike"].peak == 40
