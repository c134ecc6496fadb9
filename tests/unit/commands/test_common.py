import argparse

import pytest

from condensery.commands.common import complete_url, connect
from condensery.errors import AnswerServerUnavailable, Unavailable, VectorDatabaseUnavailable


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("localhost:9200", "http://localhost:9200"),
        ("localhost", "http://localhost:8080"),
        ("rag.example.com:80/prefix", "http://rag.example.com:80/prefix"),
        ("[::1]:9200", "http://[::1]:9200"),
        ("[::1]", "http://[::1]:8080"),
        ("http://localhost", "http://localhost"),
        ("https://localhost:9200/", "https://localhost:9200/"),
    ],
)
def test_an_address_gets_the_scheme_that_it_lacks_and_keeps_its_port(
    address: str, url: str
) -> None:
    assert complete_url(address, "http") == url


def test_an_address_without_a_scheme_is_https_where_certificates_are_given() -> None:
    assert complete_url("localhost:9200", "https") == "https://localhost:9200"


def test_only_a_refused_connection_says_how_to_start_a_server() -> None:
    args = argparse.Namespace(url="localhost", grpc=None, timeout=1.0, api_key=None, ca=None)
    for error, helps in (
        (Unavailable("localhost: [Errno 111] Connection refused"), True),
        (Unavailable("the server is starting"), False),
        (AnswerServerUnavailable("the answers' server: Connection refused"), False),
        (VectorDatabaseUnavailable("Qdrant at http://db: Connection refused"), False),
    ):
        with pytest.raises(Unavailable) as caught, connect(args):
            raise error
        assert ("`condensery serve`" in caught.value.message) is helps
