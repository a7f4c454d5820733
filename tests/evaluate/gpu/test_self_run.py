"""Submissions that run themselves, on the CPU behind the walls of a card's child: hostile ones reach nothing and end at their
limits, junk in the answer is refused, and nothing that holds verified times takes what they claim."""
import json
import os
import time
from dataclasses import replace

import pytest

pytest.importorskip('torch', reason='torch is not installed: the extra gpu')
from kernel_lab.core.durations import compare_times, one_clock
from kernel_lab.core.errors import SimulatorError, UsageError
from kernel_lab.evaluate.records.evaluation import Evaluation
from kernel_lab.evaluate.sandbox.protocol import Limits
from kernel_lab.evaluate.sandbox.run import sandbox_status
from kernel_lab.evaluate.self_run.run import self_run
from kernel_lab.evaluate.store.store import Store
from kernel_lab.gpu.launch.cuda_driver import why_no_gpu
from kernel_lab.tasks.model.workload import Kernel

pytestmark = pytest.mark.skipif(not sandbox_status().safe, reason='this machine confines no kernels')
GOOD = '''import torch
def kernel(x):
    return torch.softmax(x, -1)
'''


def ran(before='', text=GOOD, seconds=20, **more):
    "The record of a softmax whose first line is `before`."
    text = text.replace('    return', f'    {before}\n    return', 1) if before else text
    return self_run(Kernel(text), 'softmax', 'small', device='cpu', seeds=2, samples=4, seconds=2, limits=Limits(seconds=seconds), **more)


def test_an_honest_one_is_right_and_its_time_is_its_own_word():
    e = ran()
    assert (e.status, len(e.samples_us), e.duration.kind, e.device) == ('self_run', 4, 'self_run', 'cpu'), e
    assert sum(e.samples_us) / 1e6 < e.wall_seconds and e.tier == sandbox_status().tier and 'own word' in str(e)


MODULE = '''import torch
class ModelNew(torch.nn.Module):
    def forward(self, x): return torch.softmax(x, -1)
'''


@pytest.mark.parametrize('text, status, says', [
    (MODULE, 'self_run', ''), (GOOD.replace('softmax(x, -1)', 'sigmoid(x)'), 'wrong_result', ''), (GOOD.replace(', -1)', ', -1).half()'), 'wrong_shape', 'float16'),
    (GOOD.replace(', -1)', ', -1)[:5]'), 'wrong_shape', 'output 0'), ('x = 1', 'no_entry', 'no entry'), ('def kernel(x:', 'parse_error', 'line 1'),
    (GOOD.replace('return', 'return 3 #'), 'wrong_shape', 'no tensor'), (GOOD.replace('return', 'return (x, x) #'), 'wrong_shape', 'number of outputs'),
    (GOOD.replace('return', 'return x.cuda() #'), 'trace_error', ''),
    ('import triton\n' + GOOD, 'unsupported', 'starts nothing')])
def test_every_end_is_a_status(text, status, says):
    e = ran(text=text)
    assert e.status == status and says in str(e), str(e)
    assert bool(e.samples_us) == (status == 'self_run')


CAUGHT = '''
    try:
        {}
        torch = None
    except (OSError, PermissionError, ValueError): pass'''


@pytest.mark.parametrize('attack', [
    'open("/etc/passwd").read()', 'open("/tmp/kernel-lab-was-here", "w")', 'import os; os.listdir("/home")', 'import socket; socket.socket()',
    'import os; os.fork() or os._exit(0)', 'import os; os.execv("/bin/true", ["true"])', 'import os; os.kill(os.getppid(), 9)', 'import os; os.kill(1, 9)',
    'import os; os.kill(-1, 15)', 'import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 5)', 'import os; os.ftruncate(3, 1 << 40)', 'import os; os.pwrite(4, b"x" * 64, 0)',
    'import os; open(f"/proc/{os.getppid()}/environ").read()', 'import os; os.symlink("/etc/passwd", "/tmp/x")', 'import os; os.memfd_create("x")'])
def test_an_attack_reaches_nothing(attack):
    "One that got through takes torch away, so that the submission fails; one that is stopped goes on and is right."
    e = ran(text=GOOD.replace('    return', f'    import torch{CAUGHT.format(attack)}\n    return'))
    assert e.status == 'self_run', f'{attack}: {e}'
    assert not os.path.exists('/tmp/kernel-lab-was-here')


@pytest.mark.parametrize('line, status', [
    ('import os; os._exit(0)', 'crashed'), ('import os; os.kill(os.getpid(), 11)', 'trace_error'), ('raise SystemExit', 'trace_error'), ('x = bytearray(1 << 45)', 'out_of_memory'),
    ('import time; time.sleep(1e6)', 'timeout'), ('import threading; [None for _ in iter(int, 1)]', 'timeout'), ('import ctypes; ctypes.string_at(0)', 'crashed')])
def test_limits_end_it(line, status):
    began = time.monotonic()
    e = ran(line, seconds=3)
    assert e.status == status and not e.samples_us, str(e)
    assert time.monotonic() - began < 40 and ran().status == 'self_run'


@pytest.mark.parametrize('line, status', [
    ("import os; os.pwrite(3, b'P' + b'x' * 60000, 0); os._exit(0)", 'uninitialised'), ("import os; os.pwrite(3, b'junk', 0); os._exit(0)", 'crashed'),
    ("import os; os.pwrite(3, b'P{\"samples_us\": [1.0]}', 0); os._exit(0)", 'uninitialised'),
    ("import os; os.pwrite(3, b'E' + b'[' * 60000, 0); os._exit(0)", 'crashed')])
def test_junk_in_the_answer_is_no_result(line, status):
    e = ran(line)
    assert e.status == status and not e.samples_us, str(e)


CLAIMS = '''import torch, os, json
def kernel(x):
    return torch.softmax(x, -1)
import kernel_lab.evaluate.self_run.child_job as job
job.own_samples = lambda *a: {}
'''


@pytest.mark.parametrize('claim, says', [('[1e9]', 'more time than its process ran'), ('[1.0] * 5', 'no list of times'), ('[-1.0]', 'no time'),
                                         ('[float("nan")]', 'no time'), ('[]', 'no list of times')])
def test_a_claim_that_cannot_be_is_no_time(claim, says):
    e = ran(text=CLAIMS.format(claim))
    assert e.status == 'implausible' and says in str(e) and not e.samples_us, str(e)


def test_a_clock_that_it_changed_is_its_own_word_and_says_so():
    e = ran(text='import time\ntime.perf_counter = lambda: 0.0\n' + GOOD)
    assert e.status == 'implausible' and 'no time' in str(e)
    tiny = ran(text=CLAIMS.format('[0.001] * 4'))
    assert tiny.status == 'self_run' and tiny.duration.us == 0.001 and 'own word' in str(tiny)


def test_inputs_are_fresh_and_its_own_copy():
    "An answer kept from the first draw is wrong on the second, and writing into inputs changes no reference."
    e = ran(text=GOOD.replace('def kernel(x):', 'KEPT = []\ndef kernel(x):\n    KEPT.append(torch.softmax(x, -1))\n    return KEPT[0]\n'))
    assert e.status == 'wrong_result'
    assert ran('x = x.mul_(1.0); y = x.clone().zero_()').status == 'self_run'


def test_nothing_that_holds_verified_times_takes_it(tmp_path):
    e, verified = ran(), ran().verification
    store = Store(tmp_path / 'lab.sqlite3')
    with pytest.raises(UsageError, match='takes no self-run'): store.save_evaluation(e)
    with pytest.raises(UsageError, match='takes no self-run'): Evaluation.from_dict(json.loads(json.dumps(e.to_dict())))
    about = dict(task='softmax', workload='small', chip='sm_90', target='triton', kernel=Kernel(''), status='correct', verification=verified)
    class Timed: kind, latency_us = 'self_run', 1.0
    with pytest.raises(SimulatorError, match='took of itself'): Evaluation('a', **about, profile=Timed())
    with pytest.raises(UsageError, match='not compared'): Evaluation('a', **about).against(e)
    with pytest.raises(UsageError, match='mixes'): compare_times(e.duration, replace(e.duration, kind='measured'))
    with pytest.raises(UsageError, match='mixes'): one_clock([replace(e.duration, kind='measured'), e.duration], 'A table')
    assert store.known(Kernel(GOOD), __import__('kernel_lab.tasks', fromlist=['get_task']).get_task('softmax'), 'small') is None


@pytest.mark.skipif(why_no_gpu() is None, reason='this machine has a GPU')
def test_without_a_card_there_is_a_sentence(tmp_path, capsys):
    from kernel_lab.cli.app import run
    (tmp_path / 'k.py').write_text(GOOD)
    assert run(['evaluate', 'softmax', str(tmp_path / 'k.py'), '-w', 'small', '--self-run']) == 2
    said = capsys.readouterr().err
    assert 'needs a card' in said and 'Leave out --self-run' in said
