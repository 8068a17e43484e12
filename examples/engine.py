"""The decoder in ONNX Runtime: one session, one cache bound in place, a manager of the cache, one run for each step."""

from __future__ import annotations

import numpy as np
import onnxruntime
from kvcache_ops.manager import Append, HostMemory, Manager, Rope, Step

from decoder import Decoder, build_decoder
from key_values import CachedKeyValues
from kvcache import CacheFormat, create_session
from scheduler import logits_by_append


def session_options(threads: int = 0) -> onnxruntime.SessionOptions:
    """Options with that many threads for the work inside an operator; 0 takes all cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class Engine:
    """A decoder with a cache of `max_t` slots for all of its layers, and the manager of that cache."""

    def __init__(
        self,
        decoder: Decoder,
        format: CacheFormat,
        *,
        max_t: int,
        mode: str = "paged",
        page_size: int = 16,
        cache_layout: int = 0,
        key_form: str = "roped",
        given_mask: bool = False,
        threads: int = 0,
        model: bytes | None = None,
        **policies,
    ):
        """`policies` are the manager's: window, sink, defrag_threshold, ....

        `model` is a graph of that decoder in the place of the one that `build_decoder` makes.
        """
        self.decoder = decoder
        places = dict(mode=mode, page_size=page_size, cache_layout=cache_layout, key_form=key_form)
        if model is None:
            model = build_decoder(decoder, CachedKeyValues(decoder, format, **places, given_mask=given_mask))
        self._session = create_session(model, session_options(threads))
        sizes = dict(
            num_layer=decoder.num_layer, num_heads=decoder.num_kv_heads, head_dim=decoder.head_dim, max_t=max_t
        )
        paging = dict(cache_mode=int(mode == "paged"), page_size=page_size)
        self.cache = format.spec(**sizes, cache_layout=cache_layout, **paging).allocate()
        rope = Rope(decoder.head_dim, base=decoder.rope_base)
        management = dict(mode=mode, key_form=key_form, rope=rope, fingerprint=str(decoder))
        self.memory = HostMemory(self.cache.spec, *self.cache)
        self.manager = Manager(self.cache.spec, **management, **policies)
        self.inputs = [x.name for x in self._session.get_inputs() if x.name not in ("cache", "scale")]
        self._binding = self._session.io_binding()
        self.cache.bind(self._binding)

    def run(self, step: Step) -> np.ndarray:
        """Runs an open step through the decoder, which stores its keys and values; the logits of its tokens."""
        arrays = {name: step.mask() if name == "mask" else getattr(step, name) for name in self.inputs}
        for name, array in arrays.items():
            self._binding.bind_cpu_input(name, array)
        self._binding.bind_output("logits", "cpu")  # anew, or it would keep the shape of the last step
        self._session.run_with_iobinding(self._binding)
        return self._binding.copy_outputs_to_cpu()[0]

    def decode(self, tokens: dict[int, list[int]]) -> dict[int, np.ndarray]:
        """One step that appends tokens to sequences; the logits of those that had to be computed, by sequence."""
        appends = [Append(seq, tokens=new) for seq, new in tokens.items()]
        with self.manager.begin_step(appends, self.memory) as step:
            by_append = logits_by_append(step, [len(new) for new in tokens.values()], self.run(step))
        return dict(zip(tokens, by_append))
