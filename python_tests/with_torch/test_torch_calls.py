"""`kvcache_ops.torch` eagerly and compiled: the bits of `kvcache_ops.run`, in the tensors' own memory."""

from __future__ import annotations

from typing import Any

import kvcache_ops
import pytest
import torch
from kvcache_ops import KvCacheError
from kvcache_ops.ops._schemas import BY_DOMAIN_AND_NAME
from kvcache_ops.torch import key_value_cache, multi_head_attention, multi_head_cache_attention
from kvcache_ops.torch._operator import OF_FLOAT8
from torch import Tensor

from compare import assert_same_bits
from torch_steps import NUM_HEADS, TYPES, as_arrays, as_tensors, spec_of, steps, torch_cache

FORMATS = [(dtype, quant_bit) for dtype in TYPES for quant_bit in (0, 8, 4)]
PLACES = [(None, 0), (5, 3), (16, 2), (7, 1)]
ONLY_ATTENTION = ("query", "decoding_batches")
FUNCTIONS = dict(
    KeyValueCache=key_value_cache,
    MultiHeadAttention=multi_head_attention,
    MultiHeadCacheAttention=multi_head_cache_attention,
)


def attention_attributes(spec: kvcache_ops.CacheSpec) -> dict[str, int]:
    """The attributes of MultiHeadCacheAttention over a cache."""
    cache = spec.attributes(layer_idx=1)
    del cache["num_repeat"]
    return cache | dict(num_heads=NUM_HEADS, num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim)


@pytest.mark.parametrize(("page_size", "cache_layout"), PLACES)
@pytest.mark.parametrize(("dtype", "quant_bit"), FORMATS)
def test_eager_calls_have_the_bits_of_run(dtype: str, quant_bit: int, page_size: int | None, cache_layout: int) -> None:
    """Step by step, key, value and attention, and the cache after each; the tensors keep their memory."""
    spec = spec_of(dtype, quant_bit, page_size, cache_layout)
    mine, theirs = torch_cache(spec), spec.allocate()
    addresses = [tensor.data_ptr() for tensor in mine if tensor is not None]
    for index, step in enumerate(steps(spec)):
        memory = dict(cache=mine[0], scale=mine[1])
        if index % 2:
            got = [multi_head_cache_attention(**as_tensors(step), **memory, **attention_attributes(spec))]
            arrays = as_arrays(step, theirs)
            expected = [kvcache_ops.multi_head_cache_attention(attention_attributes(spec), **arrays)]
        else:
            attributes = spec.attributes(layer_idx=1, num_repeat=2)
            got = list(key_value_cache(**as_tensors(step, *ONLY_ATTENTION), **memory, **attributes))
            expected = list(kvcache_ops.run(attributes, **as_arrays(step, theirs, *ONLY_ATTENTION)))
        for tensor, array in zip(got, expected):
            assert_same_bits(f"step {index}", tensor.numpy(), array)
        for tensor, array in zip(mine, theirs):
            if tensor is not None:
                assert tensor.any()
                assert_same_bits(f"cache, step {index}", tensor.numpy(), array)
    assert addresses == [tensor.data_ptr() for tensor in mine if tensor is not None]


def call(**changes: Any) -> tuple[Tensor, Tensor]:
    """A call of KeyValueCache on an int8 cache, with changes."""
    spec = spec_of("float32", 8, None, 0)
    cache, scale = torch_cache(spec)
    inputs = as_tensors(steps(spec)[0], *ONLY_ATTENTION) | dict(cache=cache, scale=scale)
    return key_value_cache(**(inputs | spec.attributes() | changes))


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        (dict(start_pos=torch.tensor([0, 2])), "kvlen_mismatch", "kvstarts gives batch 1 kvlen 3, expected"),
        (dict(layer_idx=3), "attribute_out_of_range", "layer_idx is 3"),
        (dict(scale=None), None, "scale"),
        (dict(cache=torch.zeros((2, 160, 3, 2, 16), dtype=torch.int8).transpose(0, 1)), None, "cache"),
        (dict(cache=torch.zeros((160, 3, 2, 2, 32), dtype=torch.int8)[..., ::2]), "not_contiguous", "cache is not"),
        (dict(cache=torch.zeros((160, 3, 2, 2, 16), dtype=torch.bfloat16)), None, "cache"),
        (dict(seqstarts=torch.tensor([0, 5, 8], dtype=torch.int32)), "type_mismatch", "seqstarts"),
    ],
)
def test_refusals_are_the_librarys(changes: dict[str, Any], kind: str | None, words: str) -> None:
    """With their kind and their numbers, through torch's dispatcher; nothing is written."""
    spec = spec_of("float32", 8, None, 0)
    cache, scale = torch_cache(spec)
    with pytest.raises(KvCacheError, match=words) as refused:
        call(**(dict(cache=cache, scale=scale) | changes))
    assert kind is None or refused.value.kind == kind
    assert not cache.any() and not scale.any()


def test_what_is_read_may_be_strided_and_may_need_a_gradient() -> None:
    """A key cut out of a projection is no contiguous tensor; a parameter's product needs a gradient."""
    spec = spec_of("float32", 0, None, 3)
    step = as_tensors(steps(spec)[0], *ONLY_ATTENTION)
    one, other = torch_cache(spec)[0], torch_cache(spec)[0]
    expected = key_value_cache(**step, cache=one, **spec.attributes())
    wide = torch.cat([step["current_key"], step["current_value"]], dim=1).requires_grad_()
    key, value = wide.chunk(2, dim=1)
    assert not key.is_contiguous()
    got = key_value_cache(**(step | dict(current_key=key, current_value=value)), cache=other, **spec.attributes())
    assert all(map(torch.equal, got, expected)) and torch.equal(one, other)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        got[0].sum().backward()


def test_an_empty_batch_gives_empty_tensors() -> None:
    """No sequences, no tokens, nothing written."""
    spec = spec_of("float16", 0, None, 0)
    cache, _ = torch_cache(spec)
    none, start = torch.zeros((0, 2, 16), dtype=torch.float16), torch.zeros(1, dtype=torch.int64)
    bound = torch.tensor(0)
    key, value = key_value_cache(none, none, start, start, start[:0], start[:0], bound, bound, cache, num_layer=3)
    assert key.shape == value.shape == (0, 2, 16) and key.dtype == torch.float16 and not cache.any()


@pytest.mark.parametrize(("dtype", "quant_bit"), FORMATS)
def test_torch_finds_nothing_wrong(dtype: str, quant_bit: int) -> None:
    """torch's own check of a custom operator: schema, mutation, fake tensors, compiled and dynamic."""
    spec = spec_of(dtype, quant_bit, 5, 3)
    for number, step in enumerate(steps(spec)[:2]):
        inputs = as_tensors(step) | dict(zip(("cache", "scale"), torch_cache(spec)), attn_mask=None)
        for op_type, attributes in (
            ("KeyValueCache", spec.attributes(layer_idx=number)),
            ("MultiHeadCacheAttention", dict(is_causal=1, is_alibi=0) | attention_attributes(spec)),
        ):
            schema = BY_DOMAIN_AND_NAME[kvcache_ops.DOMAIN, op_type]
            arguments = [inputs[tensor.name] for tensor in schema.inputs]
            arguments += [attributes[a.name] for a in schema.attributes if a.name not in OF_FLOAT8]
            operator = getattr(torch.ops.kvcache_ops, FUNCTIONS[op_type].__name__).default
            checked = torch.library.opcheck(operator, tuple(arguments))
            assert set(checked.values()) == {"SUCCESS"}


class Layers(torch.nn.Module):
    """Two layers' attention, one after the other, over one cache."""

    def __init__(self, attributes: dict[str, int]):
        super().__init__()
        self.attributes = attributes

    def forward(self, **inputs: Tensor) -> Tensor:
        """The queries of the second layer are what the first one gives."""
        for layer in (0, 1):
            inputs["query"] = multi_head_cache_attention(**inputs, **(self.attributes | dict(layer_idx=layer)))
        return inputs["query"] * 2


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_functions_do_the_same(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph for batches of all sizes but one; under inductor the operator gets the caller's own cache, not a copy."""
    spec = spec_of("float32", 8, 5, 3)
    layers = Layers(attention_attributes(spec))
    seen = []
    run = kvcache_ops._native.run

    def spy(op_type: str, attributes: dict[str, int], inputs: list[Any], outputs: list[Any]) -> Any:
        seen.append(inputs[kvcache_ops._native.input_names(op_type).index("cache")].data_ptr())
        return run(op_type, attributes, inputs, outputs)

    monkeypatch.setattr("kvcache_ops.torch._operator._native.run", spy)
    torch._dynamo.reset()
    compiled = torch.compile(layers, backend=backend, fullgraph=True, dynamic=True)
    mine, theirs = torch_cache(spec), torch_cache(spec)
    for index, step in enumerate(steps(spec)):
        step["max_seqlen"], step["max_kvlen"] = step["max_seqlen"].reshape(1), step["max_kvlen"].reshape(1)
        expected = layers(**as_tensors(step), cache=theirs[0], scale=theirs[1])
        seen.clear()
        with torch._dynamo.config.patch(error_on_recompile=index > 2):
            got = compiled(**as_tensors(step), cache=mine[0], scale=mine[1])
        assert torch.equal(got, expected) and all(map(torch.equal, mine, theirs))
        assert len(seen) == 2 and (backend != "inductor" or set(seen) == {mine[0].data_ptr()})
