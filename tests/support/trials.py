"""The trials of every row of the instruction table, as the pages that introduce the rows make them."""
import ast
import linecache
from functools import cache
from pathlib import Path

from kernel_lab.nki.validate import conformance
from notebooks import as_test

PAGES = sorted(p for p in (Path(__file__).parents[2] / 'nbs' / '2_nki').rglob('*.ipynb')
               if 'kernel_lab.nki.validate.conformance' in p.read_text())

def run_page(page):
    "Run a page's code cells from top to bottom; what it exports comes from its module."
    names = {'__name__': page.stem}
    for k, cell in enumerate(as_test(page)['cells']):
        source, name = cell['source'], f'<{page.stem} {k}>'
        if cell['cell_type'] != 'code' or source.startswith('#| default_exp'): continue
        linecache.cache[name] = len(source), None, source.splitlines(True), name
        exec(compile(ast.parse(source), name, 'exec'), names)

@cache
def all_trials():
    "{page: its trials} of all pages, collected while each page runs."
    kept, tried = {}, conformance.conformance_table
    def keeping(*given):
        kept.setdefault(now[0].stem, []).extend(given)
        return conformance.ConformanceTable()
    now, conformance.conformance_table = [None], keeping
    try:
        for now[0] in (p for p in PAGES if not p.stem.endswith('_conformance')): run_page(now[0])
    finally: conformance.conformance_table = tried
    return kept
