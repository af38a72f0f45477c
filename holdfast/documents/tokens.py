"""Tokens: the words of CEL, and the values of its literals.

Owns: cutting a text into tokens, numbers, and texts with their quotes and escapes.
Never: knows what may follow what (cel.py).
"""

from __future__ import annotations

import functools
import math
import re
from typing import Final

from holdfast.documents.names import ExpressionProblem
from holdfast.model.limits import DOCUMENT_INTEGER_MAX

TOKEN: Final = re.compile(
    r"""
      (?P<space>   \s+)
    | (?P<number>  0[xX][0-9a-fA-F]+ | (?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<text>    [bB]?[rR](?:\"\"\".*?\"\"\"|'''.*?'''|\"[^\"\n]*\"|'[^'\n]*')
                 | [bB]?(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''
                   |\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'))
    | (?P<name>    [A-Za-z_][A-Za-z0-9_]*)
    | (?P<symbol>  &&|\|\||==|!=|<=|>=|[-+*/%!<>?:.,()\[\]{}])
    | (?P<other>   .)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_ESCAPED: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip


def number_of(text: str, at: int, *, negative: bool = False) -> float:
    """The value of a number; `negative`: a minus stands before it. Raises ExpressionProblem if it is too large."""
    value: float
    if text[:2] in ("0x", "0X"):
        value = int(text, 16) if len(text) < _DIGITS else math.inf
    elif text.isdigit():
        value = int(text) if len(text) < _DIGITS else math.inf
    else:
        value = float(text)
    if math.isinf(value) or (isinstance(value, int) and value > DOCUMENT_INTEGER_MAX + negative):
        raise ExpressionProblem("the number is too large", "write it as a text", at, len(text))
    return value


def text_of(token: str, at: int) -> str:
    """A text without its quotes and escapes. Raises ExpressionProblem for what is not one of CEL, and for bytes."""
    prefix = token[: len(token) - len(token.lstrip("bBrR"))].lower()
    if "b" in prefix:
        wrong = "bytes literals are not supported in Holdfast's CEL"
        raise ExpressionProblem(wrong, "write a text without the `b`", at, len(token))
    body = token[len(prefix) :]
    width = 3 if len(body) >= 6 and body[:3] in ('"""', "'''") else 1
    body = body[width:-width]
    if "r" in prefix or "\\" not in body:
        return body
    return _ESCAPE.sub(functools.partial(_unescaped, offset=at + len(prefix) + width), body)


def _unescaped(found: re.Match[str], offset: int) -> str:
    code = found[1] or found[2] or found[3]
    number = int(code, 16) if code else int(found[4], 8) if found[4] else -1
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF or (number < 0 and found[5] not in _ESCAPED):
        hint = "write `\\\\` for a backslash, or an `r` before the text"
        raise ExpressionProblem(f"{found[0]} is not an escape of CEL", hint, offset + found.start(), len(found[0]))
    return chr(number) if number >= 0 else _ESCAPED[found[5]]


_DIGITS: Final = len(str(DOCUMENT_INTEGER_MAX)) + 2
