"""Names: what an expression in a document can refer to, at one place of it.

Owns: resolving `input.x`, `vars.x`, `ID.output`, `nodes["any id"].output`, the names of items and `SCOPE.name` to
leaves of expressions, and the problem of a name that means nothing there.
Never: parses (cel.py), or knows what a document looks like: its compiler says which names there are.

Names are looked up innermost first: in the body of a map or loop its item and the values that are the same for all
items, then its nodes, then what is around it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, Self

from holdfast.model.expressions import Expr
from holdfast.model.problems import choices

RESERVED: Final = frozenset({"input", "vars", "nodes"})
"""Ids that no node of a document may have."""

WORDS: Final = frozenset({"true", "false", "null", "in"})
"""Names that mean something in CEL; a node that is called so is named in `nodes["…"]`."""

_INSTEAD: Final = {
    "True": "write `true`", "False": "write `false`", "None": "write `null`", "and": "write `&&`", "or": "write `||`",
    "not": "write `!`", "item": "write the name that the map or loop gives as `item`",
}  # fmt: skip
"""What to write instead of words of other languages."""

Keys = list[str | int]


class ExpressionProblem(Exception):
    """Why the text of an expression or a template is refused."""

    def __init__(self, message: str, hint: str = "", offset: int = 0, length: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.offset = offset
        """The character of the text where the problem is."""
        self.length = length
        self.pointer: tuple[str | int, ...] = ()
        """Which part of a value has that text (templates.py)."""


class _Level(NamedTuple):
    """The workflow, or the body of a map or loop."""

    title: str
    """The author's id of the map or loop; empty for the workflow."""
    owner: str
    """Its id in the definition."""
    items: Mapping[str, Expr]
    nodes: Mapping[str, str]
    """The author's ids to those in the definition."""


class Names:
    """What can be named at one place. `inputs` are None where a document does not declare them: then every name is one,
    and `used_inputs` collects those that were."""

    def __init__(self, inputs: Collection[str] | None, variables: Collection[str], nodes: Mapping[str, str]) -> None:
        self.inputs = inputs
        self.variables = variables
        self.used_inputs: dict[str, None] = {}
        self._levels: tuple[_Level, ...] = (_Level("", "", {}, nodes),)
        self._values: Mapping[str, Expr] = {}
        self._visible: Collection[str] | None = None
        self._hint = ""
        self._titles: dict[int, dict[str, str]] = {}
        """The other way round, of levels in which it was asked for."""

    def inside(self, title: str, owner: str, items: Mapping[str, Expr], nodes: Mapping[str, str]) -> Self:
        """The names inside the body of a map or loop; `items` are what it gives its body."""
        inner = copy.copy(self)
        inner._levels = (_Level(title, owner, items, nodes), *self._levels)
        return inner

    def with_values(self, values: Mapping[str, Expr]) -> Self:
        """These names and some that stand for expressions. A value called `input` is what `input` alone means."""
        more = copy.copy(self)
        more._values = {**self._values, **values}
        return more

    def only(self, visible: Collection[str], hint: str) -> Self:
        """These names, of nodes only the `visible` ones; `hint` says how to make another one visible."""
        fewer = copy.copy(self)
        fewer._visible, fewer._hint = visible, hint
        return fewer

    # --- resolving ----------------------------------------------------------------------------------------------

    def resolve(self, root: str, keys: Keys, offset: int = 0) -> Expr:
        """What a name and the keys behind it mean. Raises ExpressionProblem."""
        leaf, used = self._leaf(root, keys, offset)
        for key in keys[used:]:
            leaf = ["get", leaf, key]
        return leaf

    def node(self, title: str, offset: int = 0) -> str:
        """The id in the definition of a node that is named alone, as in `skipped(ID)`."""
        for level in self._levels:
            if title in level.nodes:
                self._check_visible(title, offset)
                return level.nodes[title]
        raise self._unknown(title, offset)

    def _leaf(self, root: str, keys: Keys, offset: int) -> tuple[Expr, int]:
        """The leaf that a name means, and how many keys belong to it."""
        match root:
            case "input" if not keys:
                return self._whole_input(offset), 0
            case "input":
                return ["input", self._declared(keys[0], self.inputs, "input", offset)], 1
            case "vars":
                if not keys:
                    raise ExpressionProblem("`vars` alone is not a value", "write `vars.NAME`", offset, len(root))
                return ["var", self._declared(keys[0], self.variables, "variable", offset)], 1
            case "nodes":
                if not keys or not isinstance(keys[0], str):
                    hint = 'write `nodes["the id"].output`'
                    raise ExpressionProblem("`nodes` alone is not a value", hint, offset, len(root))
                leaf, used = self._in_levels(keys[0], keys[1:], offset, by_name=False)
                return leaf, used + 1
        if root in self._values:
            return self._values[root], 0
        return self._in_levels(root, keys, offset, by_name=True)

    def _in_levels(self, root: str, keys: Keys, offset: int, *, by_name: bool) -> tuple[Expr, int]:
        for level in self._levels:
            if by_name and root in level.items:
                return level.items[root], 0
            if root in level.nodes:
                if keys[:1] == ["output"]:
                    self._check_visible(root, offset)
                    return ["node", level.nodes[root]], 1
                param = self._param(root, keys)
                if param is not None:
                    return param, 1
                hint = f"write `{_written(root)}.output{''.join(as_key(k) for k in keys)}`"
                raise ExpressionProblem(f"{root!r} is a node, which is not a value", hint, offset, len(root))
            if root == level.title:
                param = self._param(root, keys)
                if param is not None:
                    return param, 1
                hint = choices(str(keys[0]) if keys else "", list(level.items), "names")
                wrong = f"this is in the body of {root!r}, whose output is not known yet"
                raise ExpressionProblem(wrong, f"use what the body is given: {hint}", offset, len(root))
        raise self._unknown(root, offset)

    def _param(self, title: str, keys: Keys) -> Expr | None:
        """What an enclosing map or loop gives its body under a name: `SCOPE.name`."""
        for level in self._levels:
            if level.title == title and keys and isinstance(keys[0], str) and keys[0] in level.items:
                return level.items[keys[0]]
        return None

    def _whole_input(self, offset: int) -> Expr:
        if "input" in self._values:
            return self._values["input"]
        if self.inputs is None:
            hint = "declare the inputs in `input`, or write `input.NAME`"
            raise ExpressionProblem("the document does not declare its inputs", hint, offset, len("input"))
        whole = [part for name in self.inputs for part in (name, ["input", name])]
        return ["dict", *whole] if whole else ["const", {}]

    def _declared(self, name: str | int, known: Collection[str] | None, what: str, offset: int) -> str:
        if known is None and isinstance(name, str):
            self.used_inputs[name] = None
            return name
        if known is None or name not in known or not isinstance(name, str):
            hint = choices(str(name), known or (), f"{what}s")
            message = f"the workflow has no {what} {name!r}"
            raise ExpressionProblem(message, hint, offset, len(what))
        return name

    def _check_visible(self, title: str, offset: int) -> None:
        if self._visible is not None and title in self._levels[-1].nodes and title not in self._visible:
            raise ExpressionProblem(f"{title!r} cannot be read here", self._hint, offset, len(title))

    def _unknown(self, name: str, offset: int) -> ExpressionProblem:
        known: dict[str, None] = dict.fromkeys(self._values)
        for level in self._levels:
            known |= dict.fromkeys([*level.items, *level.nodes])
        hint = _INSTEAD.get(name) or choices(name, [*known, *sorted(RESERVED)], "names")
        return ExpressionProblem(f"there is nothing called {name!r} here", hint, offset, len(name))

    # --- the other way: what a leaf is called ---------------------------------------------------------------------

    def written(self, leaf: Expr) -> str:
        """The text that means a leaf here: the shortest one that does. The inverse of `resolve`."""
        kind, *names = leaf
        for text, root, keys in self._spellings(kind, names):
            try:
                if self.resolve(root, keys) == leaf:
                    return text
            except ExpressionProblem:
                continue
        raise ExpressionProblem(f"{leaf!r} cannot be named here", "")

    def _spellings(self, kind: str, names: list[str]) -> Iterable[tuple[str, str, Keys]]:
        match kind:
            case "input":
                yield f"input{as_key(names[0])}", "input", [names[0]]
            case "var":
                yield f"vars{as_key(names[0])}", "vars", [names[0]]
            case "param":
                scope, name = names
                if name not in WORDS:
                    yield name, name, []
                for title in (level.title for level in self._levels if level.owner == scope):
                    yield from _under(title, name)
            case "node":
                for level in self._levels:
                    written = self._title(level, names[0])
                    if written is not None:
                        yield from _under(written, "output")

    def _title(self, level: _Level, node: str) -> str | None:
        """What the author calls a node of a level that has this id in the definition."""
        if level.nodes.get(node) == node:  # most ids are the author's own
            return node
        by_id = self._titles.get(id(level.nodes))
        if by_id is None:
            by_id = self._titles[id(level.nodes)] = {own: title for title, own in level.nodes.items()}
        return by_id.get(node)


def _under(title: str, key: str) -> Iterable[tuple[str, str, Keys]]:
    """The ways to name what an id has under a key."""
    if _written(title) == title:
        yield title + as_key(key), title, [key]
    yield f"nodes[{quoted(title)}]{as_key(key)}", "nodes", [title, key]


def _written(title: str) -> str:
    """An id in an expression: as it is, or in `nodes[…]`."""
    is_plain = as_key(title).startswith(".") and title not in RESERVED | WORDS
    return title if is_plain else f"nodes[{quoted(title)}]"


def as_key(key: str | int) -> str:
    """A key behind a value: `.name`, `[0]` or `["any text"]`."""
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if key.isascii() and key.isidentifier() else f"[{quoted(key)}]"


def quoted(text: str) -> str:
    """A text as a literal of CEL."""
    return json.dumps(text, ensure_ascii=False)
