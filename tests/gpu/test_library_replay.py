"""Calls of torch in a plan, done by the launcher: as eager torch does them, in the plan's own memory, counted in its time; and
what a hostile plan would have torch do is refused by the reader of plans, with a sentence."""
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip('triton', reason='triton is not installed: the extra gpu')
import torch
import torch.nn.functional as F
from kernel_lab.core.errors import KernelError
from kernel_lab.gpu.launch.cuda_driver import CudaDriver
from kernel_lab.gpu.launch.launcher import launch, order_of
from kernel_lab.gpu.launch.prepared_plan import PreparedPlan
from kernel_lab.gpu.launch.race import RaceTrack, library_time
from kernel_lab.gpu.launch.stub_driver import STUB_KERNELS, CudaResult, StubCuda, example_plan
from kernel_lab.gpu.plan.launch_plan import LaunchPlan
from kernel_lab.gpu.plan.nodes import Buffer, BufferView, LibraryCall
from kernel_lab.gpu.record.recording import PlanRecording
from kernel_lab.gpu.record.torch_calls import TorchOperations

STUB = 'kernel_lab.gpu.launch.stub_driver:stub_cuda'
WORK = {
    'a product and a number': lambda x, y: (x @ y.T) * 0.5 + 1, 'a linear layer': lambda x, y: F.linear(x, y, y[:, 0]),
    'softmax': lambda x, y: torch.softmax(x, -1) - torch.log_softmax(y, 0), 'half': lambda x, y: (x.half() + 1.5).float() * y,
    'sums': lambda x, y: x.sum() + x.mean(1) + y.sum(1, keepdim=True) + x.amax(0)[:6] + y.min(), 'views': lambda x, y: x.T.contiguous()[1:3] - y.T[2:4].relu(),
    'activations': lambda x, y: F.gelu(x) + F.silu(y) + F.leaky_relu(x, 0.2) + F.elu(y) + F.hardtanh(x) + F.softplus(y) + x.clamp(min=0.1) + y.clamp(-1, 1),
    'a convolution': lambda x, y: F.avg_pool2d(F.conv2d(x.reshape(1, 2, 4, 6), y.reshape(2, 2, 2, 6), padding=(1, 3)), 2),
    'choices': lambda x, y: torch.where(x > y, x ** 2, 1 - y) / (y == 0.5).float().add(2) + torch.maximum(x, y) ** y.abs(),
    'orders': lambda x, y: torch.cumsum(x, 1) + x.flip(0) + y.tril() + F.pad(y[:, 1:], (0, 1)) + x.argmax(1, keepdim=True) + torch.linalg.vector_norm(x),
}


def test_on_a_card_a_call_that_returns_its_result_went_well():
    "The stub's way aside: work returns a tensor there, and an error is raised."
    from kernel_lab.gpu.launch.library_replay import LibraryReplay
    replay = object.__new__(LibraryReplay)
    replay.torch, replay.is_card, replay.stream, out = torch, True, None, torch.empty(3)
    assert replay.enqueue(lambda: torch.ops.aten.add.out(torch.ones(3), torch.ones(3), out=out), 7) == (0,) and out.tolist() == [2.0] * 3
    with pytest.raises(KernelError, match='line 7'): replay.enqueue(lambda: torch.ones(3) @ torch.ones(4), 7)


def recorded(work, *shapes):
    "(a plan of what `work` does with tensors of these shapes, and of no kernel; the shape of its result)."
    r = PlanRecording()
    with torch.no_grad(), torch.device('meta'):
        given = [torch.empty(s) for s in shapes]
        inputs = tuple(r.view(t, name=f'x{k}', role='input') for k, t in enumerate(given))
        with TorchOperations(r): out = r.view(work(*given))
    return LaunchPlan('work', 'triton', 'sm_90', tuple(r.buffers), (), tuple(r.steps), inputs, (out,), '', {})


def ready(plan, cuda=None):
    prepared = PreparedPlan(CudaDriver(cuda or StubCuda(STUB_KERNELS)), plan, [k.entry.encode() for k in plan.kernels])
    for seed in 1, 2: prepared.add_draw(seed)
    return prepared


@pytest.mark.parametrize('name', WORK)
def test_as_eager_torch_does_it(name):
    plan = recorded(WORK[name], (6, 8), (6, 8))
    assert all(c.made for c in plan.library_calls), [c.name for c in plan.library_calls if not c.made]
    plan = LaunchPlan.from_json(plan.to_json())
    prepared, rng = ready(plan), np.random.default_rng(1)
    given = [torch.from_numpy(rng.standard_normal(48, np.float32).reshape(6, 8)) for _ in range(2)]
    want = WORK[name](*given)
    for by_graph in (False, True):
        got, = prepared.run(0, by_graph=by_graph)
        assert got.shape == want.shape and np.allclose(got, want.numpy(), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize('work', [lambda x: x.sort()[0], lambda x: x.mul_(2), lambda x: torch.bernoulli(x.abs()), lambda x: F.dropout(x, 0.5, True),
                                  lambda x: F.gelu(x, approximate='tanh'), lambda x: torch.rand_like(x), lambda x: torch.add(x, x, alpha=2)])
def test_what_the_table_has_not_is_named_with_a_way_out(work):
    with pytest.raises(KernelError, match='no such operation in its table') as e: ready(recorded(work, (6, 8)))
    assert e.value.kind == 'unsupported' and 'Write it as a kernel' in e.value.hint


VIEW = {'buffer': 0, 'offset': 0, 'shape': [6, 8], 'strides': [8, 1], 'dtype': 'float32'}


def asked(**changes):
    "The JSON text of a plan of one sum of two tensors, with fields of its call changed."
    data = json.loads(recorded(lambda x, y: x + y, (6, 8), (6, 8)).to_json())
    data['steps'][0] |= changes
    return json.dumps(data)


@pytest.mark.parametrize('changes, says', [
    (dict(call='aten.system'), 'not in the table'), (dict(call='aten.add_'), 'not in the table'), (dict(call='prims.add'), 'not in the table'),
    (dict(call='aten.set_'), 'not in the table'), (dict(call='aten.from_file'), 'not in the table'), (dict(given=[]), 'not in the table'),
    (dict(given=[{'plain': 140000000}, {'view': VIEW}]), 'not in the table'), (dict(given=[{'plain': 'x'}, {'view': VIEW}]), 'not a whole number'),
    (dict(given=[{'view': VIEW | {'buffer': 9}}, {'view': VIEW}]), 'not a whole number'),
    (dict(given=[{'view': VIEW | {'shape': [600, 8]}}, {'view': VIEW}]), 'ends outside'),
    (dict(given=[{'view': VIEW | {'shape': [2**45, 8], 'strides': [0, 1]}}, {'view': VIEW}]), 'too many elements'),
    (dict(given=[{'view': VIEW | {'offset': 2, 'shape': [2, 8]}}, {'view': VIEW}]), 'between two elements'),
    (dict(given=[{'view': VIEW | {'buffer': 2}}, {'view': VIEW}]), 'other buffers'), (dict(reads=[0, 1, 2]), 'writes what it is given'),
    (dict(writes=[0], made=VIEW), 'writes what it is given'), (dict(made=VIEW | {'buffer': 2, 'strides': [0, 1]}), 'an element twice')])
def test_the_reader_refuses_hostile_calls(changes, says):
    assert LaunchPlan.from_json(asked())
    with pytest.raises(KernelError, match=says): LaunchPlan.from_json(asked(**changes))


@pytest.mark.parametrize('changes', [dict(made=VIEW | {'buffer': 2, 'shape': [6, 4]}), dict(made=VIEW | {'buffer': 2, 'dtype': 'int32'}),
                                     dict(call='aten.mm'), dict(call='aten.addmm', given=[{'view': VIEW}] * 3, reads=[0])])
def test_shapes_and_dtypes_that_do_not_fit_are_refused_before_anything_runs(changes):
    with pytest.raises(KernelError, match='torch cannot do|gives something else') as e: ready(LaunchPlan.from_json(asked(**changes)))
    assert e.value.kind == 'invalid'


def test_without_torch_there_is_a_sentence(monkeypatch):
    plan = recorded(lambda x: x + 1, (6, 8))
    monkeypatch.setitem(sys.modules, 'torch', None)
    with pytest.raises(KernelError, match='torch, which is not installed') as e: ready(plan)
    assert e.value.kind == 'unsupported' and 'pip install' in e.value.hint


def mixed(kernel='copy'):
    "A kernel of the stub, and behind it a sum of torch, which is the output."
    copied, z = example_plan(kernel), BufferView(2, 0, (), (), 'float32')
    call = LibraryCall('aten.sum', (1,), (2,), 12, (BufferView(1, 0, (1024,), (1,), 'float32'),), z)
    return replace(copied, buffers=(*copied.buffers, Buffer('z', (), 'float32', 4)), steps=(*copied.steps, call), outputs=(z,))


def test_a_capture_that_fails_is_played_step_by_step():
    class Refusing(StubCuda):
        def library_work(self, work):
            if self.capturing is not None: return (CudaResult.CUDA_ERROR_INVALID_VALUE,)
            return super().library_work(work)
        def cuStreamEndCapture(self, stream):
            super().cuStreamEndCapture(stream)
            return (CudaResult.CUDA_ERROR_INVALID_VALUE, None)
    plain, graphed = ready(mixed(), Refusing(STUB_KERNELS)), ready(mixed())
    assert plain.graph() is None and graphed.graph() is not None
    assert plain.run(0, by_graph=True)[0] == graphed.run(0, by_graph=True)[0]
    told = library_time(RaceTrack(plain.driver), plain, 3)
    assert not told['graph'] and 0.3 < told['share'] < 0.4


def test_the_record_says_how_much_was_the_librarys():
    found = launch(order_of([mixed()], [[b'copy']], profile=False, most=20, seconds=5), api=STUB)
    assert found.data['plans'][0]['library']['operations'] == ['sum'] and found.duration.us > 140
    assert 'sum by torch, 1 library call: 3' in str(found) and len(found.outputs[0][0][0]) == 4


def test_what_a_kernel_did_not_write_goes_through_the_library_and_is_seen():
    assert launch(order_of([mixed('copy_less')], [[b'copy_less']], timed=False), api=STUB).status in ('uninitialised', 'unwritten')


def test_a_tool_that_watches_kernels_gets_no_library():
    with pytest.raises(KernelError, match='line 12: torch does sum'):
        PreparedPlan(CudaDriver(StubCuda(STUB_KERNELS)), mixed(), [b'copy'], apart=True)
