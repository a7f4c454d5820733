"""Notebooks as tests. A cell that is exported is replaced by an import of what it defines from the exported module:
the objects that everybody uses are tested, compiled code comes from its cache, and no class of the running process
is patched twice. (That module and page agree is the business of tools/gate.py.)"""
import ast
import json
import re
from importlib import import_module
from pathlib import Path

EXPORTED = re.compile(r"^#\|\s*(export|exporti|exports)\s*$", re.M)


def module_of(cells: list[dict]) -> str | None:
    "The module that a notebook exports, with its package; None for a page that exports nothing."
    for cell in cells:
        if m := re.search(r"^#\|\s*default_exp\s+(\S+)", cell["source"], re.M):
            return "kernel_lab." + m[1].removesuffix(".__init__")
    return None


def bound_names(tree: ast.Module) -> list[str]:
    "The names that the top level of a cell binds, in order, those in `if`, `try`, `with` and `for` blocks too."
    found, waiting = [], list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): found.append(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found += [a.asname or a.name.split(".")[0] for a in node.names]
        else:
            found += [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            waiting += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
    return list(dict.fromkeys(found))


def imported(source: str, module: str) -> str:
    """An exported cell as an import of its names from the module; names that the module no longer has (loop
    variables) are left out. A cell that writes to `globals()` stands for all names of the module."""
    have = vars(import_module(module))
    names = [n for n in have if not n.startswith("__")] if "globals()" in source else [
        n for n in bound_names(ast.parse(source)) if n in have]
    return f"from {module} import {', '.join(names)}" if names else ""


def as_test(page: Path) -> dict:
    "A notebook's JSON with its exported cells replaced by imports."
    nb = json.loads(page.read_text(encoding="utf-8"))
    for cell in nb["cells"]: cell["source"] = "".join(cell["source"])
    module = module_of(nb["cells"])
    for cell in nb["cells"]:
        if module and cell["cell_type"] == "code" and EXPORTED.search(cell["source"]):
            cell["source"] = imported(cell["source"], module)
    return nb
