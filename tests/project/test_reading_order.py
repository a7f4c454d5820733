"""A page runs from top to bottom: what a cell shows needs only what cells above it define. (The suite runs pages with
exported cells replaced by imports, so that it cannot see this; the site's build executes them as they stand.)"""
import ast
import json
import symtable
from functools import lru_cache
from pathlib import Path

import pytest
from notebooks import EXPORTED, bound_names

ROOT = Path(__file__).parents[2]
PAGES = sorted(p for p in (ROOT / 'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)


@lru_cache(maxsize=512)
def parsed(source: str) -> ast.Module | None:
    "A cell as a syntax tree; None for one with magics or shell commands."
    try: return ast.parse(source)
    except SyntaxError: return None


def globals_of(table: symtable.SymbolTable) -> set[str]:
    "The global names that a scope and the functions inside it read; classes are left out, their methods run later."
    mine = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (
        s.is_global() or table.get_type() == 'module')}
    inner = [t for t in table.get_children() if table.get_type() == 'function' or t.get_type() != 'function']
    return mine.union(*(globals_of(t) for t in inner if t.get_type() != 'class' or table.get_type() == 'function'))


def attributes(node: ast.AST) -> set[str]: return {f'.{n.attr}' for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def needs_of(source: str, tree: ast.Module) -> dict[str, set[str]]:
    """Function, or method with a dot before its name → the names and attributes that a call of it needs; a function may
    be patched into a class, so it is a method too."""
    nodes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    found: dict[str, set[str]] = {}
    waiting = [(('', '.'), t) for t in symtable.symtable(source, 'cell', 'exec').get_children()]
    while waiting:
        dots, table = waiting.pop()
        if table.get_type() == 'class': waiting += [(('.',), t) for t in table.get_children()]
        elif node := nodes.get(table.get_name()):
            for dot in dots: found.setdefault(dot + node.name, set()).update(globals_of(table), attributes(node))
    return found


def too_early(sources: list[str]) -> list[str]:
    "What is used by a cell, itself or through functions, and defined only by an exported cell below it."
    cells = [(source, tree) for source in sources if (tree := parsed(source)) is not None]
    later = {n for source, tree in cells if EXPORTED.search(source) for n in bound_names(tree)}
    needs, wrong = {}, []
    for source, tree in cells:
        later -= set(bound_names(tree))
        needs |= needs_of(source, tree)
        if EXPORTED.search(source): continue
        waiting, seen = [*globals_of(symtable.symtable(source, 'cell', 'exec')), *attributes(tree)], set()
        while waiting:
            name = waiting.pop()
            if name in seen: continue
            seen.add(name)
            waiting += needs.get(name, ())
        wrong += [f'{name} is needed by: {source.strip().splitlines()[0]}' for name in sorted(seen & later)]
    return wrong


def test_what_is_too_early_is_found():
    first, second = '#| export\ndef one(): return two()', '#| export\ndef two(): return 2'
    assert too_early([first, second, 'one()']) == []
    assert too_early([first, 'one()', second]) == ['two is needed by: one()']
    assert too_early([first, 'x = 1', second]) == [] and too_early(['two()', second]) == ['two is needed by: two()']


def code_of(page: Path) -> list[str]:
    cells = json.loads(page.read_text(encoding='utf-8'))['cells']
    return [''.join(c['source']) for c in cells if c['cell_type'] == 'code']


def relative_imports(sources: list[str]) -> list[str]:
    "Imports that hold in a module of the package and fail in the notebook that it is exported from."
    nodes = [n for tree in map(parsed, sources) if tree for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    return [ast.unparse(n) for n in nodes if n.level]


def test_a_relative_import_is_found():
    assert relative_imports(['import x', 'def f():\n    from ..y import z']) == ['from ..y import z']


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.relative_to(ROOT / 'nbs').as_posix())
def test_a_page_can_be_read_from_top_to_bottom(page):
    sources = code_of(page)
    found = too_early(sources) + relative_imports(sources)
    assert not found, found
