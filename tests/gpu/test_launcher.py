"""The launcher against a driver without a card: every failure is a status with a sentence, hostile plans are refused
before anything is launched, and the next order finds a clean start."""
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.gpu.clock.card_state import parse_card_state
from kernel_lab.gpu.clock.ratios import ClockReading
from kernel_lab.gpu.launch import launcher
from kernel_lab.gpu.launch.arena import PATTERNS, arena_layout
from kernel_lab.gpu.launch.cuda_driver import CudaDriver, why_no_gpu
from kernel_lab.gpu.launch.launcher import launch, order_of
from kernel_lab.gpu.launch.packing import drawn
from kernel_lab.gpu.launch.prepared_plan import PreparedPlan, checked_outputs, kept_names, run_status
from kernel_lab.gpu.launch.race import RaceTrack, check_last, race
from kernel_lab.gpu.launch.stub_driver import STUB_KERNELS, StubCuda, StubKernel, example_plan
from kernel_lab.gpu.plan.nodes import Fill, LibraryCall

STUB = 'kernel_lab.gpu.launch.stub_driver:stub_cuda'


def ready(kernel, cuda=None, **changes):
    "A plan of the stub in its memory, with two draws."
    driver = CudaDriver(cuda or StubCuda(STUB_KERNELS))
    plan = PreparedPlan(driver, replace(example_plan(kernel), **changes), [kernel.encode()])
    for seed in 1, 2: plan.add_draw(seed)
    return plan


def order(*kernels, **more):
    return order_of([example_plan(k) for k in kernels], [[k.encode()] for k in kernels], **more)


@pytest.mark.parametrize('kernel, status, says', [
    ('copy', 'ran', ''), ('copy_less', 'unwritten', '2 elements'), ('copy_outside', 'uninitialised', 'depend on memory'),
    ('double_and_one', 'invalid', 'behind the end of x'), ('nowhere', 'crash', 'where no memory is')])
def test_every_failure_is_a_status(kernel, status, says):
    found = launch(order(kernel, timed=False), api=STUB)
    assert found.status == status and says in found.says, str(found)


def test_a_sum_by_atomics_is_unstable_and_not_uninitialised():
    "It has three values; the first and the third run may agree, and the second not."
    for seed in range(8):
        cuda, rng = StubCuda(STUB_KERNELS), np.random.default_rng(seed)
        plan = ready('copy', cuda)
        def summed(cuda, grid, x, y, n): cuda.array(y, n)[:] = 1 + rng.integers(3) * 1e-7
        cuda.kernels = {**STUB_KERNELS, 'copy': StubKernel((8, 8, 4), summed)}
        _, found, _ = checked_outputs(plan, 0)
        assert run_status(found)[0] in ('unstable', 'ran')
        assert not found['uninitialised']


def test_a_card_that_throttles_is_a_status(monkeypatch, tmp_path):
    hot = parse_card_state('a card, 580, 900, 3201, 91, 512, 0x40')
    monkeypatch.setattr(launcher, 'card_state', lambda: hot)
    monkeypatch.setattr(launcher, 'read_clocks', lambda track, plan, profile: ClockReading(50.0, 60.0))
    session = launcher.LaunchSession(order('copy_slow', seconds=1, most=20), CudaDriver(StubCuda(STUB_KERNELS)), tmp_path)
    session.work()
    assert session.report['status'] == 'throttled' and 'Let it cool' in session.report['says'], session.report


@pytest.mark.parametrize('error, status, way_out', [
    ('CUDA_ERROR_INSUFFICIENT_DRIVER', 'no gpu', 'driver new enough'), ('CUDA_ERROR_DEVICE_UNAVAILABLE', 'no gpu', 'another process'),
    ('CUDA_ERROR_ECC_UNCORRECTABLE', 'crash', 'Try again')])
def test_errors_of_the_driver_have_a_way_out(error, status, way_out, monkeypatch, tmp_path):
    class Refusal:
        name = error
        def __int__(self): return 1
    monkeypatch.setattr(StubCuda, 'cuInit', lambda self, flags: (Refusal(),))
    monkeypatch.setattr(launcher.os, '_exit', lambda code: None)
    (tmp_path / 'order').write_text(order('copy').to_json())
    launcher.serve(str(tmp_path), STUB)
    found = json.loads((tmp_path / 'report').read_text())
    assert found['status'] == status and error in found['says'] and way_out in found['says'], found


def test_an_endless_kernel_ends_at_the_deadline_and_the_next_order_runs():
    assert launch(order('endless', timed=False), seconds=3, api=STUB).status == 'timeout'
    assert launch(order('copy', timed=False), api=STUB).status == 'ran'


@pytest.mark.parametrize('products, precision, status', [(1.0, 'fp32', 'ran'), (1e9, 'fp32', 'below floor'), (1e9, 'bf16', 'below floor'), (1e9, 'integer', 'ran')])
def test_a_time_below_its_products_is_refused(products, precision, status, monkeypatch, tmp_path):
    "The stub's clock has every product of torch in 50 µs: 0.0105 TFLOP/s."
    monkeypatch.setattr(launcher, 'read_clocks', lambda track, plan, profile: ClockReading(50.0, 60.0))
    session = launcher.LaunchSession(order('copy', seconds=1, most=20, products=products, precision=precision), CudaDriver(StubCuda(STUB_KERNELS)), tmp_path)
    session.work()
    report = session.report
    assert report['status'] == status and sorted(report['tflops']) == ['bf16', 'fp32', 'tf32'], report
    assert report['plans'][0]['floor_of'] == ('products' if status == 'below floor' else 'bytes')
    assert ('its products take on this card' in report['says']) == (status == 'below floor')


@pytest.mark.parametrize('products, says', [(0, 'its bytes at what this card does ('), (1e9, 'its products at what this card does (fp32 0, tf32 0, bf16 0 TFLOP/s measured)')])
def test_a_record_says_below_what_no_time_is_believed(products, says):
    found = launch(order('copy', profile=False, most=20, seconds=5, products=products), api=STUB)
    assert f'µs is believed: {says}' in str(found), found
    assert 'believed' not in str(launch(order('copy', timed=False), api=STUB))


def test_without_torch_there_are_no_rates_and_no_floor_of_products(monkeypatch, tmp_path):
    monkeypatch.setattr(launcher, 'read_clocks', lambda track, plan, profile: ClockReading(50.0, 60.0))
    monkeypatch.setitem(sys.modules, 'torch', None)
    session = launcher.LaunchSession(order('copy', seconds=1, most=20, products=1e9), CudaDriver(StubCuda(STUB_KERNELS)), tmp_path)
    session.work()
    assert (session.report['status'], session.report['tflops']) == ('ran', {})


def test_an_order_comes_back_from_json():
    asked = order('copy', 'copy_slow', products=1e9, precision='tf32', any_order=True)
    assert launcher.LaunchOrder.from_json(asked.to_json()) == asked


def test_a_launcher_that_dies_says_so():
    found = launch(order('copy'), api='kernel_lab.gpu.launch.stub_driver:nobody')
    assert found.status == 'crash' and 'nobody' in found.says and 'Run it again' in found.says


def test_outputs_come_back_for_each_draw():
    asked = order('copy', timed=False)
    found = launch(asked, api=STUB)
    for draw, seed in enumerate(asked.seeds[0]):
        x = drawn(example_plan('copy').buffers[0], np.random.default_rng(seed))
        assert found.outputs[0][draw] == (x.tobytes(),)


def test_a_plan_for_another_chip_is_refused():
    plan = replace(example_plan('copy'), chip='sm_80')
    found = launch(order_of([plan], [[b'copy']], timed=False), api=STUB)
    assert found.status == 'unsupported' and 'sm_80' in found.says and 'sm_90' in found.says


@pytest.mark.skipif(why_no_gpu() is None, reason='this machine has a GPU')
def test_a_machine_without_a_card_says_so():
    found = launch(order('copy'))
    assert found.status == 'no gpu' and 'kernel-lab compile' in found.says


def test_work_of_a_library_is_refused_by_its_line():
    with pytest.raises(KernelError, match='line 12: torch does mm'):
        ready('copy', steps=(*example_plan('copy').steps, LibraryCall('aten.mm', (0,), (1,), 12)))


def test_memory_that_is_missing_is_said_with_both_sizes():
    with pytest.raises(KernelError, match='not enough free memory') as e:
        ready('copy', StubCuda(STUB_KERNELS, memory_bytes=1 << 20))
    assert e.value.kind == 'memory' and e.value.limit and e.value.value


def test_a_fill_is_part_of_the_plan():
    plan = example_plan('copy_less')
    filled = ready('copy_less', steps=(Fill(plan.outputs[0], 5.0, 3), *plan.steps))
    assert filled.run(0)[0][-1] == 5 and filled.run(1, PATTERNS[1], by_graph=True)[0][-1] == 5


def test_no_byte_of_the_allocation_is_without_a_guard_or_a_buffer():
    rng = np.random.default_rng(0)
    for _ in range(50):
        layout = arena_layout(rng.integers(0, 3 << 20, rng.integers(1, 9)).tolist())
        covered = np.zeros(layout.size, np.uint8)
        for a, b in layout.guards: covered[a:b] += 1
        for a, n in zip(layout.offsets, layout.lengths): covered[a:a + n] += 1
        assert (covered == 1).all()


def test_each_sample_finds_poison_and_the_inputs_of_its_draw():
    cuda, seen = StubCuda(STUB_KERNELS), []
    plan = ready('copy', cuda)
    def watch(cuda, grid, x, y, n):
        seen.append((cuda.array(y, 4 * n, 'uint8').min(), cuda.array(x, n).copy()))
        cuda.array(y, n)[:] = cuda.array(x, n)
    cuda.kernels = {**STUB_KERNELS, 'copy': StubKernel((8, 8, 4), watch)}
    race(RaceTrack(plan.driver), plan, plan, most=20)
    assert {p for p, _ in seen} == {PATTERNS[0]}
    draws = [drawn(plan.plan.buffers[0], np.random.default_rng(s)).view(np.float32) for s in (1, 2)]
    assert {k for _, x in seen for k in (0, 1) if (x == draws[k]).all()} == {0, 1}


def test_a_stale_answer_of_a_timed_run_is_found():
    cuda = StubCuda(STUB_KERNELS)
    plan, kept = ready('copy', cuda), []
    expected = [plan.run(draw) for draw in (0, 1)]
    def stale(cuda, grid, x, y, n):
        if not kept: kept.append(cuda.array(x, n).copy())
        cuda.array(y, n)[:] = kept[0]
    cuda.kernels = {**STUB_KERNELS, 'copy': StubKernel((8, 8, 4), stale)}
    with pytest.raises(KernelError, match='other outputs than the checked runs'):
        check_last(RaceTrack(plan.driver), plan, expected, count=20)


def test_variables_of_a_module_are_put_back_before_each_run():
    cuda = StubCuda(STUB_KERNELS)
    at = CudaDriver(cuda).call('cuMemAlloc', 64)
    cuda.array(at, 16)[:] = 7
    cuda.globals[b'cache'] = (at, 64)
    kernel = example_plan('copy').kernels[0]
    ptx = kernel.ptx.replace('.visible .entry', '.visible .global .align 4 .b8 cache[64];\n.visible .entry')
    assert kept_names(ptx) == ['cache'] and kept_names(kernel.ptx) == []
    plan = ready('copy', cuda, kernels=(replace(kernel, ptx=ptx),))
    cuda.array(at, 16)[:] = 1
    plan.run(0)
    assert (cuda.array(at, 16) == 7).all()
    with pytest.raises(KernelError, match='keeps memory between launches'):
        ready('copy', kernels=(replace(kernel, ptx=ptx),))


def test_a_race_below_ten_microseconds_repeats_in_one_graph():
    plan = ready('copy_tiny')
    first, second = race(RaceTrack(plan.driver), plan, plan, most=20)
    assert max(n for n, _ in plan.graphs) > 90 and abs(np.median(first) - 2) < 0.1


@pytest.mark.parametrize('kernels', [(), ('copy',) * 3])
def test_a_race_is_of_one_or_two(kernels):
    with pytest.raises(UsageError, match='no race'): order(*kernels)


def test_a_short_time_is_shown_beside_what_launching_takes():
    text = str(launch(order('copy_tiny', profile=False), api=STUB))
    assert 'below 10 µs: each sample is a graph of many launches' in text and 'µs apart' in text, text
    assert 'below 10 µs' not in str(launch(order('copy_slow', profile=False), api=STUB))
