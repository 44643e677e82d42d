"""Reading YAML documents that people wrote, or that somebody wrote to hurt.

PyYAML's C loader, bounded in size, depth and expansion, with duplicate keys refused.
"""

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 64
MAX_NODES = 200_000  # of one document, aliases expanded


class DocumentError(ValueError):
    """A text that is no acceptable YAML; the message says where."""


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its value, and where it stands (`source`, counted from 1)."""

    value: Any
    source: str
    index: int


class _Loader(yaml.CSafeLoader):
    """Refuses duplicate keys, keys that are not text, and numbers that JSON does not have."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                word = ascii(key.value[:40]) if isinstance(key, yaml.ScalarNode) else "this"
                raise DocumentError(f"line {line}: {word} is not text as a key; put it in quotes")
            if key.value in seen:
                raise DocumentError(f"line {line}: {key.value[:40]!a} stands twice, first in line {seen[key.value]}")
            seen[key.value] = line
        return super().construct_mapping(node, deep)


def _line(node: yaml.Node | yaml.Event) -> int:
    return node.start_mark.line + 1 if node.start_mark else 0


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    value = yaml.CSafeLoader.construct_yaml_float(loader, node)
    if not math.isfinite(value):
        raise DocumentError(f"line {_line(node)}: {node.value} is not a number here")
    return value


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > 40:
        raise DocumentError(f"line {_line(node)}: an integer of {len(node.value)} characters")
    return yaml.CSafeLoader.construct_yaml_int(loader, node)


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(node.value)


_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _text)


def load(text: str | bytes, source: str) -> list[Document]:
    """All documents that are not empty. Raises DocumentError, its message beginning with `source`."""
    try:
        plain = _decoded(text)
        return [Document(value, source, i) for i, value in enumerate(_values(plain), 1) if value is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise DocumentError(f"{source}: {line}not YAML: {error.problem or error.context}") from None
    except (DocumentError, yaml.YAMLError, ValueError) as error:
        raise DocumentError(f"{source}: {str(error)[:300]}") from None


def _decoded(text: str | bytes) -> str:
    if len(text) > MAX_BYTES:
        raise DocumentError(f"larger than {MAX_BYTES:,} bytes, which is the most that is read")
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 text: byte {error.start} is {text[error.start]:#04x}") from None


def _values(text: str) -> Iterator[Any]:
    _check_depth(text)
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # noqa: S101 - check_node said so
            if _expanded(node, {}) > MAX_NODES:
                raise DocumentError(f"aliases expand to more than {MAX_NODES:,} values")
            yield loader.construct_document(node)
    finally:
        loader.dispose()


def _check_depth(text: str) -> None:
    """By events, which do not recurse: the loader itself would."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise DocumentError(f"line {_line(event)}: nested more than {MAX_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _expanded(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Values under a node with every alias written out. An alias inside its own anchor is refused."""
    known = sizes.get(id(node), 0)
    if known is None:
        raise DocumentError(f"line {_line(node)}: an alias inside its own anchor")
    if known:
        return known
    sizes[id(node)] = None
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    size = 1 + sum(_expanded(child, sizes) for child in children)
    sizes[id(node)] = size
    return size
