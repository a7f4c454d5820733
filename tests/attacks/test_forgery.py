"""A hostile child may send any Program. What was found to be right, and faster than the hardware can be, is refused
or takes its time; and of mutants of honest programs none gains by it, but for the changes that an honest kernel
might have made (`forgery.LEGITIMATE`)."""
import copy
import json
import time

import numpy as np
import pytest
import torch

import forgery
from forgery import HEAD, Base, base, gains

from kernel_lab.core.errors import KernelError, within
from kernel_lab.evaluate.verification.plausibility import Evidence, run_guards, unread
from kernel_lab.evaluate.sandbox.run import admit_program
from kernel_lab.nki.checks.checker import check
from kernel_lab.tasks.model.workload import Workload
from kernel_lab.tasks.model.task import task_from

EARLIER = '''
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import neuronxcc.nki.isa as nisa
'''


def own(f, shapes, source, chip='trn1', entry=None):
    "A `Base` of a function of torch and shapes of its inputs."
    draw = lambda w, rng: {k: rng.standard_normal(v, np.float32) for k, v in w.shapes.items()}
    return Base(task_from(f, draw, name=f'own {hash(source) % 10**6}', workloads=[Workload('full', shapes)]), source,
                entry, 'full', chip)


def instructions(body):
    for o in body: yield from instructions(o['body']) if 'loop' in o else (o,)


def operands(data, t=None):
    "The accesses of a program (to tensor `t`), each as a dict to be changed."
    return [
        a for o in instructions(data['body']) for side in (o['ins'], o['outs']) for a in side.values()
        if isinstance(a, dict) and t in (None, a['t'])]


def forged(b, change):
    "The text of a base's program after `change(data)`."
    data = copy.deepcopy(b.data)
    change(data)
    return json.dumps(data)


def refusal(b, change):
    found = b.tried(forged(b, change))
    assert isinstance(found, KernelError), found
    return str(found)


@pytest.mark.slow
def test_the_honest_ones_pass():
    assert all(base(n).us == base(n).tried(json.dumps(base(n).data)) > 20 for n in forgery.BASES)


# --- what lies where ---

def straight(d):
    "Transposes on Tensor become copies that read down the columns."
    def walk(body):
        for k, o in reversed([*enumerate(body)]):
            if 'loop' in o: walk(o['body'])
            elif o['op'] == 'nc_transpose':
                source = {**o['ins']['data'], 'a': o['ins']['data']['a'][::-1]}
                body[k:k + 2] = [{**body[k + 1], 'ins': {'src': source}}]
    walk(d['body'])


@pytest.mark.parametrize('name', ['swiglu', 'causal_attention'])
def test_a_transpose_is_not_free(name): assert 'crosses from one partition to another' in refusal(base(name), straight)


@pytest.mark.parametrize('mask', [[], [[[0], []]]], ids=['plain', 'masked'])
def test_blocks_are_no_partitions(mask):
    "Two blocks of 64 partitions, taken as one tile of 128: half the time."
    def change(d):
        for t in d['tensors'][2:]: t[1], t[5] = [2, 64, t[1][1]], 1
        for o in instructions(d['body']): o['m'] = mask
    assert 'crosses from one partition to another' in refusal(base('rows'), change)


@pytest.fixture(scope='module')
def narrow(): return own(lambda x: x.softmax(1), {'x': (128, 512)}, forgery.ROWS)


@pytest.mark.parametrize('k', [0, 1], ids=['argument', 'result'])
def test_arguments_and_results_are_in_hbm(narrow, k):
    def change(d):
        d['tensors'][k][3] = 'sbuf'
        copies = [o for o in d['body'] if o['op'] == 'dma_copy']
        d['body'].remove(copies[-k])                                     # the load, or the store
        for a in operands(d, t=(2, 3)[k]): a.update(t=k, p=0)
    assert 'is not in HBM' in refusal(narrow, change)


SHARED = HEAD + '''
def k(x, w):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    c = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=c, src=w)
    for i in nl.affine_range(2):
        t = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[i * 128:(i + 1) * 128, :])
        nisa.tensor_tensor(dst=t, data1=t, data2=c, op=nl.multiply)
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128, :], src=t)
    return out
'''


@pytest.fixture(scope='module')
def shared(): return own(lambda x, w: x * torch.cat([w, w]), {'x': (256, 512), 'w': (128, 512)}, SHARED)


def test_cores_share_no_tile(shared):
    def change(d): next(o for o in d['body'] if 'loop' in o)['kind'] = 'parallel'
    assert 'c is a tile of another core' in refusal(shared, change)


def test_a_core_does_not_read_anothers_tile(shared):
    def change(d):
        load, loop = d['body']
        for t in d['tensors']: t[7] = []
        piece = lambda core, body: {'loop': f'core{core}.1', 'n': 1, 'kind': 'core', 'line': 0, 'body': body}
        d['body'] = [piece(0, [load]), piece(1, [loop])]
    assert 'is a tile of another core' in refusal(shared, change)


def test_nothing_runs_between_the_cores(shared):
    def change(d):
        for t in d['tensors']: t[7] = []
        d['body'][1:] = [{'loop': 'core0.1', 'n': 1, 'kind': 'core', 'line': 0, 'body': d['body'][1:]}]
    assert 'belongs to none' in refusal(shared, change)


# --- the same by another name ---

PRODUCT = EARLIER + '''
@nki.jit
def k(a, w):
    out, x, y = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm), nl.load(a), nl.load(w)
    CONVERT
    for i in nl.sequential_range(8): r = nl.multiply(nisa.nc_matmul(x, y), SCALE)
    nl.store(out, r)
    return out
'''
SHAPES = {'a': (128, 128), 'w': (128, 512)}


@pytest.fixture(scope='module')
def product(): return own(lambda a, w: a.T @ w, SHAPES, PRODUCT.replace('CONVERT', '').replace('SCALE', '1.0'))


def test_integers_go_through_the_array_as_slowly(product):
    "Fixed-point numbers of 32 bits have the precision of fp32."
    whole = PRODUCT.replace('CONVERT', 'x, y = nl.copy(x * 2.0**20, dtype=nl.int32), nl.copy(y * 2.0**20, '
                                       'dtype=nl.int32)').replace('SCALE', '2.0**-40')
    assert own(lambda a, w: a.T @ w, SHAPES, whole).us > product.us


def test_tf32_by_another_name_is_rounded(product):
    def change(d):
        for o in instructions(d['body']):
            for a in o['ins'].values() if o['op'] == 'nc_matmul' else ():
                row = [*d['tensors'][a['t']]]
                row[2], row[4], row[9] = 'tfloat32', 'scratch', a['t']
                d['tensors'].append(row)
                a['t'] = len(d['tensors']) - 1
    assert product.tried(forged(product, change)) == 'wrong'


REPEATED = (
    EARLIER
    + '''
@nki.jit
def k(x):
    out, t = nl.ndarray((1024, 512), dtype=nl.float32, buffer=nl.shared_hbm), nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    for i in nl.sequential_range(8):
        nisa.dma_copy(dst=t, src=x)
        nl.store(out[i * 128:(i + 1) * 128], t)
    return out
'''
)


def test_what_an_alias_changed_is_loaded_again():
    "A load of what is still there costs nothing; what was written through another name is not."
    b, seen = own(lambda x: x.repeat(8, 1), {'x': (128, 512)}, REPEATED), []
    for alias in (False, True):
        def change(d):
            body = d['body'][0]['body']
            load = body[0]['outs']['dst']
            if alias: d['tensors'].append([*d['tensors'][load['t']][:9], load['t'], []])
            written = {**load, 't': len(d['tensors']) - 1} if alias else load
            body.insert(
                1, {
                    'op': 'tensor_scalar', 'outs': {'dst': written}, 'ins': {'data': load, 'operand0': 1.0}, 'attrs': {
                        'op0': 'multiply'}, 'e': 'Vector', 'm': [], 'line': 9})
        seen.append(b.tried(forged(b, change)))
    assert seen[0] == seen[1] > b.us + 1


def test_every_source_of_a_sum_is_read():
    source = (
        HEAD
        + '''
def k(x):
    out, t = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm), nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_compute(t, [x[i * 128:(i + 1) * 128] for i in range(N)], reduce_op=nl.add)
    nisa.dma_copy(dst=out, src=t)
    return out
'''
    )
    one, many = (own(lambda x, n=n: x.reshape(16, 128, 512)[:n].sum(0), {'x': (2048, 512)},
                     source.replace('N)', f'{n})')).us for n in (1, 16))
    assert many > one + 15 * 128 * 512 * 4 / forgery.CHIPS['trn1'].dma_gbps / 1e3 * 0.9


def test_the_dialect_is_the_texts():
    assert 'earlier dialect' in refusal(base('rows'), lambda d: d.update(dialect='neuronxcc.nki'))


# --- what has no meaning ---


@pytest.mark.parametrize(
    'change, said',
    [
        (lambda o: o.update(m=[[[0], [[-1, 0]]]]), 'multiplies an axis by zero'),
        (lambda o: o['attrs'].update(op1='bypass') if o['op'] == 'tensor_scalar' else None, 'op1 has no operand'),
        (lambda o: o['attrs'].update(reduce_op=None) if o['op'] == 'activation' else None, 'go together'),
    ],
    ids=['mask', 'op1', 'reduce_op'],
)
def test_what_has_no_meaning_is_refused(change, said):
    "And is no fault of the lab's."
    assert said in refusal(base('rows'), lambda d: [change(o) for o in instructions(d['body'])])


@pytest.mark.parametrize('name', ['\x1b[31mred', 'two\nlines', 'back\u202ewards', 'half \ud800'])
def test_names_can_be_printed(name):
    b = base('rows')
    for place in (lambda d: d.update(name=name), lambda d: d['tensors'][2].__setitem__(0, name),
                  lambda d: d['body'][0]['body'][0]['attrs'].update({name: 1}),
                  lambda d: d['body'][0]['body'][0]['attrs'].update(dge=name)):
        said = refusal(b, place)
        assert 'cannot be printed' in said and name not in said


# --- what takes the lab's time ---

def test_errors_are_short():
    assert len(refusal(base('rows'), lambda d: d['tensors'].extend([d['tensors'][0]] * 2000))) < 1000
    assert len(refusal(base('rows'), lambda d: d['body'][0]['body'][1]['attrs'].update(axis=[10**9] * 256))) < 5000


@pytest.mark.parametrize('width, said', [(2**20, 'larger than a partition'), (2**26, 'too long to execute')])
def test_wide_reads_are_refused(width, said):
    "128 times as many numbers, all of them one: a few bytes of text."
    def change(d): d['body'][0]['body'][1]['ins']['data']['a'][1] = [0, width]
    assert said in refusal(base('earlier'), change)


def test_the_labs_own_work_ends(narrow):
    "A program that would run for minutes is ended by the time of the stage."
    body = copy.deepcopy(narrow.data['body'])
    text = forged(
        narrow, lambda d: d.update(body=[
            *body, {
                'loop': 'z', 'n': 400_000, 'kind': 'sequential', 'line': 1, 'body': [{**o, 'm': [[[1], []]]}
                                                                                     for o in body[1:3]]}]))
    p, since = admit_program(text, narrow.kernel, narrow.specs, 'trn1'), time.monotonic()
    assert not check(p)
    with within(0.5, 'the run'), pytest.raises(KernelError, match='the run took too long'):
        forgery.execute(p, *narrow.arrays.values())
    assert time.monotonic() - since < 20


def test_the_checks_end():
    "Three thousand instructions that hand nothing on, each looked at with each."
    b = base('earlier')
    def change(d):
        tile = len(d['tensors'])
        d['tensors'].append(['w', [128, 512], 'float32', 'sbuf', 'scratch', 0, False, [], 0, None, []])
        part = lambda at, n: {'t': tile, 'o': [at], 'a': [[512, 128], [1, n]], 'p': 0}
        one = lambda at: {
            'op': 'tensor_scalar', 'outs': {'dst': part(at, 1)}, 'ins': {'data': part(256 + at, 1), 'operand0': 1.0},
            'attrs': {'op0': 'multiply'}, 'e': '', 'm': [], 'line': 1}
        d['body'] += [{
            'op': 'memset', 'outs': {'dst': part(0, 512)}, 'ins': {'value': 0.0}, 'attrs': {}, 'e': '', 'm': [],
            'line': 1}, {'loop': 'z', 'n': 2, 'kind': 'affine', 'line': 1, 'body': [one(k % 256) for k in range(3000)]}]
    p = admit_program(forged(b, change), b.kernel, b.specs, b.chip)
    with within(0.5, 'the check'), pytest.raises(KernelError, match='the check took too long'): check(p)


def test_a_guard_that_is_kept_from_looking_says_so(narrow):
    """Each element is looked at, one by one: a guard without time is no guard that found nothing. Its timeout ends the
    guards, so that the evaluation has no verdict."""
    p = admit_program(narrow.text, narrow.kernel, narrow.specs, 'trn1')
    facts = Evidence(narrow.kernel.source, narrow.task, narrow.workload, 'trn1', p, narrow.us)
    with within(-1, 'looking'):
        with pytest.raises(KernelError, match='looking took too long'): unread(p)
        with pytest.raises(KernelError, match='looking took too long') as e: run_guards(facts)
    assert e.value.kind == 'timeout'


# --- mutants ---

def told(b, found):
    return '\n'.join(f'{path} {what!r}: {us:.2f} µs, honest {b.us:.2f}' for path, what, us, reason in found
                     if reason is None)


@pytest.mark.parametrize('name', ['rows', 'matmul', *(pytest.param(n, marks=pytest.mark.slow) for n in ('earlier', 'two'))])
def test_some_mutants_gain_nothing(name):
    count, found = gains(base(name), some=7)
    assert count > 300 and not told(base(name), found), told(base(name), found)


@pytest.mark.slow
@pytest.mark.parametrize('name', forgery.BASES)
def test_no_mutant_gains(name):
    count, found = gains(base(name), some=4 if name == 'causal_attention' else 1)
    assert count > 2000 and not told(base(name), found), told(base(name), found)


def relu2(x): return torch.relu(x) * 2


OWN = {
    'scratch': (relu2, (256, 512), forgery.SCRATCH, 'trn2'), 'register': (relu2, (256, 512), forgery.REGISTER, 'trn2'),
    'backwards': (lambda x: (torch.relu(x) * 2).flip(1), (256, 512), forgery.BACKWARDS, 'trn2'),
    'wide': (relu2, (100, 9216), forgery.WIDE, 'trn1')}


def own_base(name):
    f, shape, source, chip = OWN[name]
    return own(f, {'x': shape}, source, chip)


FAST = [pytest.param(n, marks=pytest.mark.slow) if n in ('wide', 'scratch', 'backwards', 'register') else n for n in OWN]


@pytest.mark.parametrize('name', FAST)
def test_some_mutants_of_several_changes_gain_nothing(name):
    b = own_base(name)
    assert isinstance(b.us, float), b.us
    count, found = forgery.several_gains(b, 60)
    assert count > 30 and not told(b, found), told(b, found)


@pytest.mark.parametrize('name', FAST)
def test_several_changes_are_several_and_often_admitted(name):
    "Mutants that are all refused for one reason would show nothing."
    b = own_base(name)
    tried = [b.tried(text) for _, text in forgery.several_edits(b, 80, 3)]
    refusals = {str(x) for x in tried if isinstance(x, KernelError)}
    right = sum(isinstance(x, float) for x in tried)
    assert len(refusals) > 5 and right > len(tried) / 10, (len(tried), right, refusals)


@pytest.mark.slow
@pytest.mark.parametrize('name', [*OWN, 'rows', 'two', 'earlier', 'matmul'])
def test_no_mutant_of_several_changes_gains(name):
    b = own_base(name) if name in OWN else base(name)
    count, found = forgery.several_gains(b, 1500)
    assert count > 800 and not told(b, found), told(b, found)
