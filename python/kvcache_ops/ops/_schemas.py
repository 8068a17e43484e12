"""The operators as data: schema/*.yaml of the repository."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcache_ops import _native

Dimensions = list[str | int] | str
"""The shape of a tensor in the specification's symbols, or words for it."""


@dataclass(frozen=True)
class Attribute:
    """An attribute, an integer or, if its default is one, a float; without a default it is required."""

    name: str
    default: float | None
    meaning: str


@dataclass(frozen=True)
class Tensor:
    """An input or output. `type` is "int64", or the name of a set of types."""

    name: str
    type: str
    shape: Dimensions
    meaning: str
    optional: bool
    in_out: bool


@dataclass(frozen=True)
class Operator:
    """An operator, in each of its domains."""

    name: str
    domains: tuple[str, ...]
    version: int
    text: str
    attributes: tuple[Attribute, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    types: dict[str, list[str]]

    @property
    def required_outputs(self) -> list[str]:
        """The names of the outputs that no node leaves out."""
        return [tensor.name for tensor in self.outputs if not tensor.optional]


def _operator(data: dict[str, Any]) -> Operator:
    rules = "".join(f"\n\n{rule['title']}: {rule['text']}" for rule in data["rules"])
    dimensions = "\n".join(f"{name}: {meaning}" for name, meaning in data["dimensions"].items())
    return Operator(
        name=data["name"],
        domains=tuple(data["domains"]),
        version=data["version"],
        text=f"{data['summary']}\n\n{dimensions}{rules}",
        attributes=tuple(Attribute(a["name"], a.get("default"), a["meaning"]) for a in data["attributes"]),
        inputs=tuple(map(_tensor, data["inputs"])),
        outputs=tuple(map(_tensor, data["outputs"])),
        types=data["types"],
    )


def _tensor(data: dict[str, Any]) -> Tensor:
    optional, in_out = data.get("optional", False), data.get("in_out", False)
    return Tensor(data["name"], data["type"], data["shape"], data["meaning"], optional, in_out)


OPERATORS = tuple(map(_operator, _native.schemas()))
"""All operators of the package."""

BY_DOMAIN_AND_NAME = {(domain, operator.name): operator for operator in OPERATORS for domain in operator.domains}
"""The operators by where a node finds them."""
