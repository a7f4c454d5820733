"""What the lab did when `tests/frozen/behaviour.json.gz` was made, it does now: programs, outputs, times, refusals, verdicts.

After a change that is meant to change behaviour: `python tools/freeze.py record --only GLOB`, and say so in the commit.
"""
import copy
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / 'tools' / 'freeze.py'
FEW = ('suite/softmax', 'suite/matmul', 'move/softmax 0', 'random/000', 'mistake/000', 'cores/SV*', 'ranks/add*',
       'limit/C4.1 *', 'face/names of nki.isa', 'face/tables', 'face/commands')


def tool():
    "tools/freeze.py as a module."
    spec = importlib.util.spec_from_file_location('freeze', TOOL)
    module = sys.modules['freeze'] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compared(*words):
    "The finished comparison, in a process of its own."
    return subprocess.run([sys.executable, TOOL, 'compare', *words], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope='module')
def freeze():
    with pytest.MonkeyPatch.context() as m:
        for name in ('OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'KERNEL_LAB_STORE'): m.setenv(name, '')       # put back afterwards
        m.setattr(sys, 'path', [*sys.path])
        yield tool()


@pytest.fixture(scope='module')
def record(freeze): return freeze.read(freeze.RECORD)


def test_a_few_kernels_behave_as_they_did():
    done = compared('--workers', '1', *(f'--only={g}' for g in FEW))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_every_kernel_behaves_as_it_did():
    done = compared()
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]


@pytest.mark.parametrize('case, aspect, value', [('suite/softmax', 'latency trn1', 1.0), ('suite/softmax', 'outputs batched', 'other'), ('suite/relu', 'program trn2', 'other'),
                                                 ('suite/matmul', 'verdict', 'wrong_result'), ('limit/C4.1 broken', 'diagnostics trn3', [])])
def test_a_changed_aspect_is_reported(freeze, record, case, aspect, value):
    other = copy.deepcopy(record)
    assert other['cases'][case][aspect] != value
    other['cases'][case][aspect] = value
    (found,) = freeze.differences(record, other)
    assert found == (case, aspect, record['cases'][case][aspect], value) and case in freeze.table_of(record, other, [found], [])


def test_the_last_digit_of_a_profile_counts(freeze, record):
    other = copy.deepcopy(record)
    profile = other['cases']['suite/softmax']['profile trn1']
    profile['latency, us'] = freeze.np.nextafter(profile['latency, us'], 0).item()
    assert [d[:2] for d in freeze.differences(record, other)] == [('suite/softmax', 'profile trn1: latency, us')]


def test_a_kernel_that_is_gone_or_new_is_reported(freeze, record):
    other = copy.deepcopy(record)
    other['cases']['suite/brand_new'] = other['cases'].pop('suite/softmax')
    assert {d[0] for d in freeze.differences(record, other)} == {'suite/brand_new', 'suite/softmax'}
    assert freeze.differences(record, other, ['trial']) == []


def test_other_roundings_leave_out_only_what_depends_on_them(freeze, record):
    other = copy.deepcopy(record) | {'numerics': 'another machine'}
    other['cases']['suite/softmax'] |= {'outputs batched': 'other', 'latency trn1': 1.0}
    assert [d[1] for d in freeze.differences(record, other)] == ['latency trn1']


def test_the_record_covers_both_dialects_and_names_no_machine(freeze, record):
    from collections import Counter
    count = Counter(k.split('/')[0] for k in record['cases'])
    assert sum(count.values()) >= 900 and set(count) >= {'suite', 'large', 'trial', 'misuse', 'move', 'random', 'mistake', 'cores', 'ranks', 'limit', 'bad', 'cheat', 'face'}
    assert sum('neuronxcc' in text for text, *_ in record['texts'].values()) > 20
    text = freeze.json.dumps(record)
    assert not any(word in text for word in (str(ROOT), str(Path.home()), freeze.tempfile.gettempdir())) and freeze.RECORD.stat().st_size < 900_000


def test_a_machine_that_rounds_otherwise_leaves_what_depends_on_it(freeze):
    case = lambda us, outputs: {'latency': us, 'outputs batched': outputs, 'verdict': outputs}
    before = dict(format=1, numerics='one', texts={}, cases={'a/1': case(1, 'x'), 'a/2': case(3, 'z')})
    now = dict(format=1, numerics='other', texts={}, cases={'a/1': case(2, 'y')})
    made = freeze.put_into(before, now, ['a/1'])
    assert made['numerics'] == 'one' and made['cases'] == {'a/1': {**case(1, 'x'), 'latency': 2}, 'a/2': case(3, 'z')}
    same = freeze.put_into(before, {**now, 'numerics': 'one'}, ['a/1'])
    assert same['cases'] == {'a/1': case(2, 'y'), 'a/2': case(3, 'z')}
