import pytest

from condensery.client.rest import EventReader
from condensery.errors import CondenseryError, Unavailable

STREAM = (
    b': a comment\n\nevent: message\ndata: {"text": "one\xe2\x80\xa8two"}\n\n'
    b'event: message\r\ndata: {"text":\r\ndata: "three"}\r\n\r\nevent: done\ndata: [DONE]\n\n'
)


def read_in(chunks: list[bytes]) -> list[object]:
    reader = EventReader("http://here")
    events = [event for chunk in chunks for event in reader.feed(chunk, lambda event: [event])]
    reader.finish()
    return events


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_stream_reads_the_same_in_pieces_of_any_size(size: int) -> None:
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert read_in(chunks) == [
        ("message", {"text": "one\u2028two"}),  # a line's end in Unicode, but not in a stream
        ("message", {"text": "three"}),
    ]


def test_a_stream_that_stops_before_its_end_is_an_error() -> None:
    with pytest.raises(Unavailable, match="broke off"):
        read_in([b'event: message\ndata: {"text": "one"}\n\n'])


def test_an_event_of_another_service_is_an_error_that_says_so() -> None:
    with pytest.raises(CondenseryError, match="http://here: the reply is not one of this service"):
        read_in([b"data: <html>\n\n"])
