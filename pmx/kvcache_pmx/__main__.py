"""`python -m kvcache_pmx lower export.onnx model.onnx`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from kvcache_ops import KvCacheError
from onnx import TensorProto

from kvcache_pmx import lower


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status: 0, 1 for a file that cannot be read or written, 2 for a refusal."""
    parser = argparse.ArgumentParser(prog="python -m kvcache_pmx", description="Whole PMX exports in ONNX Runtime.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("lower", help="make a PMX export run in ONNX Runtime with kvcache_ops")
    command.add_argument("export", type=Path, help="the model that the PMX exporter wrote")
    command.add_argument("model", type=Path, help="where to write the model that runs")
    command.add_argument(
        "--attention",
        choices=["native", "onnx"],
        default="native",
        help="the operator of kvcache_ops, or ONNX's of opset 23",
    )
    command.add_argument(
        "--mask-rank", type=int, choices=[2, 3], help="let the caller give an attention mask of this rank in every call"
    )
    options = parser.parse_args(arguments)
    try:
        _lower(options.export, options.model, options.attention, options.mask_rank)
    except KvCacheError as error:
        print(f"{error.kind}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _lower(source: Path, target: Path, attention: str, mask_rank: int | None) -> None:
    # Weights in files of their own stay there, and are not read.
    export = onnx.load(source, load_external_data=False)
    files = sorted({name for tensor in export.graph.initializer for name in _locations(tensor)})
    if files and source.resolve().parent != target.resolve().parent:
        raise KvCacheError(
            f"{target} is in another folder than {source}, whose weights are in the file {files[0]} beside it: write "
            "the model into the same folder",
            "external_data",
        )
    model = lower(export, attention=attention, mask_rank=mask_rank)  # type: ignore[arg-type]
    onnx.save(model, target)
    names = sorted({f"{function.domain}::{function.name}" for function in model.functions})
    print(f"{target}: opset {model.opset_import[0].version}, {len(names)} functions")
    for name in names:
        print(f"  {name}")


def _locations(tensor: TensorProto) -> Iterator[str]:
    if tensor.data_location == TensorProto.EXTERNAL:
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")


if __name__ == "__main__":
    sys.exit(main())
