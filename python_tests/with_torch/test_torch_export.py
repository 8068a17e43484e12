"""`kvcache_ops.torch` in `torch.onnx.export`: nodes of the library, which ONNX Runtime runs as torch ran the module."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from kvcache_ops import DOMAIN, Cache, KvCacheError
from kvcache_ops.torch import int4_inputs, key_value_cache, multi_head_cache_attention
from torch import Tensor, nn

from compare import assert_same_bits
from torch_steps import as_tensors, run_in_place, spec_of, steps, torch_cache


class Attention(nn.Module):
    """Attention over the cache in two layers; or, without queries, the keys and values of both, side by side."""

    def __init__(self, attributes: dict[str, int]):
        super().__init__()
        self.attributes = attributes

    def forward(
        self,
        current_key: Tensor,
        current_value: Tensor,
        seqstarts: Tensor,
        kvstarts: Tensor,
        cachestarts: Tensor,
        start_pos: Tensor,
        max_seqlen: Tensor,
        max_kvlen: Tensor,
        cache: Tensor,
        scale: Tensor | None = None,
        query: Tensor | None = None,
        decoding_batches: Tensor | None = None,
    ) -> Tensor:
        """One tensor of all that the operators return."""
        indices = seqstarts, kvstarts, cachestarts, start_pos
        bounds = max_seqlen, max_kvlen
        given = []
        for layer in (0, 1):
            current = current_key * 0.5**layer, current_value
            attributes = self.attributes | dict(layer_idx=layer)
            if query is None:
                given.extend(key_value_cache(*current, *indices, *bounds, cache, scale, **attributes))
            else:
                fused = query, *current, *indices, decoding_batches, *bounds, cache, scale
                given.append(multi_head_cache_attention(*fused, **attributes))
        return torch.cat(given, dim=1)


def dynamic_shapes(inputs: dict[str, Tensor | None], layout_axis: int) -> dict[str, dict[int, object] | None]:
    """Tokens, batch, pages and slots may be others."""
    tokens, batch, pages, max_t = (torch.export.Dim(name) for name in ("tokens", "batch", "MaxP", "MaxT"))
    shapes: dict[str, dict[int, object] | None] = {name: None for name in inputs}
    for name in ("query", "current_key", "current_value"):
        shapes[name] = {0: tokens}
    shapes |= dict(seqstarts={0: batch + 1}, kvstarts={0: batch + 1}, start_pos={0: batch})
    shapes["cachestarts"] = {0: batch} | ({1: pages} if inputs["cachestarts"].dim() == 2 else {})
    shapes["cache"] = {layout_axis: max_t}
    shapes["scale"] = None if inputs["scale"] is None else {layout_axis: max_t}
    return {name: shapes[name] for name in inputs}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("dtype", "quant_bit", "page_size", "cache_layout", "exported_first"),
    [
        ("float32", 0, None, 0, False),
        ("float32", 0, 5, 3, True),
        ("float16", 8, 5, 2, False),
        ("float32", 4, 7, 1, False),
        ("float16", 4, None, 3, True),
    ],
)
def test_an_exported_module_runs_as_it_ran(
    fused: bool, dtype: str, quant_bit: int, page_size: int | None, cache_layout: int, exported_first: bool
) -> None:
    """Four ragged steps on one cache, also by way of `torch.export`: the same bits come out and are in the cache."""
    spec = spec_of(dtype, quant_bit, page_size, cache_layout)
    attributes = spec.attributes(num_repeat=2)
    without = ("query", "decoding_batches")
    if fused:
        del attributes["num_repeat"]
        attributes |= dict(num_heads=4, head_dim=spec.head_dim, num_kv_heads=spec.num_kv_heads)
        without = ()
    module = Attention(attributes).eval()
    calls = steps(spec)
    for call in calls:  # real exports have shape [1]
        for name in ("max_seqlen", "max_kvlen"):
            call[name] = call[name].reshape(1)
    cache, scale = torch_cache(spec)
    inputs = dict(cache=cache, scale=scale) | as_tensors(calls[0], *without)
    shapes = dynamic_shapes(inputs, spec.axes.index("MaxT"))
    if exported_first:
        program = torch.export.export(module, (), kwargs=inputs, dynamic_shapes=shapes)
    options = dict(output_names=["given"], opset_version=20, verbose=False)
    if exported_first:
        model = torch.onnx.export(program, **options).model_proto
    else:
        model = torch.onnx.export(module, (), kwargs=inputs, dynamic_shapes=shapes, **options).model_proto
    assert not cache.any(), "tracing writes nothing"
    ours = [node for node in model.graph.node if node.domain == DOMAIN]
    assert len(ours) == 2 and all({"cache"} <= set(node.input) for node in ours)
    assert all(("scale" in node.input) == (scale is not None) for node in ours)
    if quant_bit == 4:
        int4_inputs(model)
    mine, theirs = (cache, scale), torch_cache(spec)
    for number, call in enumerate(calls):
        expected = module(cache=theirs[0], scale=theirs[1], **as_tensors(call, *without)).numpy()
        arrays = {name: array for name, array in call.items() if name not in without}
        memory = Cache(spec, *(tensor.numpy() for tensor in mine if tensor is not None))
        (got,) = run_in_place(model, arrays, memory)
        assert_same_bits(f"step {number}", got, expected)
        for name, tensor, other in zip(("cache", "scale"), mine, theirs):
            if tensor is not None:
                assert_same_bits(f"{name}, step {number}", tensor.numpy(), other.numpy())


def test_attributes_are_checked_while_exporting() -> None:
    """With the library's sentence, before there is a graph."""
    spec = spec_of("float32", 0, None, 0)
    inputs = dict(zip(("cache", "scale"), torch_cache(spec))) | as_tensors(steps(spec)[0], "query", "decoding_batches")
    module = Attention(dict(num_layer=1, cache_layout=4))
    with pytest.raises(Exception, match="cache_layout is 4") as refused:
        torch.export.export(module, (), kwargs=inputs)
    causes, error = [], refused.value
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    assert any(isinstance(cause, KvCacheError) and cause.kind == "attribute_out_of_range" for cause in causes)


def test_a_cache_that_is_a_buffer_is_refused_where_it_is_loaded() -> None:
    """It would be a constant of the graph, and the library does not write constants."""

    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros((32, 1, 2, 2, 16)))

        def forward(self, **inputs: Tensor) -> tuple[Tensor, Tensor]:
            return key_value_cache(cache=self.cache, **inputs)

    spec = spec_of("float32", 0, None, 0)
    inputs = as_tensors(steps(spec)[0], "query", "decoding_batches")
    model = torch.onnx.export(Buffered().eval(), (), kwargs=inputs, opset_version=20, verbose=False).model_proto
    with pytest.raises(Exception, match=r"cache.*graph input"):
        run_in_place(model, {name: tensor.numpy() for name, tensor in inputs.items()}, None)


def test_int4_inputs_names_what_it_cannot_change() -> None:
    """Only packed bytes become int4; symbols stay open."""
    graph = onnx.helper.make_graph(
        [],
        "graph",
        [
            onnx.helper.make_tensor_value_info("cache", onnx.TensorProto.UINT8, [4, "MaxT", 8]),
            onnx.helper.make_tensor_value_info("other", onnx.TensorProto.UINT8, [4, "half"]),
            onnx.helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT16, [4, "MaxT", 1]),
        ],
        [],
    )
    model = onnx.helper.make_model(graph)
    with pytest.raises(ValueError, match=r"'scale' is no graph input of uint8, expected one of .*cache.*other"):
        int4_inputs(model, ["cache", "scale"])
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8, "nothing is changed"
    int4_inputs(model, ["cache", "other"])
    cache, other = (value.type.tensor_type for value in model.graph.input[:2])
    assert (cache.elem_type, other.elem_type) == (onnx.TensorProto.INT4, onnx.TensorProto.INT4)
    assert [x.dim_param or x.dim_value for x in cache.shape.dim] == [4, "MaxT", 16]
    assert len(other.shape.dim) == 2 and not other.shape.dim[1].WhichOneof("value")
    with pytest.raises(ValueError, match="'cache' is no graph input of uint8"):
        int4_inputs(model)


PAGE = Path(__file__).resolve().parents[2] / "python/README.md"


def test_the_block_runs_and_what_it_exports_does_too() -> None:
    """The page's block runs as it stands; ONNX Runtime then writes the same cache and gives the same attention."""
    (block,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(compile(block, PAGE.name, "exec"), names)
    inputs = {name: tensor.numpy() for name, tensor in names["inputs"].items()}
    model: onnx.ModelProto = names["program"].model_proto
    used = {value.name for value in model.graph.input}
    fed = {name: np.zeros_like(x) if name == "cache" else x for name, x in inputs.items() if name in used}
    (attended,) = run_in_place(model, fed, None)
    assert np.array_equal(attended, names["attended"].numpy()) and np.array_equal(fed["cache"], inputs["cache"])
