"""What only a card can say: kernels are right there, what leaves its memory is found, an endless one ends, no attack on the clock
wins, and a kernel against itself is alike. `make gpu-test` runs it; the samples of A/A and the table of attacks are printed, and
kept in the session's report."""
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
sys.path.insert(0, str(Path(__file__).parent))
from attacks_on_card import ATTACKS, WINS, reference
from card_texts import BAD, COMPILERS, PARITY, task_of
from card_work import answers, distance, given, order, refused
from kernel_lab.evaluate.gpu.nvcc import nvcc_path
from kernel_lab.gpu.launch.cuda_driver import why_no_gpu
from kernel_lab.gpu.launch.launcher import launch

pytestmark = [pytest.mark.card, pytest.mark.skipif(why_no_gpu() is not None, reason=f'{why_no_gpu()}: make gpu-test needs a card')]


@pytest.mark.parametrize('name', PARITY)
def test_parity_with_eager_torch(name, compiled, untimed, report):
    "Against float64, at most twice as far away as eager torch on the same card and inputs."
    import torch
    task, c, (asked, found) = task_of(name)[0], compiled[name], untimed.launched[name]
    assert asked and found.status == 'ran', str(found or c)
    arrays = [torch.from_numpy(x.copy()).cuda() for x in given(c.plan, asked.seeds[0][0])]
    with torch.no_grad():
        eager = task.reference(*arrays)
        want = task.reference(*[a.double() if a.is_floating_point() else a for a in arrays])
    eager, want = ([t.cpu().numpy() for t in (x if isinstance(x, (tuple, list)) else (x,))] for x in (eager, want))
    for got, theirs, exact in zip(answers(c.plan, found), eager, want):
        mine, limit = distance(got.reshape(exact.shape), exact), max(2 * distance(theirs, exact), 3e-7)
        report.setdefault('parity', {})[name] = [mine, limit]
        assert mine <= limit, f'{name}: {mine:.1e}, and {limit:.1e} is allowed'


@pytest.mark.parametrize('name', BAD)
def test_what_is_wrong_is_a_status_and_the_next_order_runs(name, compiled, untimed, report):
    _, status, says = BAD[name]
    asked, found = untimed.launched[name]
    assert asked, str(compiled[name])
    report.setdefault('bad', {})[name] = [found.status, found.says]
    assert found.status == status and says in found.says, str(found)
    if status == 'timeout': assert untimed.after.status == 'ran', f'after {name}: {untimed.after}'


def test_eight_rows_a_program_spill_and_lose(compiled, untimed, report):
    one, eight = compiled['one row'], compiled['eight rows']
    assert eight.binaries[0].spills > 0 == one.binaries[0].spills
    found = launch(order(one, eight, seconds=2, most=40, profile=False), 100)
    report['spills'] = [str(found.ratio), eight.binaries[0].spills, found.data.get('race')]
    assert found.status == 'ran' and found.ratio.verdict == 'faster', str(found)


def test_a_kernel_against_itself(compiled, untimed, report):
    found = launch(order(compiled['twice'], again=12, most=100, seconds=10), 100)
    report['self'] = {'samples': found.data.get('self'), 'says': str(found.itself), 'floor_us': found.data['plans'][0].get('floor_us'),
                      'clocks': found.data['plans'][0].get('clocks'), 'host_us': found.data.get('host_us'), 'gbps': found.data.get('gbps'),
                      'arguments': max(len(k.params) + len(k.scratch) for k in compiled['twice'].plan.kernels)}
    print(found.itself)
    assert found.status == 'ran', str(found)
    assert found.itself.worst <= 0.003 and found.itself.covered >= 11, str(found.itself)
    assert np.median(found.data['self'][0][0]) >= 100
    one, replay = found.data['host_us']
    assert one <= 6 or replay <= 6, f'a launch costs the host {one:.1f} µs, a replay of its graph {replay:.1f}'


def test_a_time_below_its_products_is_refused(compiled, untimed, report):
    "The rates are those of torch's products on this card; nothing does so many operations in that time."
    found = launch(order(compiled['matmul'], products=1e15, precision='tf32', seconds=1, most=20, profile=False), 60)
    report['products'] = {'tflops': found.data.get('tflops'), 'says': found.says}
    assert found.status == 'below floor' and 'its products take' in found.says, str(found)
    assert 0 < found.data['tflops']['fp32'] < found.data['tflops']['tf32'] < found.data['tflops']['bf16'], found.data['tflops']


@pytest.fixture(scope='module')
def honest(compiled, untimed):
    "Task → µs of the honest kernel by the launcher."
    found = {t: launch(order(compiled[f'honest {t}'], seconds=3, most=60, profile=False), 60) for t in ('product', 'sums')}
    return {t: r.duration.us for t, r in found.items()}


def ended(attack, c, once, us):
    "How the lab ends an attack: words, '' where it won. `once`: its (order, report) of the runs that are not timed."
    if why := refused(attack.name, c): return why
    asked, found = once
    if found.status != 'ran': return f'{found.status}: {found.says}'
    import torch
    arrays = [torch.from_numpy(x.copy()).cuda() for x in given(c.plan, asked.seeds[0][0])]
    exact = reference(attack.task, *[a.double() for a in arrays]).cpu().numpy()
    theirs = distance(reference(attack.task, *arrays).cpu().numpy(), exact)
    mine = distance(answers(c.plan, found)[0], exact)
    if mine > 0.1: return f'wrong: {mine:.1e} away'
    if mine > max(2 * theirs, 3e-7): return f'loose: {mine:.1e} away, eager torch {theirs:.1e}'
    timed = launch(order(c, seconds=3, most=60, profile=False), 60)
    if timed.status != 'ran': return f'{timed.status}: {timed.says}'
    return f'takes as long: {timed.duration.us:.1f} µs, the honest kernel {us:.1f}' if timed.duration.us >= WINS * us else ''


@pytest.mark.parametrize('a', ATTACKS, ids=lambda a: a.name)
def test_attack_wins_naively_and_loses_here(a, compiled, untimed, naive, honest, report):
    seen, fair = naive.get(a.name, {}), naive.get(f'honest {a.task}', {})
    assert fair.get('passed'), naive['errors']
    says = ended(a, compiled[a.name], untimed.launched[a.name], honest[a.task])
    is_fooled = bool(seen.get('passed')) and seen['us'] < WINS * fair['us']
    report.setdefault('attacks', {})[a.name] = {'naive': seen, 'fair_us': fair['us'], 'fooled': is_fooled, 'lab': says, 'says': a.says}
    print(f'{a.name}: naive {seen}, honest {fair["us"]:.1f} µs; lab: {says}')
    assert is_fooled, f'the naive harness was not fooled: {seen}, honest {fair} {naive["errors"]}'
    assert says.startswith(a.loses), says or 'it won'


@pytest.mark.parametrize('compiler', COMPILERS)
def test_cuda_is_right_and_its_clocks_agree(compiler, compiled, untimed):
    "Its functions are made part of the kernels; a profiler prints the names of these as those of C++."
    if compiler == 'nvcc' and nvcc_path() is None: pytest.skip('this machine has no CUDA toolkit')
    found = compiled[f'CUDA by {compiler}']
    asked = order(found)
    ran = launch(asked)
    assert ran.status == 'ran', ran
    x, = given(found.plan, asked.seeds[0][0])
    assert distance(answers(found.plan, ran)[0], x.astype('float64') * 0.375) < 1e-7
