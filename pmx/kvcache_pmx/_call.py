"""A node of an export, as the functions that stand for the operators ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import AttributeProto, NodeProto

# The shape of each tensor that is known before any run: weights, constants and graph inputs, by name.
Shapes = Mapping[str, Sequence[int | str | None]]


class Refusal(Exception):
    """Why a node cannot be lowered."""


class Call:
    """A node: its attributes with their types checked, which inputs it has, and the shapes of its weights."""

    def __init__(self, node: NodeProto, shapes: Shapes) -> None:
        self.node = node
        self._shapes = shapes
        self._attributes = {attribute.name: attribute for attribute in node.attribute}

    @property
    def outputs(self) -> int:
        """How many outputs the node has."""
        return len(self.node.output)

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute; without a default it is required."""
        attribute = self._attribute(name, AttributeProto.INT, "an integer", default is not None)
        return int(attribute.i) if attribute is not None else default or 0

    def flag(self, name: str, default: bool = False) -> bool:
        """An attribute that is 0 or 1."""
        return self.integer(name, int(default)) != 0

    def number(self, name: str, default: float) -> float:
        """A float attribute."""
        attribute = self._attribute(name, AttributeProto.FLOAT, "a float", True)
        return attribute.f if attribute is not None else default

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        attribute = self._attribute(name, AttributeProto.STRING, "a string", True)
        return attribute.s.decode(errors="replace") if attribute is not None else default

    def has_input(self, index: int) -> bool:
        """Whether the input at `index` is given."""
        return index < len(self.node.input) and self.node.input[index] != ""

    def names(self, *names: str) -> list[str]:
        """The names of the inputs for the function: of `names` the first ones, as many as the node has.

        Inputs that the node leaves out have other names, by which nothing finds them.
        """
        given = len(self.node.input)
        if given > len(names):
            raise Refusal(f"{given} inputs, expected at most {len(names)}")
        return [name if self.has_input(index) else f"no_{name}" for index, name in enumerate(names[:given])]

    def dimension(self, index: int, axis: int) -> int | None:
        """The length of an axis of the input at `index`, where it is known before any run."""
        shape = self._shapes.get(self.node.input[index]) if self.has_input(index) else None
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        length = shape[axis]
        return length if isinstance(length, int) else None

    def _attribute(self, name: str, kind: int, words: str, optional: bool) -> AttributeProto | None:
        attribute = self._attributes.get(name)
        if attribute is None:
            if not optional:
                raise Refusal(f"attribute {name} is missing")
        elif attribute.type != kind:
            raise Refusal(f"attribute {name} is {AttributeProto.AttributeType.Name(attribute.type)}, expected {words}")
        return attribute
