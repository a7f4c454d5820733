"""What a hostile child may send: the honest Program of a kernel with one thing in it changed.

Mutants are made in a fixed order; `tried` says what came of one."""
import copy
import json
import math
from functools import cache
from itertools import product

import numpy as np

from kernel_lab.core.errors import KernelError, within
from kernel_lab.evaluate.pipeline import check_affordable
from kernel_lab.evaluate.sandbox.run import Limits, admit_program
from kernel_lab.evaluate.verification.verify import compare
from kernel_lab.evaluate.verification.adversarial_inputs import admissions
from kernel_lab.evaluate.verification.verify import check_outputs, check_inputs_unwritten, verify
from kernel_lab.nki.executor.vectorized import execute
from kernel_lab.nki.checks.checker import check
from kernel_lab.nki.chip.dtypes import NUMPY
from kernel_lab.nki.ir.instructions import INSTRUCTIONS as ROWS_OF
from kernel_lab.nki.chip.chips import CHIPS                                # noqa: F401 (found here by the tests)
from kernel_lab.nki.ir.nodes import BUFFERS, LOOP_KINDS, ROLES
from kernel_lab.nki.ir.serialize import DIALECTS
from kernel_lab.nki.timing.flat_program import DMA_IN, flatten
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.nki.lang.trace import spec_of, trace_source
from kernel_lab.tasks.suite.registry import get_task
from kernel_lab.tasks.model.workload import Kernel

HEAD = 'import nki, nki.isa as nisa, nki.language as nl\n'
ROWS = HEAD + '''
def rows(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        t, e, s = (nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf) for n in (x.shape[1], x.shape[1], 1))
        nisa.dma_copy(dst=t, src=x[i * 128:(i + 1) * 128, :])
        nisa.tensor_reduce(dst=s, op=nl.maximum, data=t, axis=1, negate=True)
        nisa.activation_reduce(dst=e, op=nl.exp, data=t, bias=s, reduce_op=nl.add, reduce_res=s)
        nisa.reciprocal(dst=s, data=s)
        nisa.tensor_scalar(dst=e, data=e, op0=nl.multiply, operand0=s)
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128, :], src=e)
    return out
'''
EARLIER = '''
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import neuronxcc.nki.isa as nisa

@nki.jit
def earlier(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        p, f = nl.mgrid[0:128, 0:x.shape[1]]
        t = nl.load(x[i * 128 + p, f])
        e = nl.exp(t - nl.max(t, axis=1, keepdims=True))
        nl.store(out[i * 128 + p, f], e / nl.sum(e, axis=1, keepdims=True))
    return out
'''
TWO = (
    HEAD
    + '''
@nki.jit
def two(x):
    out, rows = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm), nl.ds(nl.program_id(0) * 128, 128)
    t, s = nl.ndarray((128, x.shape[1]), dtype=nl.float32, buffer=nl.sbuf), nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x[rows])
    nisa.tensor_reduce(dst=s, op=nl.maximum, data=t, axis=1, negate=True)
    nisa.activation_reduce(dst=t, op=nl.exp, data=t, bias=s, reduce_op=nl.add, reduce_res=s)
    nisa.reciprocal(dst=s, data=s)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=s)
    nisa.dma_copy(dst=out[rows], src=t)
    return out
kernel = two[2]
'''
)
BASES = dict(rows=('softmax', ROWS), two=('softmax', TWO, 'kernel'), earlier=('softmax', EARLIER)) | {
    n: (n,) for n in ('matmul', 'rmsnorm', 'rmsnorm_matmul', 'swiglu', 'causal_attention')}

# Bases of mutants that change two and three things at once: what a kernel keeps in HBM, reads backwards, steps through
# by a register, and rows wider than one instruction of the earlier dialect takes.
SCRATCH = HEAD + '''
def scratch(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    far = nl.ndarray((x.shape[1], x.shape[0]), dtype=x.dtype, buffer=nl.hbm)
    t, u = (nl.ndarray((128, x.shape[1]), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    for i in nl.affine_range(x.shape[0] // 128):
        nisa.dma_copy(dst=t, src=x[i * 128:(i + 1) * 128, :])
        nisa.activation(dst=t, op=nl.relu, data=t)
        nisa.dma_copy(dst=far.reshape(x.shape)[i * 128:(i + 1) * 128, :], src=t)
    for i in nl.affine_range(x.shape[0] // 128):
        nisa.dma_copy(dst=u, src=far.reshape(x.shape)[i * 128:(i + 1) * 128, :])
        nisa.tensor_scalar(dst=u, data=u, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128, :], src=u)
    return out
'''
BACKWARDS = HEAD + '''
def backwards(x):
    out, n = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm), x.shape[1]
    t, u = (nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    for i in nl.affine_range(x.shape[0] // 128):
        nisa.dma_copy(dst=t, src=x[i * 128:(i + 1) * 128, :])
        nisa.activation(dst=t, op=nl.relu, data=t)
        nisa.tensor_copy(dst=u, src=t.ap([[n, 128], [-1, n]], offset=n - 1))
        nisa.tensor_scalar(dst=u, data=u, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128, :], src=u)
    return out
'''
REGISTER = HEAD + '''
def register(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t, u = (nl.ndarray((128, x.shape[1]), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    r = nisa.register_alloc(0)
    for i in nl.affine_range(x.shape[0] // 128):
        nisa.register_move(r, 0)
        nisa.dma_copy(dst=t, src=x[i * 128:(i + 1) * 128, :])
        nisa.tensor_scalar(dst=u, data=t, op0=nl.maximum, operand0=0.0, op1=nl.multiply, operand1=2.0)
        nisa.dma_copy(dst=out[i * 128:(i + 1) * 128, :], src=u)
    return out
'''
WIDE = EARLIER.split('@nki.jit')[0] + '''
@nki.jit
def wide(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    p, f = nl.mgrid[0:128, 0:x.shape[1]]
    t = nl.load(x[p, f], mask=p < x.shape[0])
    nl.store(out[p, f], nl.maximum(t, 0.0, mask=p < x.shape[0]) * 2.0, mask=p < x.shape[0])
    return out
'''


SECONDS = 10            # the most that a mutant may take


class Base:
    "An honest program of a task, its inputs, the right answers, its time."
    def __init__(self, task, source=None, entry=None, workload='small', chip='trn1'):
        self.task = get_task(task)
        self.workload, self.chip = self.task.workload(workload), chip
        self.arrays = self.task.draw(self.workload, 7)
        self.specs = [spec_of(a) for a in self.arrays.values()]
        self.kernel = Kernel(source, entry=entry) if source else self.task.first(self.workload)
        self.text = trace_source(self.kernel.source, self.kernel.entry, self.specs, chip).to_json()
        self.data = {**json.loads(self.text), 'source': ''}
        self.wants = self.task.expected(self.arrays)
        self.us = self.tried(self.text)

    def program(self, text):
        "The program that a text is admitted as; a KernelError where it is not."
        p = check_affordable(admit_program(text, self.kernel, self.specs, self.chip), Limits(instructions=20_000))
        for d in check(p): raise d.error()
        check_inputs_unwritten(p)
        check_outputs(p, self.wants, self.workload)
        return p

    def tried(self, text):
        "µs of a program that passes on ordinary inputs, 'wrong', or the KernelError that refuses it."
        try:
            with within(SECONDS, 'a mutant'): return self._tried(text)
        except KernelError as e: return e

    def _tried(self, text):
        p = self.program(text)
        got = execute(p, *[np.array(a, order='C') for a in self.arrays.values()], strict=True)
        right = (compare(g, w, self.task.tolerance(self.workload), 7, k)[0].passed
                     for k, (g, w) in enumerate(zip(got, self.wants)))
        return schedule(p).latency_us if all(right) else 'wrong'

    def verified(self, text):
        "Whether a program is right on all the draws there are, too."
        draws = [name for name, why in admissions(self.task, self.workload).items() if not why]
        try: return verify(self.program(text), self.task, self.workload, seeds=[7, 8, 9], draws=draws).passed
        except KernelError: return False


@cache
def base(name): return Base(*BASES[name])


ENGINES = ('', 'Tensor', 'Vector', 'Scalar', 'GpSimd', 'Sync', 'DMA')
WORDS = {
    'op': tuple(ROWS_OF), 'e': ENGINES, 'kind': LOOP_KINDS, 'dialect': DIALECTS,
    'func': ('copy', 'identity', 'relu', 'exp', 'sqrt')}
OTHERS = ('', 'add', 'multiply', 'bypass', 'copy', 'core0', 'core1', 'i0')
ADDED = {
    'accumulate': (True, False), 'transpose': (True,), 'rows': (1, 2), 'tile': ([0, 0, 32, 32], [0, 0, 128,
                                                                                                 128]), 'add': (True,),
    'dge': ('none', 'hwdge', 'swdge'), 'reduce_cmd': ('idle', 'reset_reduce'), 'reduce_op': (None,
                                                                                             'add'), 'oob': ('skip',),
    'late': (True,), 'first': (True,), 'loops': ([],), 'ranks': ([0],), 'op1': ('', 'bypass'), 'reverse0': (True,)}


def places(node, path=()):
    "Every path inside a JSON value."
    yield path
    for k, v in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if k not in ('line', 'source'): yield from places(v, (*path, k))


def at(data, path):
    for k in path: data = data[k]
    return data


def others(v, key):
    "Values to put in the place of one."
    if isinstance(v, bool) or v is None: return [x for x in (True, False, None, 0, 1) if x is not v]
    if isinstance(v, int):
        return list(
            dict.fromkeys(x for x in (0, 1, 2, -1, v + 1, v - 1, 2 * v, v // 2, v // 4, -v, 128, 512, v + 64, v * 128,
                                      2 ** 31) if x != v))
    if isinstance(v, float): return [x for x in (0.0, 1.0, -v, 1e30, 1e-30, 5e-324, v / 2) if x != v]
    if isinstance(v, str):
        return [x for x in WORDS.get(key, (*NUMPY, *BUFFERS, *ROLES) if key in (2, 3, 4) else OTHERS) if x != v]
    return []


def edits(data):
    """(path, what was done, a function that does it to a copy of the data) in a fixed order; the functions may be
    kept and called later."""
    def put(holder, key, x): return lambda d: at(d, holder).__setitem__(key, x)
    def out(holder, key): return lambda d: at(d, holder).__delitem__(key)
    def turned(holder, key):
        return lambda d: at(d, holder).__setitem__(slice(key - 1, key + 1), at(d, holder)[key - 1:key + 1][::-1])
    def opened(path, j): return lambda d: at(d, path).__setitem__(slice(j, j + 1), at(d, path)[j]['body'])
    def moved(path, j, n, to): return lambda d: at(d, path).insert(to, at(d, path)[j]['body'].pop(n))
    for path in places(data):
        if not path: continue
        v, holder, key = at(data, path), path[:-1], path[-1]
        for x in others(v, key): yield path, x, put(holder, key, x)
        yield path, 'gone', out(holder, key)
        if isinstance(key, int) and key: yield path, 'swapped', turned(holder, key)
        if key == 'attrs':
            for k, values in ADDED.items():
                for x in values: yield (*path, k), x, put(path, k, x)
        if key == 'body':
            for j, o in enumerate(v):
                if 'loop' not in o: continue
                yield (*path, j), 'opened', opened(path, j)
                for n in range(len(o['body'])):
                    yield (*path, j, 'body', n), 'before the loop', moved(path, j, n, j)
                    yield (*path, j, 'body', n), 'after the loop', moved(path, j, n, j + 1)
    yield (), 'untouched', put((), 'untouched', True)


def mutants(data, some=1):
    "(path, what was done, text) of every mutant, or of one in `some`."
    for n, (path, what, do) in enumerate(edits(data)):
        if n * 2654435761 % 2**32 % some: continue
        d = copy.deepcopy(data)
        try: do(d)
        except (KeyError, IndexError, TypeError): continue
        yield path, what, json.dumps(d)


# Behind a causal mask there are zeros, which a maximum and a sum may leave out: what is reduced less there, or skipped,
# is right on every draw.
FASTER = 0.998  # of the honest time: what is slower than that is no gain
LEGITIMATE = {
    'two cores, each with tiles of its own': lambda b, path, what: path[-1] == 'kind' and what == 'parallel',
    'another engine of those that may do it': lambda b, path, what: path[-1] == 'e',
    'a relu on Vector, as a maximum with zero': lambda b, path, what: what == 'a relu as a maximum',
    'the same work by a longer row of the table': lambda b, path, what: path[
        -1] == 'op' and what == 'tensor_scalar_reduce', 'a reduction of the part of a row that the mask leaves': lambda
    b, path, what: b.task.name == 'causal_attention' and path[-5:-2] == ('ins', 'data', 'a'),
    'a narrower tile, whose roundings the tolerance allows': lambda b, path, what: path[0] == 'tensors' and path[2:3] ==
    (2,) and what in ('float16', 'bfloat16', 'tfloat32'), 'no step for a block that the mask leaves nothing of': lambda
    b, path, what: b.task.name == 'causal_attention' and path[-1] == 'n',
    'the same numbers from a tile that has them already': lambda b, path, what: b.task.name == 'causal_attention' and
    path[-1] == 't', 'a tile in PSUM, which is there for it': lambda b, path, what: path[
        0] == 'tensors' and what == 'psum', 'instructions that do not depend on each other, in another order': lambda b,
    path, what: what == 'swapped' and isinstance(at(b.data, path), dict)}


FAMILIES = (            # the last steps of paths whose values are changed together
    ('offset and step', ('o', 'a')), ('mask and axes', ('m', 'a')), ('operation and operands', ('op', 't', 'e')),
    ('step and count', ('a', 'n')), ('tensor and place', ('t', 'o')))


def _family(path, names): return any(k in names for k in path if isinstance(k, str))


def _accesses(o): return [a for side in (o['ins'], o['outs']) for a in side.values() if isinstance(a, dict)]


def _rowwise(o):
    "The accesses of an instruction that does one thing to each element, if they all end in an axis of one length."
    found = _accesses(o)
    same = {a['a'][-1][1] for a in found if a['a'][-1][1] > 1}
    one = o['op'] in ('dma_copy', 'tensor_copy', 'activation', 'tensor_scalar', 'tensor_tensor')
    return found if one and len(same) == 1 and not o['attrs'].get('reduce_op') else []


def _turned_round(o):
    for a in _rowwise(o):
        s, n = a['a'][-1]
        a['o'] = [a['o'][0] + s * (n - 1), *a['o'][1:]]
        a['a'][-1] = [-s, n]
    return [o]


def _parts(o, step):
    "The instruction twice: on the halves of its rows, or on every other element."
    found = []
    for half in (0, 1):
        o2 = copy.deepcopy(o)
        for a in _rowwise(o2):
            s, n = a['a'][-1]
            if n < 2: continue
            a['o'] = [a['o'][0] + half * (s if step else s * (n // 2)), *a['o'][1:]]
            a['a'][-1] = [2 * s if step else s, n // 2]
        found.append(o2)
    return found if _rowwise(o) else [o]


def _cut_axis(o):
    for a in _rowwise(o):
        s, n = a['a'][-1]
        if n > 1: a['a'][-1:] = [[s * (n // 2), 2], [s, n // 2]]
    return [o]


def _masked(o, cuts):
    "The instruction under a mask that leaves all of a row, or twice under masks that leave a part each."
    found, n = [], max([a['a'][-1][1] for a in _accesses(o)], default=1)
    axis = max([len(a['a']) for a in _accesses(o)], default=1) - 1
    for condition in ([[[n // 2 - 1], [[axis, -1]]]], [[[-(n // 2)], [[axis, 1]]]]) if cuts else ([[[n - 1], [[axis, -1]]]],):
        found.append({**copy.deepcopy(o), 'm': condition})
    return found


OTHER_WORDS = {'multiply': ('divide', lambda x: 1 / x), 'add': ('subtract', lambda x: -x),
               'divide': ('multiply', lambda x: 1 / x), 'maximum': ('maximum', lambda x: x)}


def _by_another_name(o):
    "A product as a quotient, a sum as a difference, a copy as a sum of one."
    ins, number = o['ins'], o['ins'].get('operand0')
    if o['op'] == 'tensor_scalar' and isinstance(number, float) and o['attrs'].get('op0') in OTHER_WORDS:
        word, inverse = OTHER_WORDS[o['attrs']['op0']]
        o['attrs']['op0'], ins['operand0'] = word, inverse(number) if number else number
    elif o['op'] == 'dma_copy': o.update(op='dma_compute', attrs={'op': 'add'}, ins={'src0': ins['src']})
    return [o]


def _as_a_maximum(o):
    if o['op'] == 'activation' and o['attrs'].get('func') == 'relu':
        o.update(op='tensor_scalar', e='', ins={'data': o['ins']['data'], 'operand0': 0.0},
                 attrs={'op0': 'maximum', 'reverse0': False})
    return [o]


def _in_a_loop(o, kind): return [{'loop': f'z{abs(hash(json.dumps(o))) % 10**6}', 'n': 1, 'kind': kind, 'line': 0, 'body': [o]}]


def _twice(o): return [o, copy.deepcopy(o)]


REWRITES = {            # of one instruction, into several that do the same
    'turned round': _turned_round, 'halves': lambda o: _parts(o, False), 'every other element': lambda o: _parts(o, True),
    'an axis in two': _cut_axis, 'a mask that leaves all': lambda o: _masked(o, False),
    'masks that leave a part each': lambda o: _masked(o, True), 'by another name': _by_another_name,
    'a relu as a maximum': _as_a_maximum,
    'twice': _twice, **{f'in a loop of one, {k}': lambda o, k=k: _in_a_loop(o, k) for k in ('affine', 'sequential')}}


def rewrites(data):
    "(path, what was done, a function that does it) for every instruction and each of `REWRITES`."
    def put(path, f):
        def do(d):
            body, k = at(d, path[:-1]), path[-1]
            if 'loop' not in body[k]: body[k:k + 1] = f(body[k])
        return do
    for path in places(data['body']):
        o = at(data['body'], path)
        if not (isinstance(o, dict) and 'op' in o and 'ins' in o): continue
        for what, f in REWRITES.items(): yield ('body', *path), what, put(('body', *path), f)


def _runs(b, do):
    d = copy.deepcopy(b.data)
    try: do(d)
    except (KeyError, IndexError, TypeError, AttributeError): return False
    return not isinstance(b.tried(json.dumps(d)), KernelError)


@cache
def admitted(b):
    "The single changes of a base's program that are not refused, and the rewrites: what is worth combining."
    return [e for e in edits(b.data) if e[0] and _runs(b, e[2])], [*rewrites(b.data)]


def several_edits(b, count, seed):
    """([(path, what is done, a function that does it)], text) of mutants of a base with two or three changes, drawn at
    random: of a family each, of the changes that are admitted alone, or of these and rewrites that keep the meaning."""
    rng = np.random.default_rng(seed)
    every, (alone, same) = [e for e in edits(b.data) if e[0] and e[0][0] == 'body'], admitted(b)
    draw = lambda some: some[rng.integers(len(some))]
    for k in range(count):
        if k % 4 == 0:
            _, names = draw(FAMILIES)
            some = [e for e in every if _family(e[0], names)]
            first = draw(some)
            near = [e for e in some if e[0][:2] == first[0][:2]] if rng.random() < 0.8 else some
            chosen = [first, *(draw(near) for _ in range(rng.integers(1, 3)))]
        else: chosen = [draw(same if rng.random() < (0.3, 0.7)[k % 2] else alone) for _ in range(rng.integers(2, 4))]
        text = _with(b, chosen)
        if text: yield chosen, text


def _with(b, changes):
    "The text of a base's program after these changes, or None where they cannot be made."
    d = copy.deepcopy(b.data)
    try:
        for _, _, do in changes: do(d)
    except (KeyError, IndexError, TypeError, AttributeError, ZeroDivisionError): return None
    return json.dumps(d)


PIECES = ('halves', 'every other element', 'masks that leave a part each')


def _busy_us(b, text):
    "µs of work of all engines together, and of the DMA engines when nothing else uses them."
    t = schedule(b.program(text))
    copies = flatten(t.program, t.chip).copies['work_ns'][t.instr].sum() / 1e3
    return float((t.end_us - t.start_us)[t.lane < DMA_IN].sum() + copies)


def _excuse(b, change):
    "Why a change alone may be a gain, or None."
    return next((reason for reason, fits in LEGITIMATE.items() if _fits(fits, b, *change[:2])), None)


MOST_ASSIGNMENTS = 81


@cache
def _on_best_engines_us(b):
    "µs of the honest program with its instructions on the engines that are fastest for it."
    def numbers(body):
        for o in body: yield from numbers(o['body']) if 'loop' in o else [o]
    choices = [[o['e'], *(e for e in ROWS_OF[o['op']].engines if e != o['e'])] for o in numbers(b.data['body'])]
    if math.prod(map(len, choices)) > MOST_ASSIGNMENTS: return b.us
    def with_engines(engines):
        d = copy.deepcopy(b.data)
        for o, e in zip(numbers(d['body']), engines): o['e'] = e
        return json.dumps(d)
    return min(us for engines in product(*choices) if isinstance(us := b.tried(with_engines(engines)), float))


def _reason(b, changes, text, us):
    """Why a mutant with these changes may be faster than the honest program, or None: the changes that may gain alone
    gain as much without the others; it does as much work, in pieces that overlap; or it moved an instruction, and the
    honest program on its best engines is as fast."""
    if any(path[-1] == 'e' for path, *_ in changes) and us >= FASTER * _on_best_engines_us(b):
        return 'another engine of those that may do it'
    excused = [c for c in changes if _excuse(b, c)]
    alone = _with(b, excused) if excused else None
    if alone and isinstance(least := b.tried(alone), float) and us >= FASTER * least: return _excuse(b, excused[0])
    in_pieces = any(w in PIECES for _, w, _ in changes) and _busy_us(b, text) >= FASTER * _busy_us(b, b.text)
    return 'as much work, in pieces that overlap' if in_pieces else None


def several_gains(b, count, seed=0):
    """The same as `gains` for mutants with several changes. What those of them gain that an honest kernel may make too
    is legitimate, and so is as much work in pieces that overlap."""
    tried, found = 0, []
    for changes, text in several_edits(b, count, seed):
        tried += 1
        us = b.tried(text)
        if not isinstance(us, float) or us >= FASTER * b.us or not b.verified(text): continue
        found.append(([c[0] for c in changes], [c[1] for c in changes], us, _reason(b, changes, text, us)))
    return tried, found


def _fits(fits, b, path, what):
    try: return fits(b, path, what)
    except (KeyError, IndexError, TypeError): return False


def gains(b, some=1):
    """(how many were tried, [(path, what was done, µs, the reason why it may be)]) of mutants that are right and
    faster than the honest program: every one, or one in `some`. The reason is None where it may not be."""
    count, found = 0, []
    for path, what, text in mutants(b.data, some):
        count += 1
        us = b.tried(text)
        if not isinstance(us, float) or us >= FASTER * b.us or not b.verified(text): continue
        found.append((path, what, us, next((reason for reason, fits in LEGITIMATE.items() if fits(b, path, what)),
                                           None)))
    return count, found
