"""Each attack of the gallery wins against the naive harness (or the gallery proves nothing), and loses against the
lab, in the way that was said.

`python tests/attacks/table.py` prints what came of each."""
from collections import Counter

import pytest

import naive
from arena import in_lab, lost, parent, verdict
from gallery import ATTACKS, FAMILIES
from probes import PROBES
from bad_kernels import children, left_behind
from kernel_lab.tasks.baselines.eager import eager
from kernel_lab.tasks.suite.registry import TASKS

@pytest.fixture(scope='module', autouse=True)
def one_thread():
    "Small references are faster on one thread, and a hundred of them do not make a busy machine busier."
    import torch
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    eager(TASKS['relu'], 'small')               # torch's exporter sets environment variables on its first call
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope='module')
def reports(request):
    "What the naive harness made of the attacks that are asked for."
    return naive.judged([
        a.job for a in {
            i.callspec.params['a'].name: i.callspec.params['a']
            for i in request.session.items
            if i.path == request.path and 'a' in getattr(getattr(i, 'callspec', None), 'params', {})}.values()])


@pytest.mark.sampled(3)
@pytest.mark.parametrize('a', ATTACKS, ids=lambda a: a.name)
def test_attack(a, reports, tmp_path, monkeypatch, capfd):
    assert a.won(reports[a.name]), f'the naive harness was not fooled: {reports[a.name]}'
    monkeypatch.chdir(tmp_path)
    before, born = parent(), children()
    e = in_lab(a)
    assert lost(a, e), f'{verdict(a, e)}, and not {a.loses}: {e}'
    assert parent() == before and not left_behind(born), 'the parent is not what it was'
    assert ''.join(capfd.readouterr()) == '' and '<script>' not in e._repr_html_() and '\x1b' not in str(e) + e.log


def test_the_gallery():
    rows = [x.row for x in (*ATTACKS, *PROBES)]
    assert len(ATTACKS) >= 60 and set(Counter(r[0] for r in rows)) == set(FAMILIES)
    assert len({x.name for x in (*ATTACKS, *PROBES)}) == len(rows)


def test_one_process_for_each():
    "A kernel that patches everything leaves nothing to the wrong one that comes next."
    a, b = (next(x for x in ATTACKS if x.name == n) for n in ('patched comparison', 'identity'))
    assert [str(in_lab(x).status) for x in (a, b)] == ['wrong_result', 'wrong_result']
