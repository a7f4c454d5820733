"""Pages that carry their outputs in git: these are what the cells give today, and tell nothing of who ran them. The
README's page and every eighth run daily, the others in `make slow`."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
import outputs  # noqa: E402

PLANTED = {"USER": "plantedperson", "LOGNAME": "plantedperson", "HOSTNAME": "plantedmachine",
           "HOME": "/tmp/plantedfolder", "MY_API_KEY": "planted-secret-0123456789"}


@pytest.fixture(scope="module")
def all_executed(request, tmp_path_factory):
    "{name of a page: its outputs of today} of the pages whose tests were asked for, with names planted in the environment."
    names = {item.callspec.params["executed"] for item in request.session.items if "executed" in item.fixturenames}
    to = tmp_path_factory.mktemp("outputs") / "found.json"
    home = {"HOME": str(tmp_path_factory.mktemp("plantedfolder"))}
    command = [sys.executable, ROOT / "tools" / "outputs.py", *sorted(names), "--to", to]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **PLANTED, **home})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(to.read_text())


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if k % 8 and name not in outputs.CHANGED else ())
                        for k, name in enumerate(outputs.kept())])
def executed(request, all_executed):
    "(name of a page, its outputs of today)."
    found = all_executed[request.param]
    assert not isinstance(found, str), found[-3000:]
    return request.param, found


def test_outputs_in_git_are_those_of_today(executed):
    name, found = executed
    assert not outputs.stale(name, found), "`make outputs` puts it right"
    assert any(found), name


def test_outputs_name_nobody(executed):
    name, found = executed
    text = json.dumps(found, ensure_ascii=False) + (ROOT / "nbs" / name).read_text(encoding="utf-8")
    for word in ("planted", str(ROOT), "/tmp/", "site-packages", os.path.expanduser("~") + "/"):
        assert word not in text, f"{name} holds {word!r}"


def test_a_stale_output_is_found(tmp_path, monkeypatch):
    cell = dict(cell_type="code", source="1 + 1", outputs=[], metadata={})
    (tmp_path / "page.ipynb").write_text(json.dumps(dict(cells=[cell])))
    monkeypatch.setattr(outputs, "NBS", tmp_path)
    new = [[{"output_type": "stream", "name": "stdout", "text": ["2"]}]]
    assert outputs.stale("page.ipynb", new) == ["page.ipynb: cell 0: 1 + 1"]
    outputs.write("page.ipynb", new)
    assert outputs.stale("page.ipynb", new) == []
