"""The model over a cache: a torch module whose attention is the operators of `kvcache_ops.torch`."""

from __future__ import annotations

import torch
from kvcache_ops.torch import key_value_cache, multi_head_cache_attention
from torch import Tensor, nn

from llama import Llama

CACHE_LAYOUT = 3
CACHE_MODE = 1


class Serving(nn.Module):
    """A step of a ragged batch, packed: the tokens of every sequence that are new, to the logits of each.

    `fused` attends by one operator in each layer; without it `KeyValueCache` gives all keys and values, and torch
    attends. The last is what a runtime does that has no attention operator of ours.
    """

    def __init__(self, llama: Llama, *, fused: bool, page_size: int, quant_bit: int = 0, quant_group: int = 8):
        super().__init__()
        self.llama = llama
        self.fused = fused
        self.attributes = dict(
            num_layer=llama.sizes.num_layer,
            quant_bit=quant_bit,
            quant_group=quant_group,
            cache_mode=CACHE_MODE,
            cache_layout=CACHE_LAYOUT,
            page_size=page_size,
        )

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        seqstarts: Tensor,
        kvstarts: Tensor,
        cachestarts: Tensor,
        start_pos: Tensor,
        max_seqlen: Tensor,
        max_kvlen: Tensor,
        cache: Tensor,
        scale: Tensor | None,
    ) -> Tensor:
        """(tokens, vocab_size); writes the new tokens' keys and values into `cache` and `scale`."""
        sizes = self.llama.sizes
        indices = seqstarts, kvstarts, cachestarts, start_pos
        highest = max_seqlen, max_kvlen
        no_decoding = torch.zeros((), dtype=torch.int64)
        hidden = []

        def fused(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return multi_head_cache_attention(
                query,
                key,
                value,
                *indices,
                no_decoding,
                *highest,
                cache,
                scale,
                num_heads=sizes.num_heads,
                head_dim=sizes.head_dim,
                num_kv_heads=sizes.num_kv_heads,
                layer_idx=layer,
                **self.attributes,
            )

        def separate(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            num_repeat = sizes.num_heads // sizes.num_kv_heads
            key, value = key_value_cache(
                key, value, *indices, *highest, cache, scale, layer_idx=layer, num_repeat=num_repeat, **self.attributes
            )
            if not hidden:  # the same in all layers
                hidden.append(~visible(query.shape[0], key.shape[0], seqstarts, kvstarts))
            scores = torch.einsum("qhd,khd->hqk", query, key) * sizes.head_dim**-0.5
            weights = scores.masked_fill(hidden[0], float("-inf")).softmax(-1)
            return torch.einsum("hqk,khd->qhd", weights, value)

        return self.llama(token_ids, positions, fused if self.fused else separate)


def visible(tokens: int, keys: int, seqstarts: Tensor, kvstarts: Tensor) -> Tensor:
    """(tokens, keys): whether a token sees a key, which is one of its own sequence and not of its future."""
    token, key = torch.arange(tokens), torch.arange(keys)
    sequence = (token[:, None] >= seqstarts[1:]).sum(1)
    end = kvstarts[1:] - seqstarts[1:]  # the last token of a sequence sees the last of its keys
    return (key >= kvstarts[sequence][:, None]) & (key <= (end[sequence] + token)[:, None])
