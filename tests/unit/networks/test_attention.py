from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.networks.conftest import SIZES, sharpen
from torch import Tensor
from transformers import (
    AutoModel,
    MistralConfig,
    ModernBertConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from condensery.networks.attention import (
    LONGEST_PRODUCTS,
    PACKED,
    attend,
    packed_attention,
)
from condensery.networks.packing import Packing

LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=9)
FP32 = torch.float32
LOCAL = ["sliding_attention"] * 2  # no layer that sees all, and would hide a wrong window


def random_rows(total: int, heads: int, size: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(total, heads, size, generator=torch.Generator().manual_seed(seed))


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, reach: int | None = None
) -> Tensor:
    """The formula, one sequence, in float64: (tokens, heads, size)."""
    q, k, v = (rows.double().transpose(0, 1) for rows in (query, key, value))
    scores = q @ k.mT * query.shape[-1] ** -0.5
    if causal:
        scores += torch.full_like(scores, -torch.inf).triu(1)
    if reach is not None:
        places = torch.arange(len(query))
        scores[:, (places[:, None] - places).abs() > reach] = -torch.inf
    return (scores.softmax(-1) @ v).transpose(0, 1)


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, causal=st.booleans(), multiple=st.sampled_from([1, 32]))
def test_each_sequence_gets_what_the_formula_gives_it_alone(
    lengths: list[int], causal: bool, multiple: int
) -> None:
    packing = Packing.of(lengths, dtype=FP32, total_multiple=multiple)
    query, key, value = (random_rows(packing.total, 4, seed=seed) for seed in range(3))
    got = attend(packing, query, key, value, scale=8**-0.5, causal=causal)
    assert got.shape == query.shape
    for start, end in pairwise(accumulate(lengths, initial=0)):
        own = slice(start, end)
        wanted = softmax_attention(query[own], key[own], value[own], causal)
        torch.testing.assert_close(got[own].double(), wanted, atol=2e-6, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_in_bf16_too_whatever_way_a_cpu_takes(causal: bool) -> None:
    lengths = [5, LONGEST_PRODUCTS + 1, 16, 61]  # one is too long for the way of the others
    packing = Packing.of(lengths, dtype=torch.bfloat16)
    rows = [random_rows(packing.total, 3, size=32, seed=seed).bfloat16() for seed in range(3)]
    got = attend(packing, *rows, scale=32**-0.5, causal=causal)
    assert got.dtype == torch.bfloat16
    for start, end in pairwise(accumulate(lengths, initial=0)):
        wanted = softmax_attention(*(tensor[start:end] for tensor in rows), causal)
        # Scores and weights are rounded to eight bits each.
        torch.testing.assert_close(got[start:end].double(), wanted, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_sees_no_farther_than_its_window_reaches(causal: bool, dtype: torch.dtype) -> None:
    lengths = [3, 30, 16, 45, 1]
    packing = Packing.of(lengths, dtype=dtype)
    rows = [random_rows(packing.total, 2, size=16, seed=seed).to(dtype) for seed in range(3)]
    leaves = [tensor.requires_grad_() for tensor in rows]
    got = attend(packing, *leaves, scale=16**-0.5, causal=causal, reach=7)
    close = 0.02 if dtype == torch.bfloat16 else 2e-6
    for start, end in pairwise(accumulate(lengths, initial=0)):
        wanted = softmax_attention(*(tensor[start:end] for tensor in rows), causal, reach=7)
        torch.testing.assert_close(got[start:end].double(), wanted, atol=close, rtol=close)
    got.float().sum().backward()
    assert all(
        torch.isfinite(tensor.grad).all() for tensor in leaves
    )  # padding is a row of its own


def test_a_neighbour_s_values_change_nothing() -> None:
    packing = Packing.of([7, 20, 30], dtype=FP32)
    rows = [random_rows(57, 2, seed=seed) for seed in range(3)]
    before = attend(packing, *rows, scale=1.0, causal=False)
    for tensor in rows:
        tensor[7:27] += 100
    after = attend(packing, *rows, scale=1.0, causal=False)
    assert torch.equal(before[:7], after[:7])
    assert torch.equal(before[27:], after[27:])
    assert not torch.allclose(before[7:27], after[7:27])


def test_key_heads_are_shared_by_groups_of_query_heads() -> None:
    packing = Packing.of([5, 18], dtype=FP32)
    query = random_rows(23, 4)
    key, value = random_rows(23, 2, seed=1), random_rows(23, 2, seed=2)
    got = attend(packing, query, key, value, scale=8**-0.5, causal=True)
    for head in range(4):
        single = [
            rows[:, h : h + 1] for rows, h in ((query, head), (key, head // 2), (value, head // 2))
        ]
        alone = attend(packing, *single, scale=8**-0.5, causal=True)
        torch.testing.assert_close(got[:, head : head + 1], alone)


@pytest.mark.parametrize("lengths", [[16, 16, 16], [48], [16, 32, 32]])
def test_whole_multiples_of_sixteen_are_not_copied(lengths: list[int]) -> None:
    packing = Packing.of(lengths, dtype=FP32)
    rows = random_rows(packing.total, 2)
    assert packing.pad(rows) is rows
    assert packing.unpad(rows) is rows
    assert all(bucket.mask is None for bucket in packing.buckets)


@given(lengths=LENGTHS)
def test_unpadding_undoes_padding(lengths: list[int]) -> None:
    packing = Packing.of(lengths, dtype=FP32, total_multiple=32)
    rows = torch.arange(packing.total)
    real = sum(lengths)
    assert torch.equal(packing.unpad(packing.pad(rows))[:real], rows[:real])
    assert all(bucket.length % 16 == 0 for bucket in packing.buckets)


def test_positions_start_anew_in_each_sequence_and_filler_is_at_the_end() -> None:
    packing = Packing.of([3, 1, 2], dtype=FP32, total_multiple=8)
    assert packing.position_ids.tolist() == [[0, 1, 2, 0, 0, 1, 0, 0]]
    assert packing.row([7, 7, 7, 8, 9, 9], fill=1).tolist() == [[7, 7, 7, 8, 9, 9, 1, 1]]
    assert packing.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert packing.starts.tolist() == [0, 3, 4]
    assert packing.ends.tolist() == [2, 3, 5]


@pytest.mark.parametrize("lengths", [[], [4, 0]])
def test_no_sequence_and_an_empty_sequence_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="can't pack"):
        Packing.of(lengths, dtype=FP32)


@pytest.mark.parametrize("family", ["bert", "roberta", "llama"])
def test_a_transformers_model_gives_packed_what_it_gives_alone(
    family: str, request: pytest.FixtureRequest
) -> None:
    model: PreTrainedModel = request.getfixturevalue(family)
    lengths = [3, 40, 16, 1]
    tokens = [torch.randint(2, 300, (1, length)) for length in lengths]
    with torch.inference_mode():
        alone = [model(input_ids=ids).last_hidden_state[0] for ids in tokens]
        model.set_attn_implementation(PACKED)
        packing = Packing.of(lengths, dtype=FP32, total_multiple=32)
        offset = 2 if family == "roberta" else 0
        packed = model(
            input_ids=packing.row(torch.cat(tokens, dim=1)[0].numpy()),
            position_ids=packing.position_ids + offset,
            packing=packing,
        ).last_hidden_state[0]
    torch.testing.assert_close(packed[: sum(lengths)], torch.cat(alone), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        ModernBertConfig(**SIZES, local_attention=10, pad_token_id=0),
        MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=7),
    ],
    ids=["modernbert", "mistral"],
)
def test_a_model_with_windows_gives_packed_what_it_gives_alone(config: PretrainedConfig) -> None:
    torch.manual_seed(0)
    model = sharpen(AutoModel.from_config(config, attn_implementation="eager"))
    lengths = [3, 40, 16, 70]
    tokens = [torch.randint(2, 300, (1, length)) for length in lengths]
    with torch.inference_mode():
        alone = [model(input_ids=ids).last_hidden_state[0] for ids in tokens]
        model.set_attn_implementation(PACKED)
        packing = Packing.of(lengths, dtype=FP32)
        packed = model(
            input_ids=packing.row(torch.cat(tokens, dim=1)[0].numpy()),
            position_ids=packing.position_ids,
            packing=packing,
        ).last_hidden_state[0]
    torch.testing.assert_close(packed, torch.cat(alone), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["mistral", "modernbert"])
def test_a_window_reaches_exactly_as_far_as_transformers_has_it(family: str) -> None:
    """Also where it is about as long as a sequence, or as the 16 that sequences are padded to."""
    lengths = (15, 16, 17, 32)
    for window in (1, 2, 13, 14, 15, 16, 17, 31, 32, 33):
        config: PretrainedConfig = (
            MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=window)
            if family == "mistral"
            else ModernBertConfig(
                **SIZES, pad_token_id=0, local_attention=2 * window, layer_types=LOCAL
            )
        )
        torch.manual_seed(0)
        model = sharpen(AutoModel.from_config(config, attn_implementation="eager"))
        tokens = [torch.randint(2, 300, (1, length)) for length in lengths]
        with torch.inference_mode():
            wanted = [model(input_ids=ids).last_hidden_state[0] for ids in tokens]
            model.set_attn_implementation(PACKED)
            for some in ([0], [1], [2], [3], [0, 1, 2, 3]):  # alone, and beside longer ones
                packing = Packing.of([lengths[place] for place in some], dtype=FP32)
                actual = model(
                    input_ids=packing.row(torch.cat([tokens[i] for i in some], 1)[0].numpy()),
                    position_ids=packing.position_ids,
                    packing=packing,
                ).last_hidden_state[0]
                torch.testing.assert_close(
                    actual[: packing.starts[-1] + lengths[some[-1]]],
                    torch.cat([wanted[place] for place in some]),
                    atol=5e-5,
                    rtol=1e-4,
                    msg=lambda message, window=window, some=some: f"{window}, {some}: {message}",
                )


def test_embeddings_can_be_packed_in_place_of_ids(bert: PreTrainedModel) -> None:
    ids = torch.randint(1, 300, (1, 12))
    packing = Packing.of([5, 7], dtype=FP32)
    bert.set_attn_implementation(PACKED)
    options = {"position_ids": packing.position_ids, "packing": packing}
    with torch.inference_mode():
        by_ids = bert(input_ids=ids, **options).last_hidden_state
        embeds = bert.get_input_embeddings()(ids)
        by_embeds = bert(inputs_embeds=embeds, **options).last_hidden_state
    assert torch.equal(by_ids, by_embeds)


def test_a_model_called_without_packing_fails_instead_of_mixing_its_sequences(
    bert: PreTrainedModel,
) -> None:
    bert.set_attn_implementation(PACKED)
    with pytest.raises(ValueError, match="packing="):
        bert(input_ids=torch.ones(1, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_mask": torch.ones(1, 1, 6, 6)}, "no mask"),
        ({"dropout": 0.1}, "no dropout"),
        ({"softcap": 30.0}, "softcap"),
        ({"packing": Packing.of([4], dtype=FP32)}, "row of 4"),
    ],
)
def test_what_would_change_the_result_is_refused(options: dict[str, object], message: str) -> None:
    rows = torch.zeros(1, 2, 6, 8)
    arguments = {"attention_mask": None, "packing": Packing.of([2, 4], dtype=FP32)} | options
    with pytest.raises(ValueError, match=message):
        packed_attention(torch.nn.Identity(), rows, rows, rows, **arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reach", [None, 7])
def test_cuda_gives_what_the_formula_gives(
    causal: bool, heads: tuple[int, int], dtype: torch.dtype, reach: int | None
) -> None:
    lengths = [1, 9, 64, 130]
    packing = Packing.of(lengths, dtype=dtype, device="cuda")
    rows = [
        random_rows(sum(lengths), count, 32, seed).to("cuda", dtype)
        for seed, count in enumerate((heads[0], heads[1], heads[1]))
    ]
    got = attend(packing, *rows, scale=32**-0.5, causal=causal, reach=reach).double()
    query, key, value = rows
    key, value = (kv.repeat_interleave(heads[0] // heads[1], 1) for kv in (key, value))
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for start, end in pairwise(accumulate(lengths, initial=0)):
        own = (query[start:end], key[start:end], value[start:end])
        wanted = softmax_attention(*own, causal, reach)
        torch.testing.assert_close(got[start:end], wanted, atol=tolerance, rtol=0)
