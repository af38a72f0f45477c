"""CEL: the text of an expression, compiled to the expression data that Python graphs produce.

Owns: the syntax (a subset of the Common Expression Language and a few functions of ours) and the problems of a text
that is outside it, each with its place and what to write instead.
Never: evaluates anything; what the data means is model/expressions.py. Texts are compiled once, when a document is.
Invariant: time and memory are linear in the length of the text, and nesting is bounded.

A parser of its own: cel-expr-python (50 MB) and common-expression-language evaluate a text and do not show what they
have parsed, and a problem needs its place in the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

from holdfast.documents.names import ExpressionProblem, Keys, Names
from holdfast.documents.tokens import TOKEN, number_of, text_of
from holdfast.model.expressions import Expr, problem_of
from holdfast.model.limits import EXPRESSION_CHARS_MAX, EXPRESSION_DEPTH_MAX
from holdfast.model.problems import near


def compile_expression(text: str, names: Names) -> Expr:
    """The expression that a text means. Raises ExpressionProblem."""
    plain = _REFERENCE.fullmatch(text)
    if plain is not None:  # most are, and need no parser
        return names.resolve(plain[1], list(plain[2].split(".")[1:]), plain.start(1))
    parser = Parser(text, 0, names)
    expr = parser.whole()
    if parser.kind != "end":
        parser.unexpected("the end of the expression")
    return expr


def is_constant(expr: Expr) -> bool:
    """Whether an expression is a value as it stands."""
    return not isinstance(expr, list) or expr[0] == "const"


def constant_of(expr: Expr) -> Any:
    """The value of a constant expression."""
    return expr[1] if isinstance(expr, list) else expr


_REFERENCE: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)((?:\.[A-Za-z_][A-Za-z0-9_]*)+)\s*")

_OPERATORS: Final = {
    "||": (1, "or"), "&&": (2, "and"),
    "==": (3, "eq"), "!=": (3, "ne"), "<": (3, "lt"), "<=": (3, "le"), ">": (3, "gt"), ">=": (3, "ge"), "in": (3, "in"),
    "+": (4, "add"), "-": (4, "sub"), "*": (5, "mul"), "/": (5, "div"), "%": (5, "mod"),
}  # fmt: skip
"""Each operator's precedence and what it is called in expressions."""

_METHODS: Final = {"size": 0, "contains": 1, "startsWith": 1, "endsWith": 1}
"""Methods and how many arguments they take."""
_NAMED: Final = {"startsWith": "starts_with", "endsWith": "ends_with"}

_NOT_HERE: Final = {
    "matches": "use startsWith, endsWith or contains, or let a node decide",
    "all": "let a node decide over the list",
    "exists": "write `x in list` for one value, or let a node decide over the list",
    "exists_one": "let a node decide over the list",
    "map": "use a `map` node",
    "filter": "let a node filter the list",
    "string": 'write `text("{}", x)`',
    **dict.fromkeys(("int", "uint", "double", "bool", "bytes", "type", "dyn"), "convert the value in a node"),
    **dict.fromkeys(("timestamp", "duration"), "compare times in a node"),
    **dict.fromkeys(("len", "length", "count"), "write `size(x)`"),
    **dict.fromkeys(("is_null", "isNull", "isnull"), "write `x == null` or `!has(x)`"),
    **dict.fromkeys(("format", "join", "concat"), 'write `text("…{}", x)`'),
    **dict.fromkeys(("coalesce", "default", "orValue", "ifnull"), "write `first(a, b, default)`"),
    **dict.fromkeys(("startswith", "starts_with"), "write `x.startsWith(y)`"),
    **dict.fromkeys(("endswith", "ends_with"), "write `x.endsWith(y)`"),
}
"""Functions and macros of CEL and of other languages that documents do not have, and what to write instead."""

_SYMBOLS_INSTEAD: Final = {
    "=": "write `==`", "&": "write `&&`", "|": "write `||`", '"': 'close the text with "', "'": "close the text with '",
    "`": "put texts in double quotes", "$": "write names without `$`", "~": "write `!`",
}  # fmt: skip


class Parser:
    """One text from one place on, parsed by recursive descent. `kind` and `value` are those of the next token."""

    def __init__(self, text: str, start: int, names: Names) -> None:
        if len(text) > EXPRESSION_CHARS_MAX:
            raise ExpressionProblem(
                f"the text has {len(text):,} characters, and at most {EXPRESSION_CHARS_MAX:,} are read",
                "compute it in a node",
            )
        self.text = text
        self.names = names
        self.end = start
        self.depth = 0
        self.advance()

    def whole(self) -> Expr:
        """The expression that begins here, checked for its size."""
        begin = self.at
        expr = self.expression()
        wrong = problem_of(expr)
        if wrong is not None:
            raise ExpressionProblem(wrong, "compute a part of it in a node", begin, self.at - begin)
        return expr

    # --- tokens -------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        found = TOKEN.match(self.text, self.end)
        if found is not None and found.lastgroup == "space":
            found = TOKEN.match(self.text, found.end())
        if found is None:
            self.kind, self.value, self.at = "end", "", len(self.text)
            self.end = self.at
            return
        self.kind = found.lastgroup or ""
        self.value, self.at, self.end = found[0], found.start(), found.end()

    def takes(self, symbol: str) -> bool:
        """Whether the next token is this symbol; if so it is consumed."""
        if self.value != symbol or self.kind != "symbol":
            return False
        self.advance()
        return True

    def expect(self, symbol: str, what: str) -> None:
        if not self.takes(symbol):
            self.unexpected(f"`{symbol}` {what}")

    def refuse(self, message: str, hint: str, at: int | None = None) -> NoReturn:
        where = self.at if at is None else at
        raise ExpressionProblem(message, hint, where, max(1, self.end - where))

    def unexpected(self, wanted: str) -> NoReturn:
        """Refuse the next token where something else belongs."""
        if self.kind == "end":
            self.refuse(f"the expression ends where {wanted} was expected", "complete it")
        hint = _SYMBOLS_INSTEAD.get(self.value, "") if self.kind == "other" else _WORD_INSTEAD.get(self.value, "")
        if self.kind == "name" and self.value in ("u", "U") and self.text[self.at - 1].isdigit():
            hint = "write the number without `u`"
        self.refuse(f"unexpected {self.value!r}: {wanted} was expected", hint or "check what stands before it")

    def nested(self) -> None:
        self.depth += 1
        if self.depth > EXPRESSION_DEPTH_MAX:
            self.refuse(
                f"the expression is nested deeper than {EXPRESSION_DEPTH_MAX}", "compute a part of it in a node"
            )

    # --- grammar ------------------------------------------------------------------------------------------------

    def expression(self) -> Expr:
        self.nested()
        expr = self.binary(1)
        if self.takes("?"):
            yes = self.expression()
            self.expect(":", "and the other value")
            expr = ["if", expr, yes, self.expression()]
        self.depth -= 1
        return expr

    def binary(self, least: int) -> Expr:
        """Operators of at least this precedence. A chain of `&&` or of `||` is one operator with many operands."""
        left = self.unary()
        while self.kind in ("symbol", "name"):
            level, op = _OPERATORS.get(self.value, (0, ""))
            if level < least:
                break
            symbol = self.value
            self.advance()
            right = self.binary(level + 1)
            if op in ("and", "or"):
                left = [op, left, right]
                while self.takes(symbol):
                    left.append(self.binary(level + 1))
                continue
            left = ["contains", right, left] if op == "in" else [op, left, right]
            if level == _OPERATORS["=="][0] == _OPERATORS.get(self.value, (0, ""))[0]:
                self.refuse(
                    "comparisons cannot be chained", "write `a < b && b < c`, or put one of them in parentheses"
                )
        return left

    def unary(self) -> Expr:
        if self.takes("!"):
            self.nested()
            expr = ["not", self.unary()]
            self.depth -= 1
            return expr
        if self.takes("-"):
            if self.kind == "number":
                return self.behind(-self.number(negative=True))
            self.nested()
            expr = ["sub", 0, self.unary()]
            self.depth -= 1
            return expr
        return self.behind(self.primary())

    def behind(self, expr: Expr) -> Expr:
        """What stands behind a value: fields, indices and methods."""
        while self.kind == "symbol":
            if self.takes("."):
                name, at = self.field()
                expr = self.method(expr, name, at) if self.takes("(") else ["get", expr, name]
            elif self.takes("["):
                expr = ["get", expr, self.index()]
            else:
                break
        return expr

    def field(self) -> tuple[str, int]:
        if self.kind == "symbol" and self.value == "?":
            self.refuse(
                "optional fields `.?` are not supported in Holdfast's CEL", "write `.`: what is missing is null"
            )
        if self.kind != "name":
            self.unexpected("the name of a field")
        name, at = self.value, self.at
        self.advance()
        return name, at

    def index(self) -> str | int:
        """A key in brackets, of which the first one has been read."""
        at = self.at
        if self.kind == "symbol" and self.value == "?":
            self.refuse(
                "optional indices `[?` are not supported in Holdfast's CEL", "write `[`: what is missing is null"
            )
        key = self.expression()
        if isinstance(key, bool) or not isinstance(key, str | int):
            self.refuse("an index must be a constant text or whole number", "let a node read the item", at)
        self.expect("]", "behind the index")
        return key

    def primary(self) -> Expr:
        at = self.at
        match self.kind:
            case "number":
                return self.number()
            case "text":
                return self.literal()
            case "name":
                return self.named()
        if self.takes("("):
            expr = self.expression()
            self.expect(")", "at the end of the parentheses")
            return expr
        if self.takes("["):
            parts = self.listed("]", self.expression)
            if all(map(is_constant, parts)):
                return ["const", [constant_of(part) for part in parts]]
            return ["list", *parts]
        if self.takes("{"):
            return self.record(at)
        self.unexpected("a value")

    def listed(self, close: str, part: Callable[[], Any]) -> list[Any]:
        """Parts with commas between them, and perhaps one behind the last, up to the closing symbol."""
        found: list[Any] = []
        while not self.takes(close):
            if found:
                self.expect(",", f"or `{close}`")
                if self.takes(close):
                    break
            found.append(part())
        return found

    def record(self, at: int) -> Expr:
        def entry() -> tuple[str, Expr]:
            where = self.at
            key = self.expression()
            if not isinstance(key, str):
                self.refuse("the keys of an object are texts", "put the key in quotes", where)
            self.expect(":", "behind the key")
            return key, self.expression()

        entries = self.listed("}", entry)
        keys = [key for key, _ in entries]
        if len(set(keys)) != len(keys):
            self.refuse("the object has a key twice", "remove one of them", at)
        if all(is_constant(value) for _, value in entries):
            return ["const", {key: constant_of(value) for key, value in entries}]
        return ["dict", *(part for entry in entries for part in entry)]

    def number(self, *, negative: bool = False) -> Any:
        value = number_of(self.value, self.at, negative=negative)
        self.advance()
        return value

    def literal(self) -> str:
        value = text_of(self.value, self.at)
        self.advance()
        return value

    # --- names and functions ------------------------------------------------------------------------------------

    def named(self) -> Expr:
        """A literal, a function, or a reference with the keys behind it."""
        name, at = self.value, self.at
        if name in _LITERALS:
            self.advance()
            return _LITERALS[name]
        if name == "in":
            self.unexpected("a value")
        self.advance()
        if self.kind == "symbol" and self.value == "(":
            self.advance()
            return self.function(name, at)
        if self.kind == "symbol" and self.value == "{":
            self.refuse(f"`{name}{{…}}` is not supported in Holdfast's CEL", 'write an object: {"key": value}', at)
        return self.reference(name, at)

    def reference(self, name: str, at: int) -> Expr:
        keys: Keys = []
        while self.kind == "symbol":
            if self.takes("."):
                field, field_at = self.field()
                if self.takes("("):
                    return self.method(self.names.resolve(name, keys, at), field, field_at)
                keys.append(field)
            elif self.takes("["):
                keys.append(self.index())
            else:
                break
        return self.names.resolve(name, keys, at)

    def method(self, expr: Expr, name: str, at: int) -> Expr:
        if name not in _METHODS:
            self.not_here(name, at, _METHODS)
        args = self.listed(")", self.expression)
        self.check_count(name, args, _METHODS[name], at)
        return [_NAMED.get(name, name), expr, *args]

    def function(self, name: str, at: int) -> Expr:
        if name not in _FUNCTIONS:
            self.not_here(name, at, _FUNCTIONS)
        if name in ("skipped", "failed"):
            return [name, ["node", self.node_argument(name)]]
        args = self.listed(")", self.expression)
        match name:
            case "size" | "is_none":
                self.check_count(name, args, 1, at)
                return [name, args[0]]
            case "has":
                self.check_count(name, args, 1, at)
                return ["not", ["is_none", args[0]]]
            case "text":
                if not args or not isinstance(args[0], str):
                    self.refuse("text(…) takes a text with places `{}` first", 'write `text("order {}", x)`', at)
                places = args[0].count("{}")
                if places != len(args) - 1:
                    wrong = f"the text has {places} place(s) `{{}}` for {len(args) - 1} value(s)"
                    self.refuse(wrong, "write one `{}` for each value", at)
            case "some":
                if len(args) < 2 or type(args[0]) is not int or not 1 <= args[0] < len(args):
                    wrong = "some(n, a, b, …) takes a number between 1 and the number of values behind it"
                    self.refuse(wrong, "write `some(2, a.output, b.output, c.output)`", at)
            case "first" if not args:
                self.refuse("first(a, b, …) takes at least one value", "write `first(a.output, b.output, null)`", at)
        return [name, *args]

    def node_argument(self, function: str) -> str:
        """The node in `skipped(ID)` or `skipped(nodes["any id"])`."""
        at = self.at
        if self.kind != "name":
            self.unexpected("the id of a node")
        title = self.value
        self.advance()
        if title == "nodes" and self.takes("["):
            key = self.index()
            title = key if isinstance(key, str) else ""
        if self.kind == "symbol" and self.value == ".":
            self.refuse(f"{function}(…) takes the id of a node alone", f"write `{function}({title})`", at)
        self.expect(")", f"behind the node of {function}(…)")
        return self.names.node(title, at)

    def check_count(self, name: str, args: list[Expr], count: int, at: int) -> None:
        if len(args) != count:
            self.refuse(f"{name}(…) takes {count} argument(s), not {len(args)}", f"give it {count}", at)

    def not_here(self, name: str, at: int, known: Any) -> NoReturn:
        hint = _NOT_HERE.get(name) or near(name, known) or f"there is {', '.join(sorted(known))}"
        raise ExpressionProblem(f"`{name}` is not supported in Holdfast's CEL", hint, at, len(name))


_LITERALS: Final[dict[str, Expr]] = {"true": True, "false": False, "null": None}
_FUNCTIONS: Final = frozenset({"size", "has", "is_none", "first", "some", "skipped", "failed", "text"})
_WORD_INSTEAD: Final = {
    "/": "write one `/` to divide; there are no comments in expressions",
    "and": "write `&&`",
    "or": "write `||`",
    "not": "write `!`",
    "is": "write `==`",
    "if": "write `c ? a : b`",
}
