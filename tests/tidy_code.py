"""Reading the project's own code, for the checks in test_tidy.py: files, functions, imports, names."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PUBLISHED = {"os._exit", "sys._getframe", "sys._current_frames", "_make", "_asdict", "_replace", "_fields"}
"""Python documents these although their names begin with an underscore."""


@functools.cache
def sources(*folders: str) -> dict[str, str]:
    """Name and text of each Python file."""
    roots = [ROOT / folder for folder in folders]
    paths = [path for root in roots for path in (root.rglob("*.py") if root.is_dir() else [root])]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(paths)}


@functools.cache
def trees(*folders: str) -> dict[str, ast.Module]:
    return {name: ast.parse(source) for name, source in sources(*folders).items()}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def package(name: str) -> str:
    """`engine` of holdfast/engine/run.py, `opening` of holdfast/opening.py."""
    return name.removesuffix(".py").split("/")[min(1, name.count("/"))]


def modules() -> dict[str, str]:
    """The dotted name of each module of the product, and its file."""
    names = sources("holdfast")
    return {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in names}


def layers() -> dict[str, int]:
    """The number of each package's layer, the highest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    return {
        package.strip(" ()"): number
        for number, layer in enumerate(contract["layers"])
        for package in re.split(r"[|:]", layer)
    }


def texts(tree: ast.Module) -> Iterator[str]:
    """Every string of a module, but for the names of loggers."""
    loggers = [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger" and node.args
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in loggers:
            yield node.value


def messages(tree: ast.Module) -> Iterator[str]:
    """Every string of a module that is a value: no docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def calls(tree: ast.Module, function: str) -> Iterator[ast.Call]:
    """The calls of a function with positional arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function and node.args:
            yield node


def imports() -> dict[str, set[str]]:
    """Which modules each module imports, in functions and under TYPE_CHECKING as well."""
    ours, graph = modules(), dict[str, set[str]]()
    for module, file in ours.items():
        found = set()
        for node in ast.walk(trees("holdfast")[file]):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                origin = _origin(node, module, is_package=file.endswith("__init__.py"))
                named = {f"{origin}.{alias.name}" for alias in node.names}
                found |= {name if name in ours else origin for name in named}
        graph[module] = (found & ours.keys()) - {module}
    return graph


def _origin(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def components(graph: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components: modules that reach each other."""
    reaches = {start: _reached(graph, start) for start in graph}
    both_ways = {start: {other for other in reach if start in reaches[other]} for start, reach in reaches.items()}
    parts = {frozenset({start, *others}) for start, others in both_ways.items()}
    return [set(part) for part in parts]


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def keeps_engine(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            if any(_is_engine(field.annotation) for field in fields):
                return True
    for function in functions(tree):
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        engines = {argument.arg for argument in arguments if _is_engine(argument.annotation)}
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Attribute(), *_], value=ast.Name(id=name)) if name in engines:
                    return True
    return False


def _is_engine(annotation: ast.expr | None) -> bool:
    return annotation is not None and re.search(r"\bEngine\b", ast.unparse(annotation)) is not None


def defined(tree: ast.Module) -> Iterator[str]:
    """Every name that a module gives to something: functions, classes, variables, attributes, fields, slots."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def foreign_private(tree: ast.Module, ours: set[str]) -> Iterator[str]:
    """Private names that are not defined in this project, or that are reached through a module of another package."""
    foreign = set(_foreign_modules(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(value=value, attr=name) if _is_private(name):
                dotted = ast.unparse(node)
                is_theirs = name not in ours or ast.unparse(value).split(".")[0] in foreign
                if name == "__bases__" or (is_theirs and not name.startswith("__") and not {name, dotted} & PUBLISHED):
                    yield dotted
            case ast.ImportFrom(module=str(origin), names=names) if not origin.startswith("holdfast"):
                yield from (alias.name for alias in names if _is_private(alias.name) and origin != "__future__")
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                if _is_private(name) and not name.startswith("__") and name not in ours:
                    yield name


def _foreign_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and not (node.module or "").startswith("holdfast"):
            yield from (alias.asname or alias.name for alias in node.names)


def _is_private(name: str) -> bool:
    return name.startswith("_") and name != "_"


def named_numbers(tree: ast.Module) -> Iterator[str]:
    """Upper-case names at the top of a module whose value is a number, or an expression of numbers alone."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name.isupper() and all(_is_arithmetic(part) for part in ast.walk(value)):
            yield name


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
