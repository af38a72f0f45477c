"""Where code is, what it is called, and when it counts as changed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.authoring import functions
from holdfast.authoring.node_decorator import node


def load(path: Path, source: str, name: str = "shop") -> ModuleType:
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BASE = '''
def charge(order):
    """Charge it."""
    # a comment
    return order + 1
'''


def prints(tmp_path: Path, *sources: str) -> list[str]:
    return [
        functions.fingerprint(load(tmp_path / f"m{i}.py", source, f"m{i}").charge) for i, source in enumerate(sources)
    ]


def test_comments_docstrings_layout_and_decorators_do_not_change_the_fingerprint(tmp_path: Path) -> None:
    other = '''
import functools


@functools.lru_cache
def charge(order):
    """Charge
    it again."""

    return (order +
            1)
'''
    bare = "def charge(order): return order + 1\n"
    assert len(set(prints(tmp_path, BASE, other, bare))) == 1


def test_other_code_gives_another_fingerprint(tmp_path: Path) -> None:
    sources = [
        BASE,
        BASE.replace("+ 1", "+ 2"),
        BASE.replace("order):", "order, x=1):"),
        BASE.replace("def", "async def"),
    ]
    assert len(set(prints(tmp_path, *sources))) == 4


def test_a_function_without_source_still_has_a_fingerprint() -> None:
    space: dict[str, Any] = {}
    exec("def f(x):\n    return x + 1\ndef g(x):\n    return x + 2\n", space)  # noqa: S102 - what a REPL does
    assert functions.fingerprint(space["f"]) != functions.fingerprint(space["g"])
    assert functions.fingerprint(space["f"]) == functions.fingerprint(space["f"])
    assert functions.location(space["f"]).kind == "process"


def test_a_module_on_the_path_is_found_by_its_name(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "shop.py").write_text(BASE)
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("pack.shop")
    found = functions.location(shop.charge)
    assert (found.kind, found.module, found.name) == ("module", "pack.shop", "charge")
    assert (found.sys_path, found.file) == (str(tmp_path), str(tmp_path / "pack" / "shop.py"))
    assert functions.handler_name(shop.charge) == "pack.shop.charge"


def test_a_file_off_the_path_is_found_by_its_file(tmp_path: Path) -> None:
    found = functions.location(load(tmp_path / "shop.py", BASE).charge)
    assert (found.kind, found.file, found.sys_path) == ("file", str(tmp_path / "shop.py"), str(tmp_path))


def test_a_function_inside_another_exists_in_this_process_only() -> None:
    @node
    def local(x: int) -> int:
        return x

    assert local.handler.code.kind == "process"
    assert local.name.endswith(".<locals>.local")
    assert local.base_id == "local"


def test_a_script_names_its_functions_after_its_file(tmp_path: Path) -> None:
    script = tmp_path / "orders.py"
    script.write_text(
        "import holdfast as hf\n"
        "@hf.node\n"
        "def charge(x: int) -> int: return x\n"
        "print(charge.name, charge.handler.code.kind, charge.handler.code.module, charge.handler.code.file)\n"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env, check=True).stdout
    assert out.split() == ["orders.charge", "file", "orders", str(script)]
