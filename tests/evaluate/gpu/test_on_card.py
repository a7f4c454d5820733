"""A task's kernel on a card, against a driver without one: numbers are held to the reference on secret draws, and a time is of a
right kernel alone."""
import json

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
from gpu_gallery import RELU_IN_TRITON
from kernel_lab.cli.evaluate import evaluate_
from kernel_lab.cli.app import run as run_command
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.gpu import on_card
from kernel_lab.evaluate.gpu.on_card import UNORDERED, run_on_card
from kernel_lab.gpu.launch.stub_driver import example_plan
from kernel_lab.tasks.model.task import task_from

API = '''import numpy as np
from kernel_lab.gpu.clock.ratios import ClockReading
from kernel_lab.gpu.launch import launcher
from kernel_lab.gpu.launch.stub_driver import STUB_KERNELS, StubCuda, StubKernel

launcher.read_clocks = lambda track, plan, profile: ClockReading(50.0, 60.0)        # the stub's wall clock is none
rng = np.random.default_rng(0)

def copied(change):
    def run(cuda, grid, x, y, n): cuda.array(y, n)[:] = change(cuda.array(x, n))
    return lambda: StubCuda({**STUB_KERNELS, 'copy': StubKernel((8, 8, 4), run, 110.0)})

def clip(cuda, grid, x, out, n, a, b): cuda.array(out, n)[:] = np.maximum(cuda.array(x, n), 0)

good = copied(lambda x: x)
nan = copied(lambda x: x * np.float32('nan'))
zero = copied(lambda x: 0 * x)
loose = copied(lambda x: x * np.float32(1 + 1e-6 * rng.standard_normal()))
far = copied(lambda x: x * np.float32(1 + 0.1 * rng.standard_normal()))
def triton(): return StubCuda({'clip': StubKernel((8, 8, 4, 8, 8), clip, 110.0)})
'''
SAME = task_from(lambda x: x.clone(), lambda rng: {'x': rng.standard_normal(1024, np.float32)}, name='same')
LOOSE = task_from(lambda x: x.clone(), lambda rng: {'x': rng.standard_normal(1024, np.float32)}, name='loose', tags=(UNORDERED,))


@pytest.fixture(autouse=True)
def api(tmp_path, monkeypatch):
    (tmp_path / 'stub_api.py').write_text(API)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=':')


@pytest.mark.parametrize('name, task, status', [
    ('good', SAME, 'correct'), ('nan', SAME, 'not_finite'), ('zero', SAME, 'wrong_result'), ('loose', SAME, 'unstable'), ('loose', LOOSE, 'correct'),
    ('far', LOOSE, 'invalid')])
def test_a_right_kernel_alone_has_a_time(name, task, status):
    found = run_on_card(example_plan('copy'), [b'copy'], task, task.workload(), api=f'stub_api:{name}')
    assert found.status == status, found
    assert (found.duration is not None) == (status == 'correct') == (found.to_dict()['measured_us'] is not None)
    if status == 'correct': assert 100 < found.duration.us < 120 and 'A/A' in str(found) and found.error.relative < 1e-5


def test_the_products_of_a_task_are_a_floor(monkeypatch):
    "A product that no kernel can avoid is handed to the launcher with the kernel's precision class; one that is only summed is not."
    seen, real = [], on_card.launch
    def spy(order, seconds, api, draws): seen.append((order.products, order.precision)); return real(order, seconds, api, draws=draws)
    monkeypatch.setattr(on_card, 'launch', spy)
    draw = lambda rng: {'x': rng.standard_normal(1024, np.float32)}
    def square(x): return (x.view(32, 32) @ x.view(32, 32) * 2).view(-1)
    def summed(x): return x + (x.view(32, 32) @ x.view(32, 32)).sum()
    for reference in square, summed, SAME.reference:
        task = task_from(reference, draw, name='task')
        run_on_card(example_plan('copy'), [b'copy'], task, task.workload(), api='stub_api:good')
    run_on_card(example_plan('copy'), [b'copy'], SAME, SAME.workload(), 'tf32', api='stub_api:good')
    assert seen == [(32 ** 3, 'fp32'), (0, 'fp32'), (0, 'fp32'), (0, 'tf32')]


@pytest.mark.parametrize('dtype, operations', [('float32', 2 * 64 ** 3), ('bfloat16', 2 * 64 ** 3), ('float8_e4m3', 0)])
def test_products_of_one_byte_have_no_rate_and_no_floor(dtype, operations):
    task = task_from(lambda x, w: x @ w, lambda rng: {'x': rng.standard_normal((64, 64), np.float32), 'w': rng.standard_normal((64, 64), np.float32)}, name='task')
    arrays = {k: a.astype(getattr(ml_dtypes, dtype, np.float32)) for k, a in task.draw(task.workload(), 1).items()}
    assert on_card.direct_products(task, arrays) == operations


def test_a_time_that_its_products_forbid_is_none(monkeypatch):
    monkeypatch.setattr(on_card, 'direct_products', lambda task, arrays: 10 ** 9)
    task = task_from(lambda x: x + 0 * (x[:4, None] @ x[None, :4]).sum(), lambda rng: {'x': rng.standard_normal(1024, np.float32)}, name='task')
    found = run_on_card(example_plan('copy'), [b'copy'], task, task.workload(), api='stub_api:good')
    assert (found.status, found.duration) == ('below floor', None) and found.verification.passed, found
    assert 'its products take on this card' in str(found) and found.to_dict()['tflops']['fp32'] > 0


def test_draws_are_fresh_each_time(monkeypatch):
    seen, real = [], on_card.launch
    def spy(order, seconds, api, draws): seen.append([d[0].tobytes() for d in draws]); return real(order, seconds, api, draws=draws)
    monkeypatch.setattr(on_card, 'launch', spy)
    for _ in range(2): run_on_card(example_plan('copy'), [b'copy'], SAME, SAME.workload(), api='stub_api:good')
    assert len({d for draws in seen for d in draws}) == 4


def test_a_machine_without_a_card_is_told_before_anything_runs(tmp_path):
    from kernel_lab.gpu.launch.cuda_driver import why_no_gpu
    if why_no_gpu() is None: pytest.skip('this machine has a card')
    (tmp_path / 'k.py').write_text(RELU_IN_TRITON)
    with pytest.raises(UsageError, match='--run needs a card'): evaluate_('relu', [str(tmp_path / 'k.py')], 'small', run=True)


def test_the_command_runs_what_it_accepted(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('KERNEL_LAB_HOME', str(tmp_path / 'home'))
    monkeypatch.setattr('kernel_lab.gpu.launch.cuda_driver.why_no_gpu', lambda: None)
    real = on_card.launch
    monkeypatch.setattr(on_card, 'launch', lambda order, seconds, api, draws: real(order, seconds, 'stub_api:triton', draws=draws))
    (tmp_path / 'k.py').write_text(RELU_IN_TRITON)
    assert run_command(['evaluate', 'relu', str(tmp_path / 'k.py'), '-w', 'small', '--run', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['status'] == 'correct' and found['card']['status'] == 'correct' and found['card']['kind'] == 'measured'
    assert found['card']['measured_us']['median'] > 100 and found['profile'] is None
    (tmp_path / 'k.py').write_text(RELU_IN_TRITON.replace('0.0), mask', '0.5), mask'))
    assert run_command(['evaluate', 'relu', str(tmp_path / 'k.py'), '-w', 'small', '--run']) == 1
    assert 'on no card' not in capsys.readouterr().out
