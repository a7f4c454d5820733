"""The reader of launch plans against changed and invented text: an admitted plan keeps all its promises, and anything
else is a `KernelError`, never another exception."""
import copy
import json
import random

import pytest
from kernel_lab.core.errors import KernelError
from kernel_lab.gpu.plan.launch_plan import LaunchPlan
from kernel_lab.gpu.plan.nodes import (Alternative, Buffer, BufferView, Fill, GpuKernel, KernelLaunch, LibraryCall,
                                       Pointer)
from kernel_lab.gpu.plan.ptx import EXAMPLE_PTX, admit_ptx, without_paths

KERNELS = tuple(GpuKernel('double', 'double', EXAMPLE_PTX, (n, 1, 1), ('*fp32', 'i32'), line=5) for n in (128, 256))
VIEW = BufferView(0, 0, (1024,), (1,), 'float32')
PLAN = LaunchPlan(
    'doubled', 'triton', 'sm_90', (Buffer('x', (1024,), 'float32', 4096, 'input'), Buffer('y', (8,), 'float32', 32)), KERNELS,
    (Fill(BufferView(1, 0, (8,), (1,), 'float32'), 0.0, 3), KernelLaunch(tuple(Alternative(k, (4, 1, 1), (Pointer(0, 16), 3)) for k in (0, 1)), 9),
     LibraryCall('aten.sum', (0,), (1,), 10)), (VIEW,), (BufferView(1, 0, (8,), (1,), 'float32'),), 'text', {'triton': '3.7.1'})
ODD = [None, True, -1, 0, 1, 2**31, 2**63, 10**40, 1.5, float('inf'), '', 'x', 'a' * 300, '\x1b[2J', [], {}, [[]], [0], {'n': 1}, 'é', 'inf']


def places(node, path=()):
    "The paths of all values in JSON data."
    yield path
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inside: yield from places(value, (*path, key))


def put(data, path, value):
    "The data with the value at a path replaced, or taken out where `value` is `put` itself."
    data = copy.deepcopy(data)
    at = data
    for key in path[:-1]: at = at[key]
    if value is put: del at[path[-1]]
    else: at[path[-1]] = value
    return data


def keeps_its_promises(plan):
    "What a launcher relies on."
    for v in (*plan.inputs, *plan.outputs): assert 0 <= v.offset <= v.end <= plan.buffers[v.buffer].bytes
    for launch in plan.launches:
        assert launch.alternatives
        for a in launch.alternatives:
            kernel = plan.kernels[a.kernel]
            admit_ptx(kernel.ptx, kernel.entry)
            assert len(a.args) == len(kernel.params) and all(1 <= n < 2**31 for n in a.grid)
            for x, t in zip(a.args, kernel.params):
                assert isinstance(x, Pointer) is (t[0] == '*')
                if isinstance(x, Pointer): assert 0 <= x.offset <= plan.buffers[x.buffer].bytes
    str(plan), plan.hash, plan.peak_bytes, plan._repr_html_()


def test_every_value_replaced_by_every_odd_one():
    data, admitted, refused = json.loads(PLAN.to_json()), 0, 0
    for path in places(data):
        if not path or len(path) > 1 and path[0] == 'kernels' and path[1] == 1: continue
        for value in (put, *ODD):
            try: plan = LaunchPlan.from_json(json.dumps(put(data, path, value)))
            except KernelError as e:
                assert e.kind == 'invalid'
                refused += 1
                continue
            keeps_its_promises(plan)
            admitted += 1
    assert refused > 1000 and admitted > 50          # names, lines and values may be others


def test_random_text_is_refused():
    text, rng = PLAN.to_json(), random.Random(0)
    for _ in range(300):
        at, n = rng.randrange(len(text)), rng.randrange(1, 40)
        changed = text[:at] + rng.choice(['', '[' * n, '}' * n, '"', '0' * n, ',', '\\u0000', text[:n]]) + text[at + n:]
        try: plan = LaunchPlan.from_json(changed)
        except KernelError as e: assert e.kind == 'invalid'
        else: keeps_its_promises(plan)


@pytest.mark.parametrize('line', [
    '#include "/etc/passwd"', '  # 1 "/etc/passwd"', '.include "x"', '.INCBIN "x"', '\t.file 3 "/etc/passwd"', '.file 3 "../x"',
    '.file 3 "a\\\\b"', '.extern .func (.param .b32 x) system (.param .b64 y);', '\x00', '\x1b[0m', '\u202e'])
def test_hostile_ptx_is_refused(line):
    with pytest.raises(KernelError): admit_ptx(f'{EXAMPLE_PTX}\n{line}\n', 'double')


def test_paths_of_the_machine_are_taken_out():
    told = EXAMPLE_PTX.replace('"<kernel>"', '"/srv/somebody" "<kernel>"') + '\t.file\t2 "/opt/x/standard.py"\n'
    assert '/' not in without_paths(told).replace('//', '') and '"standard.py"' in without_paths(told)
    admit_ptx(without_paths(told), 'double')


def test_infinite_and_huge_numbers_of_arguments():
    data = json.loads(PLAN.to_json())
    for n, fine in ((2**63, True), (2**64, False), ('inf', True), ('1', False), (None, False), ([0], False)):
        text = json.dumps(put(data, ('steps', 1, 'launch', 0, 'args', 1), {'n': n}))
        if fine: LaunchPlan.from_json(text)
        else:
            with pytest.raises(KernelError): LaunchPlan.from_json(text)
