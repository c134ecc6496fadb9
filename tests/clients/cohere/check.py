"""Cohere's client, both of its versions, gets what the server says to plain requests."""

import os

import cohere

URL = os.environ["SERVER"]
passages = ["Helium is a gas.", "The Danube ends in the Black Sea.", "A mill grinds grain."]
query = "Where does the Danube end?"
orders = []
for make in (cohere.Client, cohere.ClientV2):
    client = make(api_key="none", base_url=URL)
    reply = client.rerank(model="minilm-l6", query=query, documents=passages, top_n=2)
    assert len(reply.results) == 2
    orders.append([one.index for one in reply.results])
    scores = [one.relevance_score for one in reply.results]
    assert scores == sorted(scores, reverse=True)
    for wrong in ({"model": "rerank-v9"}, {"documents": []}):
        asked = {"model": "minilm-l6", "query": query, "documents": passages, **wrong}
        try:
            client.rerank(**asked)
        except cohere.core.ApiError as error:
            assert error.status_code in (400, 404, 422), error
            assert error.body["message"], error
        else:
            raise AssertionError(wrong)
assert orders[0] == orders[1] and orders[0][0] == 1, orders
print("ok")
