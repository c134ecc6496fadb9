import pytest

from condensery.client.rest import EventReader
from condensery.errors import CondenseryError, Unavailable
from condensery.question import Delta

STREAM = (
    b': a comment\n\nevent: message\ndata: {"delta": {"content": [{"payload": {"value": '
    b'"one\xe2\x80\xa8two"}}]}}\n\nevent: message\r\ndata: {"delta": {"content":\r\n'
    b'data: [{"payload": {"value": "three"}}]}}\r\n\r\nevent: done\ndata: [DONE]\n\n'
)


def read_in(chunks: list[bytes]) -> list[object]:
    reader = EventReader("http://here")
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    reader.finish()
    return events


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_stream_reads_the_same_in_pieces_of_any_size(size: int) -> None:
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert read_in(chunks) == [
        Delta("one\u2028two"),  # a line's end in Unicode, but not in a stream
        Delta("three"),
    ]


def test_a_stream_that_stops_before_its_end_is_an_error() -> None:
    with pytest.raises(Unavailable, match="broke off"):
        read_in([b'event: compression\ndata: {"docs": 1}\n\n'])


def test_an_event_of_another_service_is_an_error_that_says_so() -> None:
    with pytest.raises(CondenseryError, match="http://here: the reply is not one of this service"):
        read_in([b"data: <html>\n\n"])
