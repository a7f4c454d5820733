"""What an evaluation must never do: believe the child, pass a wrong number, hang, leave something behind, or lie about
its tier."""
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lab.agents.tools import ToolBench, use_tool
from kernel_lab.core.errors import ERROR_KINDS, KernelError, SimulatorError, UsageError
from kernel_lab.evaluate import pipeline as module
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.pool.dispatch import evaluate_many
from kernel_lab.evaluate.records.evaluation import Evaluation
from kernel_lab.evaluate.records.run import Run, Step
from kernel_lab.evaluate.records.verification import Status
from kernel_lab.evaluate.sandbox.protocol import ChildReply, error_from_message, verdict
from kernel_lab.evaluate.sandbox.server import readable_paths
from kernel_lab.evaluate.sandbox.run import Limits, admit_program, run_job, trace_in_child, trace_kernel
from kernel_lab.evaluate.store.store import Store
from kernel_lab.evaluate.verification.verify import compare, tile_map, verify
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang.trace import trace_source
from kernel_lab.tasks.suite.registry import BY_HAND, get_task
from kernel_lab.tasks.model.workload import Kernel, Tolerance, error_ratio
from kernel_lab.tasks.model.task import task_from
from bad_kernels import GOOD, TASK, attack, children, left_behind, numbers

X = ArraySpec((128, 64), 'float32')
FIRST = {t.name: t.first_kernel for t in BY_HAND}


@pytest.mark.parametrize('name', FIRST)
def test_first_kernels(name):
    "Correct on three fresh seeds, as fast as themselves, and the record survives JSON."
    e = evaluate(FIRST[name], name, 'small')
    assert (e.status, e.speedup, len({r.seed for r in e.verification.seeds})) == (Status.CORRECT, 1.0, 3)
    assert Evaluation.from_dict(json.loads(json.dumps(e.to_dict(), allow_nan=False))).to_dict() == e.to_dict()


@pytest.mark.parametrize('chip', ['trn1', 'trn2'])
def test_chips(chip): assert evaluate(GOOD, TASK, chip=chip, seeds=1).chip == chip


def test_baseline_is_looked_up_once():
    module._BASELINES.clear()
    slow = GOOD.replace('    nisa.tensor_tensor', '    nisa.tensor_copy(dst=tile, src=tile)\n    nisa.tensor_tensor')
    task = replace(TASK, name='twice', first_kernel=Kernel(slow))
    a = evaluate(GOOD, task, seeds=1)
    b = evaluate(GOOD, task, seeds=1)
    assert a.speedup == b.speedup > 1 and len(module._BASELINES) == 1
    assert 'baseline' in a.seconds and b.seconds['baseline'] < a.seconds['baseline']
    assert evaluate(GOOD, task, seeds=1, baseline_us=2 * a.latency_us).speedup == 2


def test_no_speed_without_correctness():
    good = evaluate(GOOD, TASK, seeds=1)
    for status in set(Status) - {Status.CORRECT}:
        with pytest.raises(SimulatorError): replace(good, status=status)
    with pytest.raises(SimulatorError): replace(good, verification=None)
    with pytest.raises(ValueError): replace(good, status='splendid')


def test_log_is_heard_as_it_comes():
    lines = []
    e = evaluate(GOOD, TASK, seeds=1, log=lines.append)
    assert lines == e.log.splitlines() and any('3 instructions' in line for line in lines)


def test_a_fault_of_ours_is_recorded(monkeypatch):
    def broken(*args): raise ZeroDivisionError('ours')
    monkeypatch.setattr(module, 'verify', broken)
    e = evaluate(GOOD, TASK, seeds=1)
    assert e.status == Status.LAB_ERROR and 'fault of the lab' in e.log and 'Traceback' not in e.log


def test_a_reference_that_fails_is_the_persons_business():
    task = replace(TASK, name='broken', reference=lambda x: x @ x)
    with pytest.raises(UsageError, match='reference'): evaluate(GOOD, task, seeds=1)


# the border

def forged(text):
    return attack(f'text = {text!r}', 'for fd in range(3, 64):', '    try: os.write(fd, b"P" + text.encode())',
                  '    except OSError: pass', 'os._exit(0)')


def test_a_forged_program_for_other_inputs():
    other = trace_source(GOOD, None, [ArraySpec((64, 32), 'float32')], 'trn1').to_json()
    e = evaluate(forged(other), TASK, seeds=1)
    assert (e.status, e.error['kind']) == (Status.CRASHED, 'invalid') and 'other inputs' in str(e)


def test_a_forged_program_gains_nothing():
    "It may claim another chip and another text; both are ours, and it costs what its instructions cost."
    claimed = json.loads(trace_source(GOOD, None, [X], 'trn2').to_json()) | {'chip': 'trn1', 'source': 'innocent'}
    e, honest = (evaluate(k, TASK, seeds=1, baseline_us=1.0) for k in (forged(json.dumps(claimed)), GOOD))
    assert e.status == Status.CORRECT and e.latency_us == honest.latency_us
    assert e.profile.timeline.program.chip == 'trn2' and e.profile.timeline.program.source == e.kernel.source


@pytest.mark.parametrize(
    'text',
    [
        '',
        '[]',
        '{}',
        'null',
        '7',
        '[' * 10_000,
        '{"format": 1}',
        '9' * 5000,
        '{"format": 1, "tensors": [[]]}',
        'NaN',
        '\ud800',
    ],
)
def test_junk_programs(text):
    with pytest.raises(KernelError) as e: admit_program(text, Kernel(GOOD), [X], 'trn1')
    assert e.value.kind == 'invalid'


PROGRAM = json.loads(trace_source(GOOD, None, [X], 'trn1').to_json())
JUNK = st.one_of(st.none(), st.booleans(), st.integers(-2 ** 70, 2 ** 70), st.floats(), st.text(max_size=5),
                 st.just([]), st.just({}), st.lists(st.integers(-3, 3), max_size=3))


def places(x, at=()):
    "Paths of everything inside JSON data."
    yield at
    for k, v in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        yield from places(v, (*at, k))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from([p for p in places(PROGRAM) if p and p[0] != 'source']), JUNK)
def test_a_program_with_one_thing_wrong(path, junk):
    "Whatever stands in its place: refused, found wrong, or harmless; never an error of ours and never an endless run."
    data = json.loads(json.dumps(PROGRAM))
    where = data
    for k in path[:-1]: where = where[k]
    where[path[-1]] = junk
    reply = ChildReply(json.dumps(data), None, ('process',))
    def child(kernel, specs, chip, limits):
        try: return admit_program(reply.text, kernel, specs, chip), reply
        except KernelError as e: return e, reply
    before, module.trace_kernel = module.trace_kernel, child
    try: e = evaluate(GOOD, TASK, seeds=[1], baseline_us=1.0)
    finally: module.trace_kernel = before
    assert e.status != Status.LAB_ERROR, (path, junk, str(e))


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30), st.sampled_from(ERROR_KINDS)),
        lambda x: st.lists(x, max_size=3)
        | st.dictionaries(st.sampled_from(['kind', 'message', 'line', 'limit', 'hint', 'x']), x, max_size=6),
        max_leaves=8,
    )
)
def test_any_error_from_the_child_is_an_error(data):
    e = error_from_message(json.dumps(data))
    assert e.kind in ERROR_KINDS and (e.line is None or type(e.line) is int) and str(e).isprintable() | ('\n' in str(e))
    json.dumps(e.to_dict())


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from(['end', 'timeout', 'flood']),
    st.sampled_from([0, 1, 7, -9, -11, -24, None]),
)
def test_any_bytes_have_a_verdict(data, how, code):
    text, error = verdict(data, how, code, Limits())
    assert (text is None) != (error is None)


# the child

def test_record_of_the_tier():
    tier = evaluate(GOOD, TASK, seeds=1).versions['sandbox'].split('+')
    assert tier[:2] == ['process', 'rlimits']
    if sys.platform == 'linux': assert 'no_new_privs' in tier


def test_a_container_that_refuses_namespaces():
    "Where `unshare` is forbidden the other layers stay, and the record does not claim the one that is missing."
    if sys.platform != 'linux': pytest.skip('needs Linux')
    code = ('import os\nfrom kernel_lab.evaluate.sandbox.confine import bind_to_parent\nimport '
            'kernel_lab.evaluate.sandbox.confine as walls, ctypes\n'
            'deny = b"".join(walls._deny(nr) for nr in (272, 97))\n'
            'bind_to_parent(); code = walls._op(0x20, 0) + deny + walls._op(6, walls.ALLOW); buffer = '
            'ctypes.create_string_buffer(code, len(code))\n'
            'import struct; p = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))\n'
            'walls.prctl(walls.PR_SET_SECCOMP, 2, ctypes.create_string_buffer(p, len(p)))\n'
            'from kernel_lab.evaluate.sandbox.run import sandbox_status; h = sandbox_status(); print(h.tier, '
            '*h.layers); print(*h.refused)')
    first, refused = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                                    timeout=60).stdout.splitlines()
    assert first.split()[0] == 'S2' and 'namespaces' not in first and 'seccomp' in first and refused == 'namespaces'


def test_files_the_child_holds():
    "Standard streams are the null device; besides them there is the place for the answer, and nothing that listens."
    code = (
        'held = {}\nfor fd in range(64):\n    try: held[fd] = oct(os.fstat(fd).st_mode & 0o170000)\n    except OSError:'
        ' pass\nraise ValueError(held)'
    )
    _, reply = trace_kernel(Kernel(attack(*code.splitlines())), [X])
    assert "{0: '0o20000', 1: '0o20000', 2: '0o20000', 3: '0o100000'}" in str(reply.error), str(reply.error)


def test_the_child_has_no_folder_of_ours():
    "Its root has the libraries in it and no more; where it has no root of its own, folders can be seen and not read."
    names = [
        n for n in ('home', 'tmp', 'proc', 'etc', 'dev') if not any(p.startswith(f'/{n}/') for p in readable_paths())]
    _, reply = trace_kernel(Kernel(attack(f'raise ValueError([os.getcwd(), [n for n in {names!r} if '
                                          'os.path.exists("/" + n)]])')), [X])
    if 'root' in reply.layers: assert "['/', []]" in str(reply.error), str(reply.error)
    _, reply = trace_kernel(Kernel(attack('os.listdir("/")')), [X])
    if 'landlock' in str(reply.layers): assert 'Permission denied' in str(reply.error), str(reply.error)


def test_nothing_of_the_reference_is_in_the_child():
    "No torch, no tasks, no tests: there is nothing to look up."
    _, reply = trace_kernel(Kernel(attack('raise ValueError([m for m in sys.modules if m.split(".")[0] in ("torch", '
                                          '"pytest") or m.startswith("kernel_lab.tasks")])')), [X])
    assert 'ValueError: []' in str(reply.error)


def test_start_is_quick():
    "Python, numpy and the tracer, but not torch; the best of five, because the machine may be busy."
    assert min(trace_kernel(Kernel(GOOD), [X])[1].seconds['start'] for _ in range(5)) < 1.5


def test_the_parent_dies(tmp_path):
    "A child never outlives the process that started it."
    if sys.platform != 'linux': pytest.skip('needs PDEATHSIG')
    code = ('import sys; from kernel_lab.evaluate.sandbox.run import *; from kernel_lab.tasks.model.task import '
            'Kernel; from kernel_lab.nki.ir.nodes import ArraySpec\n'
            'trace_in_child(Kernel("def kernel(x):\\n    import os\\n    while True: pass"), [ArraySpec((128, 64))])')
    # a killed parent cannot clean up
    parent = subprocess.Popen([sys.executable, '-c', code], env={**os.environ, 'TMPDIR': str(tmp_path)})
    try:
        for _ in range(600):
            if mine := [
                    pid for pid in os.listdir('/proc')
                    if pid.isdigit() and _parent_of(pid) == parent.pid and 'serve(' in _command_of(pid)]:
                break
            time.sleep(0.05)
        time.sleep(1)
    finally: parent.kill(); parent.wait()
    for _ in range(100):
        if not any(os.path.exists(f'/proc/{pid}') for pid in mine): break
        time.sleep(0.05)
    assert mine and not any(os.path.exists(f'/proc/{pid}') for pid in mine)


def _parent_of(pid):
    try: return int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])
    except OSError: return None


def _command_of(pid):
    try: return open(f'/proc/{pid}/cmdline').read()
    except OSError: return ''


def test_ctrl_c_while_tracing():
    "The exception goes through, and the child is gone."
    assert trace_in_child(Kernel(GOOD), [X])                           # the zygote, which stays
    before, since = children(), time.monotonic()
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt): evaluate('def kernel(x):\n    while True: pass', TASK)
    assert not left_behind(before) and time.monotonic() - since < 30


def test_two_threads():
    "A panel evaluates in a thread of its own."
    out = {}
    def go(name): out[name] = evaluate(FIRST[name], name, 'small', seeds=1)
    threads = [threading.Thread(target=go, args=(n,)) for n in ('softmax', 'matmul')]
    for t in threads: t.start()
    for t in threads: t.join()
    assert [out[n].status for n in ('softmax', 'matmul')] == ['correct', 'correct']


def test_a_child_that_cannot_start(monkeypatch):
    "A fault of ours is one sentence, and never the kernel's fault."
    from kernel_lab.evaluate.sandbox import run as sandbox, server
    monkeypatch.setattr(server, 'import_paths', lambda: ['/nowhere'])
    monkeypatch.setattr(sandbox, '_SERVERS', {})
    with pytest.raises(SimulatorError, match='did not start'): run_job('json:dumps', {'source': ''})
    e = evaluate(GOOD, TASK, seeds=1)
    assert e.status == Status.LAB_ERROR and 'No module named' in e.log


def test_a_value_for_every_kernel():
    answers = [trace_in_child(Kernel(s), [X]) for s in (GOOD, 'def', '')]
    assert [getattr(a, 'kind', 'program') for a in answers] == ['program', 'parse', 'entry']


# the comparison

TOL = Tolerance(1e-3, 1e-6, 'a test')
values = st.sampled_from([
    0.0, -0.0, 1.0, 1.0005, 1.002, -1.0, 1e-7, 1e30, 3e38,
    float('inf'), float('-inf'),
    float('nan')])


@given(st.lists(st.tuples(values, values), min_size=1, max_size=40))
def test_passing_means_close_and_finite(pairs):
    got, want = (np.array(x, np.float32) for x in zip(*pairs))
    ok = [
        w == g or
        bool(np.isfinite(g) and np.isfinite(w) and abs(float(g) - float(w)) <= TOL.atol + TOL.rtol * abs(float(w)))
        for g, w in zip(got, want)]
    report, ratio = compare(got, want, TOL)
    assert ((ratio <= 1) == ok).all() and report.passed == all(ok)
    assert report.first_bad == (None if all(ok) else (ok.index(False),))
    assert report.mismatch_share == pytest.approx(1 - sum(ok) / len(ok))


@pytest.mark.parametrize(
    'spoil',
    [
        lambda y: y * 0,
        lambda y: y * 1.01,
        lambda y: -y,
        lambda y: np.roll(y, 1, -1),
        lambda y: np.where(np.arange(y.shape[-1]) == 9, np.nan, y),
        lambda y: np.where(np.indices(y.shape).sum(0) == 0, y + 0.1, y),
    ],
)
@pytest.mark.parametrize('name', FIRST)
def test_each_task_notices(name, spoil):
    "Zeros, one percent, a sign, a shifted row, a NaN column, a single element: none passes any task's tolerance."
    task = get_task(name)
    w = task.workload('small')
    want, = task.expected(task.draw(w, 5))
    assert compare(want, want, task.tolerance(w))[0].passed
    assert not compare(spoil(want).astype(want.dtype), want, task.tolerance(w))[0].passed


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_the_map_holds_every_element(rows, cols, k):
    ratio = np.zeros((rows, cols), np.float32)
    at = np.unravel_index(k % ratio.size, ratio.shape)
    ratio[at] = 7
    m = tile_map(ratio)
    assert len(m['error']) <= 256 and len(m['error'][0]) <= 256 and m['first_bad'] == at
    assert m['error'][at[0] // m['cell'][0]][at[1] // m['cell'][1]] == 7.0
    assert all(tile % cell == 0 or cell % tile == 0 for tile, cell in zip(m['tile'], m['cell']))


def test_two_outputs_and_an_integer():
    def both(x): return x * 2, x.argmax(-1)
    task = task_from(both, numbers, name='both')
    got = task.draw(None, 1)
    fake = trace_source(GOOD.replace('return out', 'return out, out'), None, [X], 'trn1')
    with pytest.raises(KernelError, match=r'output 1 has the wrong shape \(expected int32\[128\]'):
        verify(fake, task, seeds=1)
    assert error_ratio(got['x'], got['x'], TOL).max() == 0


def test_given_seeds_are_used_and_fresh_ones_differ():
    program = trace_source(GOOD, None, [X], 'trn1')
    assert [r.seed for r in verify(program, TASK, seeds=[4, 5]).seeds] == [4, 5]
    a, b = ({r.seed for r in verify(program, TASK, seeds=3).seeds} for _ in range(2))
    assert len(a | b) == 6


# the records

def test_a_run_survives_json():
    e = evaluate(GOOD, TASK, seeds=1)
    bad = evaluate(GOOD.replace('nl.add', 'nl.multiply'), TASK, seeds=1)
    run = Run('r', TASK.name, 'full', 'trn1', 'rewrite',
              tuple(Step('r', k, 'move', 'why', 'more', v) for k, v in enumerate((e, bad))))
    again = Run.from_dict(json.loads(json.dumps(run.to_dict(), allow_nan=False)))
    assert again.to_dict() == run.to_dict() and again.best.index == 0 and again.rows() == run.rows()


def test_html_of_hostile_text():
    tag = '<img src=x onerror=alert(1)>'
    e = evaluate(Kernel(f'def kernel(x): raise ValueError({tag!r})', name=tag), replace(TASK, name=tag), seeds=1)
    step = Step('r', 0, tag, tag, tag, e)
    run = Run('r', tag, tag, 'trn1', tag, (step,))
    assert not any(tag in x._repr_html_() for x in (e, step, run))


LISTED = GOOD.replace('    tile = nl', '    parts = [n for n in range(3)]\n    tile = nl')


def test_python_that_the_compiler_does_not_take_is_a_warning_everywhere():
    e = evaluate(LISTED, TASK, seeds=1)
    says, = e.warnings
    line = 1 + LISTED.splitlines().index('    parts = [n for n in range(3)]')
    assert e.status == Status.CORRECT and says.startswith(f'Line {line}: a list comprehension')
    assert f'warning: {says}' in e.log.splitlines()
    bench = ToolBench(TASK, None, options={'seeds': 1})
    for name in ('compile', 'verify', 'profile'):
        text, ok = use_tool(bench, name, {'source': LISTED})
        assert ok and says in text, name
    text, ok = use_tool(bench, 'submit', dict(source=LISTED, move='none', why='a test', expected='nothing'))
    assert ok and says in text
    assert evaluate(GOOD, TASK, seeds=1).warnings == ()


def test_strict_refuses_it_and_is_no_answer_to_those_who_did_not_ask(tmp_path):
    refused = evaluate(LISTED, TASK, seeds=1, strict=True)
    assert (refused.status, refused.error['kind']) == (Status.UNSUPPORTED, 'unsupported')
    assert LISTED.splitlines()[refused.error['line'] - 1] == '    parts = [n for n in range(3)]'
    assert evaluate(GOOD, TASK, seeds=1, strict=True).status == Status.CORRECT
    text, ok = use_tool(ToolBench(TASK, None, options={'strict': True}), 'compile', {'source': LISTED})
    assert not ok and 'a list comprehension' in text
    with closing(Store(tmp_path / 's.db')) as store:
        for strict, status in ((True, Status.UNSUPPORTED), (False, Status.CORRECT)) * 2:
            e = evaluate(LISTED, TASK, seeds=1, strict=strict, store=store)
            assert e.status == status
        assert e.cached
        evaluate(GOOD, TASK, seeds=1, store=store)
        assert evaluate(GOOD, TASK, seeds=1, store=store, strict=True).cached
        many = dict(evaluate_many([LISTED, GOOD], TASK, seeds=1, store=store, strict=True, workers=1))
        assert (many[0].status, many[1].status) == (Status.UNSUPPORTED, Status.CORRECT)


def test_the_earlier_dialect_may_use_all_of_python():
    earlier = '''
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def kernel(x):
    parts = [n for n in range(3)]
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, 2 * nl.load(x))
    return out
'''
    e = evaluate(earlier, TASK, seeds=1, strict=True)
    assert (e.status, e.warnings) == (Status.CORRECT, ())
