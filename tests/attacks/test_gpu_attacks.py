"""Each attack of a GPU submission wins against a harness that runs it beside the check, and loses against the lab, in the way that was said."""
import json

import pytest
pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
from gpu_attacks import ATTACKS, HEAD, HONEST, in_lab, lost, naive
from kernel_lab.evaluate.gpu.planning import plan_submission
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.gpu.record.nvrtc import nvrtc_path
from kernel_lab.tasks.model.workload import Kernel


@pytest.mark.sampled(9)
@pytest.mark.parametrize('a', ATTACKS, ids=lambda a: a.name)
def test_attack(a, capfd):
    found = naive(a.source, a.late)
    assert found['passed'], f'the naive harness was not fooled: {found}'
    e = in_lab(a)
    assert lost(a, e), f'{e.status}, and not {a.loses}: {e}\n{e.log}'
    assert '<script>' not in e._repr_html_() and '\x1b' not in str(e) + e.log and ''.join(capfd.readouterr()) == ''


@pytest.mark.slow
def test_a_kept_answer_is_timed_as_work():
    "The naive harness times a look into a dict. A plan has the launch in it, whoever calls it a second time."
    kept = next(a for a in ATTACKS if a.name == 'an answer that is kept')
    honest = naive(HONEST + 'def kernel(x): return softmax(x)\n')
    assert naive(kept.source)['us'] < honest['us'] / 20
    e = in_lab(kept)
    assert e.gpu.launches == 1 and e.gpu.error.largest < 1e-6


FORGED = '''import os
def kernel(x):
    os.write(3, ('P' + {text!r}).encode())
    os._exit(0)
'''


def forged(source, change):
    "A submission that answers with a plan of its own making."
    plan, _ = plan_submission(source + 'def kernel(x): return softmax(x)\n', [{'shape': [8, 100], 'dtype': 'float32'}])
    d = json.loads(plan.to_json())
    change(d)
    return HONEST + FORGED.format(text=json.dumps(d))


def judged(source):
    from gpu_attacks import GpuAttack
    return in_lab(GpuAttack('forged', '', source, ''))


def test_a_forged_plan_with_the_text_of_the_kernel_is_judged_as_that():
    "It is what would have come of it: a plan is data, and whoever wrote it has submitted it."
    assert judged(forged(HONEST, lambda d: None)).status == 'correct'


def test_a_binary_that_is_not_the_text_is_found():
    "A plan may carry any PTX under the name of a kernel that is right. A harness that believes it would count and time that."
    less, _ = plan_submission(HONEST.replace('e / tl.sum(e, axis=0)', 'v') + 'def kernel(x): return softmax(x)\n', [{'shape': [8, 100], 'dtype': 'float32'}])
    e = judged(forged(HONEST, lambda d: d['kernels'][0].update(ptx=less.kernels[0].ptx)))
    assert e.status == 'implausible' and 'not what the text of the kernel compiles to' in str(e) and e.gpu is None, e


@pytest.mark.sampled(2)
@pytest.mark.parametrize('change, status', [
    (lambda d: d['steps'].clear(), 'crashed'),                                                         # no launch at all
    (lambda d: d.update(outputs=d['inputs']), 'wrong_result'),                                         # the input is the output
    (lambda d: d['buffers'][0].update(role='scratch'), 'crashed'),
    (lambda d: d['steps'][0]['launch'][0].update(grid=[4, 1, 1]), 'uninitialised'),                    # half of the rows
    (lambda d: d['kernels'][0].update(name='other'), 'no_entry'),
    (lambda d: d['kernels'][0]['constants'][0].__setitem__(1, '__import__("os").system("id")'), None),
    (lambda d: d['buffers'].append({'name': 'x' * 150, 'shape': [1], 'dtype': 'float32', 'bytes': 1 << 49, 'role': 'scratch', 'line': 0}), None)])
def test_a_plan_that_lies_computes_something_else(change, status):
    e = judged(forged(HONEST, change))
    assert e.status != 'correct' and (status is None or e.status == status), f'{e}\n{e.log}'


@pytest.mark.parametrize('body, says', [
    ('__import__("os")', 'line 7'), ('x.handle.data.fill(0)', 'line 7'), ('tl.core.os.write(3, "x")', 'line 7'), ('tl.constexpr.__init__.__globals__', 'line 7'),
    ('tl.static_print(open)', 'line 7'), ('tl.inline_asm_elementwise("mov.u32 $0, 0;", "=r", [], tl.int32, True, 1)', 'line 7')])
def test_a_kernel_that_leaves_the_language_is_refused(body, says):
    e = judged(HONEST.replace('    row, k =', f'    {body}\n    row, k =') + 'def kernel(x): return softmax(x)\n')
    assert e.status in ('unsupported', 'trace_error', 'crashed') and says in str(e), f'{e}\n{e.log}'


needs_nvrtc = pytest.mark.skipif(nvrtc_path() is None, reason='NVRTC is not installed: the extra gpu')


@needs_nvrtc
def test_a_cuda_text_that_reads_a_file(tmp_path):
    "A compiler says what it does not understand: here a secret. In the same process it is read, behind the walls there is no file."
    from kernel_lab.gpu.chip.gpu_chips import get_gpu
    from kernel_lab.gpu.record.nvrtc import compile_cuda
    (tmp_path / 'secret.h').write_text('canary_5309 x;\n')
    text = f'#include "{tmp_path}/secret.h"\nextern "C" __global__ void k(float* x) {{ x[0] = 1; }}\n'
    assert 'canary_5309' in compile_cuda(text, 'k', get_gpu('sm_90'))[2]
    source = f'import torch\ndef kernel(x):\n    out = torch.empty_like(x)\n    torch.cuda._compile_kernel({text!r}, "k")(args=[out])\n    return out\n'
    e = evaluate(Kernel(source, target='cuda'), 'relu', 'small', seeds=1)
    assert e.status == 'trace_error' and 'canary' not in str(e) + e.log, e


def test_nothing_of_an_attack_is_left_for_the_next():
    assert str(judged(HEAD + 'import torch\ntorch.softmax = None\ndef kernel(x): return cheap(x)\n').status) == 'wrong_result'
    assert str(judged(HONEST + 'def kernel(x): return softmax(x)\n').status) == 'correct'
