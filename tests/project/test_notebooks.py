"""Every library notebook runs from top to bottom, in this process (no Jupyter kernel); cells marked slow, gpu or notest are left out."""
import os

import pytest
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbdev.test import test_nb as run_notebook

CONFIG = get_config()
ELSEWHERE = {"lab.ipynb"}          # the page: run in a kernel and in a browser by its own test
NOTEBOOKS = [nb for nb in nbglob(CONFIG.nbs_path, as_path=True) if nb.name not in ELSEWHERE]


def name(nb): return nb.relative_to(CONFIG.nbs_path).as_posix()


@pytest.mark.parametrize("nb", sorted(NOTEBOOKS, key=name), ids=name)
def test_notebook(nb, monkeypatch, tmp_path):
    monkeypatch.setenv("KERNEL_LAB_HOME", str(tmp_path))
    monkeypatch.setenv("IN_TEST", "1")         # nbdev sets it too, and leaves it behind when a notebook fails
    for key in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"): monkeypatch.delenv(key, raising=False)
    folder = os.getcwd()
    try: ok, _ = run_notebook(nb, skip_flags=CONFIG.tst_flags.split(), basepath=CONFIG.config_path)
    finally: os.chdir(folder)
    assert ok, f"{name(nb)} failed; its traceback is above"


def test_there_are_notebooks():
    assert len(NOTEBOOKS) > 3
