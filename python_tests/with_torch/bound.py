"""A run of a model in ONNX Runtime whose cache is bound in place."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from kvcache import bind, create_session


def run_in_place(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], memory: dict[str, np.ndarray], int4: bool = False
) -> list[np.ndarray]:
    """The outputs; `memory` is written, its `cache` packed bytes if `int4`."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = create_session(model.SerializeToString(), options)
    binding = session.io_binding()
    for name, array in (inputs | memory).items():
        if name == "cache" and int4:
            bind(binding, name, array, TensorProto.INT4, (*array.shape[:-1], array.shape[-1] * 2))
        else:
            bind(binding, name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()
