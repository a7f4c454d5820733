"""Freeze what the lab does with some hundred kernels, and compare it again: the judge of a move that changes no number.

    python tools/freeze.py record [--to FILE] [--only GLOB …] [--workers 2]
    python tools/freeze.py compare [--with FILE] [--only GLOB …] [--workers 2]
    python tools/freeze.py record|compare --public CHECKOUTS --rows FILE.csv      kernels of others, in their own record

`compare` prints how many kernels of each source were compared and every difference by kernel and aspect; it exits 1
where there is one.

Sources. suite: the first kernel of every task on its smallest workload; large: some of them on their largest one;
trial and misuse: the instruction table's trials on the pages; move: what the agents' moves make of some kernels, two
moves deep; random and mistake: kernels that `tests/support/kernel_maker.py` drew (their text is part of the record,
so that nobody need draw the same again); cores and ranks: kernels on two cores and on several devices; limit: both
sides of each limit in `tests/nki/checks/test_limits.py`; bad: `tests/evaluate/sandbox/test_bad_kernels.py`; cheat:
`tests/attacks/gallery.py`; face: what is seen from outside (names for kernels, tasks, commands, options, tables, eager
times, bounds).

Aspects of a kernel, on every chip: the program without names, broken limits, latency, timeline, profile, memory at
its peak; and once: its text (of what the lab writes), outputs of the interpreter and of batched execution, the
verdict with guards, and analyses of a sample.

Left out, because it is not the same twice or is wording: measured seconds, fresh inputs (seeds are given), logs,
messages but for the numbers and names of things in them, guards about this machine (how long a trace took, which
layers of the sandbox hold), kernels that end by timeout, crash or out of memory. Kernels that are functions of a page
or a test stand in files that will be edited: their lines are not compared.

Floats are compared to the last digit. How numpy and torch round is a matter of the machine: where `numerics` (the
hash of some functions of theirs) is another than in the record, outputs and verdicts are not compared, and the table
says so.

What fails by a fault of the lab today (`fault`) is behaviour too, kept by the type of the exception. A new name of an
operand, an engine or a status goes into `NEW_NAMES`, a new place or field into the tables beside it; nothing below
that section knows the lab.
"""

# ruff: noqa: E402 (threads and folders are set before numpy is imported)
import os
import sys
import tempfile

for _name in ('OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
    os.environ[_name] = '1'
os.environ['KERNEL_LAB_STORE'] = ''
if __name__ == '__main__':
    os.environ['KERNEL_LAB_HOME'] = os.environ.get('FREEZE_HOME') or tempfile.mkdtemp(prefix='freeze-')

import argparse
import ast
import gzip
import hashlib
import json
import linecache
import math
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
for _place in ('tests/attacks', 'tests/support', 'tests/nki/checks', 'tests/evaluate/sandbox'):
    if str(ROOT / _place) not in sys.path:
        sys.path.insert(0, str(ROOT / _place))

# ---------------------------------------------------------------------------------------------------------------------
# The lab. After a move only this section needs mending: where things are, and what their parts are called today.
# ---------------------------------------------------------------------------------------------------------------------

MODULES = dict(
    errors='kernel_lab.core.errors',
    machine='kernel_lab.nki.chip.chips',
    dtypes='kernel_lab.nki.chip.dtypes',
    nki='kernel_lab.nki',
    trace='kernel_lab.nki.lang.trace',
    check='kernel_lab.nki.checks.checker',
    interpret='kernel_lab.nki.executor.interpreter',
    batch='kernel_lab.nki.executor.vectorized',
    plan='kernel_lab.nki.executor.plan',
    schedule='kernel_lab.nki.timing.timeline',
    profile='kernel_lab.nki.explain.profile',
    clock='kernel_lab.nki.timing.scheduler',
    ranks='kernel_lab.nki.ranks',
    program='kernel_lab.nki.ir.program',
    nodes='kernel_lab.nki.ir.nodes',
    table='kernel_lab.nki.ir.instructions',
    traffic='kernel_lab.nki.explain.traffic',
    efficiency='kernel_lab.nki.explain.efficiency',
    waterfall='kernel_lab.nki.explain.waterfall',
    explain='kernel_lab.nki.explain.critical_path',
    causes='kernel_lab.nki.timing.flat_program',
    trials='kernel_lab.nki.validate.conformance',
    published='kernel_lab.nki.validate.published',
    suite='kernel_lab.tasks.suite.registry',
    task='kernel_lab.tasks.model.task',
    table_chip='kernel_lab.tasks.baselines.known_times',
    moves='kernel_lab.agents.rewrite.agent',
    facts='kernel_lab.agents.rewrite.evidence',
    evaluate='kernel_lab.evaluate.pipeline',
    sandbox='kernel_lab.evaluate.sandbox.run',
    guards='kernel_lab.evaluate.verification.plausibility',
    eager='kernel_lab.tasks.baselines.eager',
    tables='kernel_lab.evaluate.store.database',
    records='kernel_lab.evaluate.records.evaluation',
    cli='kernel_lab.cli.app',
    bad='test_bad_kernels',
    limits='test_limits',
    gallery='gallery',
    maker='kernel_maker',
)
PAGES = 'nbs/**/*.ipynb'  # the pages on which trials stand
TRIALS_OWN_PAGE = 'conformance'
STAND_INS = """
    nki nki.isa nki.isa.constants nki.language nki.dtype nki.typing nki.compiler nki.collectives
    nki.tensor neuronxcc neuronxcc.nki neuronxcc.nki.isa neuronxcc.nki.isa.constants
    neuronxcc.nki.language neuronxcc.nki.language.constants neuronxcc.nki.typing
    neuronxcc.nki.compiler
""".split()

PROFILE = {  # meaning -> attribute of a profile
    'latency, us': 'latency_us',
    'busiest engine': 'bound',
    'bytes read': 'hbm_read_bytes',
    'bytes written': 'hbm_write_bytes',
    'flops': 'flops',
    'flops of transposes': 'transpose_flops',
    'best possible, us': 'peak_us',
    '% of that': 'peak_pct',
    'instructions': 'instructions',
    'SBUF peak, bytes': 'sbuf_peak_bytes',
    'PSUM peak, banks': 'psum_peak_banks',
    'bytes spilled': 'spill_bytes',
    'without a cost': 'uncosted',
    'kind': 'kind',
}
PROFILE_ENGINES, PROFILE_LINES = 'engines', 'lines'  # engine -> share; line -> engine -> us
EFFICIENCY = {  # meaning -> attribute of an efficiency
    'flops': 'flops',
    'flops of transposes': 'transpose_flops',
    'flops of the others': 'vector_flops',
    'bytes': 'hbm_bytes',
    'least bytes': 'least_bytes',
    'model flops': 'mfu',
    'hardware flops': 'hfu',
    'bandwidth': 'mbu',
    'least bandwidth': 'mbu_least',
    'intensity': 'intensity',
    'ridge': 'ridge',
    'achieved': 'achieved_gflops',
    'roof': 'roof_gflops',
    'share': 'roof_share',
    'bound': 'bound',
    'unit': 'unit',
    '% of peak': 'peak_pct',
    '% of AccelOpt': 'accelopt_pct',
}
GUARDS_OF_THE_MACHINE = {'slow trace', 'confinement'}
FLEETING = {'timeout', 'crashed', 'out_of_memory'}  # statuses of kernels that are left out
NEW_NAMES: dict[
    str, str
] = {}  # operands, attributes, engines, roles, kinds and statuses that have a new name: new -> as recorded


def lab(key: str):
    "A module of the lab or of its tests."
    return import_module(MODULES[key])


def named(word: str) -> str:
    "A word of the lab's as it was called when the record was made."
    return NEW_NAMES.get(str(word), str(word))


def chips() -> list[str]:
    return list(lab('machine').CHIPS)


def spec(shape: tuple, dtype: str):
    return lab('nodes').ArraySpec(tuple(shape), dtype)


def kernel_error():
    return lab('errors').KernelError


def lab_error():
    return lab('errors').LabError


def dtype_of(name: str):
    return lab('dtypes').numpy_of(name)


def trace_text(text: str, entry, specs: list, chip: str):
    return lab('trace').trace_source(text, entry, specs, chip)


def loaded(text: str, entry=None):
    return lab('trace').load_source(text, entry)


def trace_function(kernel, inputs: list, chip: str, **more):
    return lab('trace').trace(kernel, *inputs, chip=chip, **more)


def installed():
    return lab('trace').installed()


def check(program, chip: str):
    return lab('check').check(program, chip)


def schedule(program, chip: str):
    return lab('schedule').schedule(program, chip)


def profile_of(timeline):
    return lab('profile').profile_of(timeline)


def interpreted(program, arrays: list):
    return lab('interpret').interpret(program, *arrays)


def executed(program, arrays: list):
    return lab('batch').execute(program, *arrays)


def always_planned():
    return mock.patch.object(lab('plan'), 'MIN_ELEMENTS_PER_INSTRUCTION', 0)  # small programs run batched too


def trace_ranks(kernel, inputs: list, chip: str):
    return lab('ranks').trace_ranks(kernel, inputs, chip)


def run_ranks(kernel, inputs: list, chip: str):
    return lab('ranks').simulate_ranks(kernel, inputs, chip)


def warm() -> None:
    lab('clock').warm()


def words_of_things() -> set[str]:
    "Names that a message may hold for what it is about: dtypes, memories, engines, chips, instructions, dialects."
    engines = {e for r in lab('table').INSTRUCTIONS.values() for e in r.engines}
    return {
        *lab('dtypes').NUMPY,
        *lab('nodes').BUFFERS,
        *engines,
        *chips(),
        *lab('table').INSTRUCTIONS,
        'PSUM',
        'SBUF',
        'HBM',
    }


@dataclass(frozen=True)
class View:
    "A program's parts in the tool's own words."

    program: object

    def tensors(self) -> list[dict]:
        part = lambda t: dict(
            shape=t.shape,
            dtype=t.dtype,
            memory=t.buffer,
            role=t.role,
            axis=t.par,
            zero=t.zero,
            loops=t.scope,
            shares=t.alias,
            places=t.places,
        )
        return [part(t) for t in self.program.tensors]

    def body(self):
        return self.program.body

    def outputs(self):
        return self.program.output_ids

    def constants(self) -> dict:
        return self.program.constants

    def kind(self):
        return [self.program.dialect, self.program.chip, bool(self.program.untouched)]

    def instructions(self) -> int:
        return self.program.count

    def is_loop(self, o) -> bool:
        return isinstance(o, lab('nodes').Loop)

    def loop(self, o):
        return o.name, o.trips, o.kind, o.line, o.bound, o.body

    def instruction(self, o):
        return o.op, o.outs, o.ins, o.attrs, o.engine, o.mask, o.line

    def is_access(self, a) -> bool:
        return isinstance(a, lab('nodes').Access)

    def access(self, a):
        return a.tensor, a.offset, a.ap, a.par, a.index, a.by, a.most

    def affine(self, a):
        return a.const, a.terms


def rows_of(timeline) -> tuple:
    "(engine names, columns, cores, causes) of a timeline."
    lanes = np.array(list(map(named, lab('schedule').LANES)))
    columns = [timeline.start_us, timeline.end_us, timeline.instr, timeline.turn]
    return lanes[timeline.lane], columns, timeline.core, timeline.after


def parts_of_error(e) -> tuple:
    "(kind, line, instruction, operand, limit, value, message) of a KernelError or a diagnostic."
    return e.kind, e.line, e.instruction, e.operand, e.limit, e.value, e.message


def analyses(timeline) -> dict:
    "What the lab says about a timeline, as frames and numbers."
    x = lab('explain')
    return {
        'traffic': lab('traffic').traffic(timeline),
        'regions': lab('traffic').regions(timeline),
        'chip bytes': lab('traffic').chip_bytes(timeline),
        'waterfall': lab('waterfall').waterfall(timeline),
        'idle': x.idle(timeline),
        'together': np.asarray(x.engine_concurrency(timeline)),
        'multi engine': x.multi_engine_rate(timeline),
        'critical path': x.critical_path(timeline),
        'critical lines': x.critical_lines(timeline),
    }


def efficiency(timeline):
    return lab('efficiency').efficiency(timeline)


def tasks() -> dict:
    return lab('suite').TASKS


def workloads(task) -> list:
    return sorted(task.workloads, key=lambda w: w.elements)


def first_kernel(task, workload):
    return (k := task.first(workload)).source, k.entry


def inputs_of(task, workload, seed: int = 0) -> dict:
    return task.draw(workload, seed)


def workload_words(w) -> list:
    return [w.name, [[k, list(v)] for k, v in w.shapes.items()], w.dtype]


def move_names() -> list[str]:
    return [name for name, _ in lab('moves').move_table()]


def moved(text: str, entry, profile, shapes: list) -> list:
    "[(move, new text)] that the agents' moves make of a kernel."
    return [(c.name, c.source) for c in lab('moves').rewrites_of(text,
                                                                 lab('facts').ProfileFacts.of(profile, shapes), entry)]


def evaluation(text: str, entry, task, workload, seeds: list, limits: dict):
    "(status, error or None, guards, seed reports) of an evaluation on the first chip."
    kernel, limits = lab('task').Kernel(text, entry), lab('sandbox').Limits(**{'seconds': 60} | limits)
    e = lab('evaluate').evaluate(kernel, task, workload, chips()[0], seeds=seeds, baseline_us=1.0, limits=limits)
    guards = [(g.name, g.severity, g.line) for g in e.guards if g.found and g.name not in GUARDS_OF_THE_MACHINE]
    reports = [
        (r.seed, r.output, r.max_abs, r.mismatch_share, r.nan_count, list(r.worst_index))
        for r in (e.verification.seeds if e.verification else ())
    ]
    return e.status, kernel_error().from_dict(e.error) if e.error else None, guards, reports


def guard_names() -> list:
    return [[g.name, g.kind] for g in lab('guards').GUARDS]


def statuses() -> list:
    return [str(s) for s in lab('records').Status]


def eager_times(task, workload, chip: str) -> dict:
    e = lab('eager').eager(task, workload, chip)
    return {
        'launches': [[l.op, l.us] for l in e.launches],
        'us': e.us,
        'bounds': lab('eager').bounds(task, workload, chip),
    }


def bad_kernels() -> Iterator[tuple]:
    "(name, text, task) of kernels that are bad without harming anybody."
    bad = lab('bad')
    mild = {
        k: v
        for k, v in bad.KERNELS.items()
        if k not in bad.LINUX and v[1] not in FLEETING and k not in ('talks without end',)
    }
    for name, (text, *_) in mild.items():
        yield name, text, bad.TASK


def cheats() -> Iterator[tuple]:
    "(name, text, task, workload, seeds, limits) of the gallery's attacks that end in a verdict at once."
    for a in lab('gallery').ATTACKS:
        if set(a.loses.split()) & FLEETING or a.row.startswith('F'):
            continue
        seeds = [1, 2, 3, 4, 5] if a.task == 'mse' else [1]
        yield a.name, a.source, lab('gallery').task_of(a.task), lab('gallery').workload_of(a.task), seeds, a.limits


def limit_cases() -> Iterator[tuple]:
    "(name, what to call for a kernel's body, chip) of both sides of every limit."
    count: Counter = Counter()
    for limit, legal, broken, _, chip, other in lab('limits').CASES:
        count[limit] += 1
        yield f'{limit}.{count[limit]} kept', legal, chip
        yield f'{limit}.{count[limit]} broken', broken, other


def limit_diagnosed(body: Callable, chip: str) -> list:
    return lab('limits').diagnosed(body, chip)


@cache
def trials() -> list:
    "Every trial of every page, in the pages' order."
    kept: list = []
    t = lab('trials')
    keep = lambda *given: (kept.extend(given), t.ConformanceTable())[1]
    with mock.patch.object(t, 'conformance_table', keep), redirect_stdout(StringIO()):
        for page in sorted(ROOT.glob(PAGES)):
            if not page.stem.endswith(TRIALS_OWN_PAGE) and MODULES['trials'] in page.read_text():
                run_page(page)
    return kept


def trial_parts(t) -> dict:
    "A trial in the tool's words: row, inputs, kernel, that of its misuse or None, chips, whether it is of ranks."
    ranks, misuse = t.way is lab('trials').over_ranks, t.misuse
    return dict(
        row=t.row,
        inputs=t.inputs,
        answers=t.answers,
        kernel=t.way(t.use, t.answers),
        chips=t.chips,
        ranks=ranks,
        misuse=t.way(misuse, t.answers) if misuse else None,
    )


def random_texts(good: int, mistaken: int) -> Iterator[tuple]:
    "(name, text, [(input's shape, dtype)], seed of its inputs) of random kernels, the same in every process."
    from hypothesis import HealthCheck, Phase, given, seed, settings

    few = dict(deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    maker = lab('maker')
    made: dict[str, list] = {'random': [], 'mistake': []}
    seed(1)(
        settings(max_examples=good, **few)(
            given(maker.recipes())(lambda r: made['random'].append((r, maker.render(r))))
        )
    )()
    seed(1)(settings(max_examples=mistaken, **few)(given(maker.mistakes())(lambda m: made['mistake'].append(m[:2]))))()
    for source, found in made.items():
        unique = {text: recipe for recipe, text in found}
        for k, (text, r) in enumerate(unique.items()):
            yield f'{source}/{k:03}', text, list(r.inputs.values()), r.seed


def commands() -> dict:
    "Command -> its options and arguments."
    import typer

    top = typer.main.get_command(lab('cli').app)
    words = lambda p: [
        *sorted([*p.opts, *p.secondary_opts]),
        bool(p.required),
        bool(p.multiple) if hasattr(p, 'multiple') else p.nargs,
    ]
    return {'': sorted(map(words, top.params), key=str)} | {
        n: sorted(map(words, c.params), key=str) for n, c in top.commands.items()
    }


def tables() -> dict:
    "The tables of a store: columns and indexes, and the version."
    t = lab('tables')
    column = lambda c: [
        c.name,
        str(c.type),
        c.primary_key,
        bool(c.nullable),
        sorted(str(f.target_fullname) for f in c.foreign_keys),
    ]
    found = {
        n: [[column(c) for c in x.columns], sorted(str(i.name) for i in x.indexes)] for n, x in t._meta.tables.items()
    }
    return found | {'version': t.SCHEMA_VERSION}


def public_rows(table: str) -> list:
    return lab('published').read_rows(table)


def public_programs(row, folders: list) -> list:
    return lab('published').programs_of(row, lab('published').Sources(*folders))


def public_words(row) -> tuple:
    return row.id, row.chip, row.repo


# ---------------------------------------------------------------------------------------------------------------------
# Hashes and plain data
# ---------------------------------------------------------------------------------------------------------------------


def short(*parts: bytes | str) -> str:
    "A short hash of texts and bytes, told apart by their lengths."
    h = hashlib.sha256()
    for p in parts:
        p = p if isinstance(p, bytes) else p.encode()
        h.update(len(p).to_bytes(8, 'little') + p)
    return h.hexdigest()[:12]


def plain(x):
    "Data as JSON has it and gives it back: tuples are lists, floats that JSON has not are words."
    if isinstance(x, dict):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if isinstance(x, np.ndarray):
        return plain(x.tolist())
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, float) and not math.isfinite(x):
        return str(x)
    return x if x is None or type(x) in (bool, int, float, str) else str(x)


def text_of(x) -> str:
    return json.dumps(plain(x), sort_keys=True)


def array_hash(x) -> str:
    "Dtype, shape and bytes of an array; every NaN is the same NaN."
    x = np.array(x, order='C')
    if x.dtype.names is None and x.dtype.kind not in 'iub':
        nan = np.isnan(x)
        if nan.any():
            x[nan] = np.array(np.nan, x.dtype)
    return short(str(x.dtype), str(x.shape), x.tobytes())


def outputs_hash(outputs) -> str:
    return short(*map(array_hash, outputs if isinstance(outputs, (tuple, list)) else (outputs,)))


@cache
def numerics() -> str:
    "How this machine's numpy and torch round."
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(7)
    x = rng.standard_normal((128, 96)).astype(np.float32)
    y = rng.standard_normal((96, 513)).astype(np.float32)
    t = torch.from_numpy(x)
    found = [f(x) for f in (np.exp, np.tanh, np.sin, np.arctan)] + [
        x @ y,
        x.sum(0),
        x.sum(1),
        x.mean(),
        np.exp(x.astype(np.float64)),
    ]
    more = [torch.softmax(t, 1), torch.nn.functional.gelu(t), t @ torch.from_numpy(y), t.sum(1), torch.tanh(t)]
    return short(*map(array_hash, [*found, *(m.numpy() for m in more)]))


# ---------------------------------------------------------------------------------------------------------------------
# A program without names
# ---------------------------------------------------------------------------------------------------------------------


class Nameless:
    "Reads a program into plain values: tensors by the order of their first use, loops by the order in which they open."

    def __init__(self, program, lines: bool):
        self.view, self.lines = View(program), lines
        self.number: dict[int, int] = {}
        self.loop: dict[str, int] = {}
        self.tensors = self.view.tensors()

    def of_tensor(self, k: int) -> int:
        return self.number.setdefault(k, len(self.number))

    def line(self, n):
        return n if self.lines else 0

    def affine(self, a) -> list:
        const, terms = self.view.affine(a)
        return [const, sorted([self.loop[v], c] for v, c in terms)]

    def operand(self, a):
        if not self.view.is_access(a):
            return [type(a).__name__, repr(a)]
        tensor, offset, ap, par, index, by, most = self.view.access(a)
        through = [self.operand(index), by, most] if index else []
        return [self.of_tensor(tensor), self.affine(offset), [list(map(int, p)) for p in ap], par, through]

    def operands(self, side: dict) -> list:
        return [[n, self.operand(a)] for n, a in sorted((named(k), a) for k, a in side.items())]

    def node(self, o) -> list:
        if self.view.is_loop(o):
            name, trips, kind, line, bound, body = self.view.loop(o)
            asked = [self.operand(b) for b in bound]
            self.loop[name] = len(self.loop)
            return ['loop', self.loop[name], trips, named(kind), self.line(line), asked, [self.node(b) for b in body]]
        op, outs, ins, attrs, engine, mask, line = self.view.instruction(o)
        told = sorted([named(k), plain(v)] for k, v in attrs.items())
        masks = [[self.affine(a), [list(x) for x in axes]] for a, axes in mask]
        return [named(op), self.operands(outs), self.operands(ins), told, named(engine), masks, self.line(line)]

    def tensor(self, k: int) -> list:
        t = self.tensors[k]
        loops = sorted(self.loop.get(v, -1) for v in t['loops'])
        shares = None if t['shares'] is None else self.of_tensor(t['shares'])
        return [
            list(t['shape']),
            t['dtype'],
            named(t['memory']),
            named(t['role']),
            t['axis'],
            bool(t['zero']),
            loops,
            shares,
            plain(t['places']),
        ]

    def text(self) -> str:
        "The whole program as text."
        body = [self.node(o) for o in self.view.body()]
        outputs = [self.of_tensor(k) for k in self.view.outputs()]
        inputs = [self.of_tensor(k) for k, t in enumerate(self.tensors) if t['role'] == 'input']
        for k in range(len(self.tensors)):
            self.of_tensor(k)
        order = sorted(self.number, key=self.number.get)
        constants = sorted([self.number[int(k)], array_hash(v)] for k, v in self.view.constants().items())
        return json.dumps(
            [self.view.kind(), inputs, outputs, [self.tensor(k) for k in order], body, constants], default=str
        )


def program_hash(program, lines: bool = True) -> str:
    return short(Nameless(program, lines).text())


# ---------------------------------------------------------------------------------------------------------------------
# Aspects
# ---------------------------------------------------------------------------------------------------------------------


@cache
def _things():
    return re.compile(
        r'(?<![\w.])(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|'
        + '|'.join(sorted(words_of_things(), key=lambda w: (-len(w), w)))
        + r')(?![\w])'
    )


def things_in(x) -> list:
    "Numbers and names of things in a limit, a value or a message: what stays when it is put in other words."
    if x is None or type(x) in (int, float, bool):
        return [plain(x)]
    return [w.rstrip(',') for w in _things().findall(str(x))]


def error_words(e, lines: bool = True) -> list:
    "A KernelError or diagnostic by what it is about."
    kind, line, instruction, operand, limit, value, message = parts_of_error(e)
    return [
        named(kind),
        (line or 0) if lines else 0,
        instruction or '',
        operand or '',
        things_in(limit),
        things_in(value),
        things_in(message if lines else re.sub(r'\bline \d+', 'line', str(message))),
    ]


def timeline_hash(timeline) -> str:
    "Every row of a timeline: engine, start, end, instruction, turn, core, and the row it waited for."
    engines, columns, core, after = rows_of(timeline)
    more = [np.ascontiguousarray(c, np.int64).tobytes() if c is not None else b'' for c in (core, after)]
    start, end, *whole = columns
    times = [np.ascontiguousarray(c, np.float64).tobytes() for c in (start, end)]
    return short(
        ' '.join(engines.tolist()), *times, *(np.ascontiguousarray(c, np.int64).tobytes() for c in whole), *more
    )


def profile_words(profile, lines: bool) -> dict:
    "A profile by meaning."
    found = {meaning: getattr(profile, attribute) for meaning, attribute in PROFILE.items()}
    busy = sorted((k, sorted(v.items())) for k, v in getattr(profile, PROFILE_LINES).items())
    return plain(
        found | {'engines': getattr(profile, PROFILE_ENGINES)} | ({'by line': short(text_of(busy))} if lines else {})
    )


def frame_hash(x) -> str:
    "The numbers of a frame, a column after another; words may be put otherwise."
    if not hasattr(x, 'columns'):
        return short(text_of(x))
    columns = [x[c].to_numpy() for c in x.columns if x[c].dtype.kind in 'iufb']
    return short(str(len(x)), *(text_of(c) for c in columns))


def analysed(timeline) -> dict:
    "The analyses of a timeline: hashes, and the efficiency in full."
    e = efficiency(timeline)
    return {k: frame_hash(v) for k, v in analyses(timeline).items()} | {
        'efficiency': plain({m: getattr(e, a) for m, a in EFFICIENCY.items()})
    }


def on_chip(program, chip: str, lines: bool, whole: bool, deep: bool = False) -> dict:
    "The aspects of a program on a chip; `whole`: the profile in full, else its hash; `deep`: analyses too."
    found = {'diagnostics': [error_words(d, lines) for d in check(program, chip)]}
    try:
        timeline = schedule(program, chip)
    except lab_error() as e:
        return found | {
            'latency': None,
            'unscheduled': error_words(e, lines) if isinstance(e, kernel_error()) else type(e).__name__,
        }
    words = profile_words(profile_of(timeline), lines)
    found |= {
        'latency': float(timeline.latency_us),
        'timeline': timeline_hash(timeline),
        'profile': words if whole else short(text_of(words)),
    }
    return found | ({'analyses': analysed(timeline)} if deep else {})


def traced_on(trace: Callable, chip: str, lines: bool = True):
    "(program or None, what is said of it): its hash, or the error."
    try:
        program = trace(chip)
    except kernel_error() as e:
        return None, {'refused': error_words(e, lines)}
    return program, {'program': program_hash(program, lines)}


def over_chips(trace: Callable, wanted: list, lines: bool = True, deep: bool = False) -> tuple:
    "(programs by chip, aspects by 'aspect chip')."
    programs, found = {}, {}
    for chip in wanted:
        program, said = traced_on(trace, chip, lines)
        if program is not None:
            programs[chip] = program
            said |= on_chip(program, chip, lines, whole=chip == wanted[0], deep=deep and chip == wanted[-1])
        found |= {f'{k} {chip}': v for k, v in said.items()}
    return programs, found


def outcome(run: Callable, lines: bool = True):
    "A hash of outputs, or the error; a fault of the lab by its type."
    try:
        return outputs_hash(run())
    except kernel_error() as e:
        return error_words(e, lines)
    except Exception as e:  # noqa: BLE001 (what fails today is behaviour too)
        return ['fault', type(e).__name__]


def ran(program, arrays: list, lines: bool = True, stepwise: bool = True) -> dict:
    "Outputs by batched execution, and by the interpreter."
    given = lambda: [np.array(a, order='C') for a in arrays]
    with always_planned():
        found = {'outputs batched': outcome(lambda: executed(program, given()), lines)}
    return found | ({'outputs interpreted': outcome(lambda: interpreted(program, given()), lines)} if stepwise else {})


def judged(text: str, entry, task, workload, seeds: list, limits: dict | None = None) -> dict:
    "Verdict, error and guards of an evaluation."
    status, error, guards, reports = evaluation(text, entry, task, workload, seeds, limits or {})
    found = {'verdict': named(status), 'verdict guards': plain(guards), 'verdict reports': plain(reports)}
    return found | ({'verdict error': error_words(error)} if error else {})


# ---------------------------------------------------------------------------------------------------------------------
# Kernels
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    "A kernel (or a face) of a source, and what to call for its aspects."

    source: str
    name: str
    measure: Callable = field(repr=False)

    @property
    def key(self) -> str:
        return f'{self.source}/{self.name}'


def specs_of(arrays: list) -> list:
    return [spec(a.shape, str(a.dtype)) for a in arrays]


def of_text(
    text: str,
    entry,
    arrays: list,
    kept: bool = False,
    deep: bool = False,
    stepwise: bool = True,
    wanted: list | None = None,
) -> dict:
    "Aspects of a kernel given as text; `kept`: the text itself is what the lab makes."
    programs, found = over_chips(
        lambda chip: trace_text(text, entry, specs_of(arrays), chip), wanted or chips(), deep=deep
    )
    if kept:
        found['text'] = short(text)
    if programs:
        found |= ran(next(iter(programs.values())), arrays, stepwise=stepwise)
    return found


def of_task(name: str, large: bool, deep: bool) -> dict:
    "A task's first kernel."
    task = tasks()[name]
    w = workloads(task)[-1 if large else 0]
    (text, entry), arrays = first_kernel(task, w), list(inputs_of(task, w).values())
    found = of_text(text, entry, arrays, kept=True, deep=deep, stepwise=not large)
    return found if large else found | judged(text, entry, task, w, [1])


LARGE = (
    'softmax',
    'rmsnorm',
    'matmul',
    'rmsnorm_matmul',
    'swiglu',
    'causal_attention',
    'gelu',
    'cross_entropy',
    'adamw_step',
)


def suite_cases() -> Iterator[Case]:
    for k, name in enumerate(tasks()):
        yield Case('suite', name, lambda name=name, deep=k % 8 == 0: of_task(name, False, deep))
    for name in (n for n in LARGE if n in tasks()):
        yield Case('large', name, lambda name=name: of_task(name, True, True))


MOVED = (
    'softmax',
    'rmsnorm',
    'matmul',
    'rmsnorm_matmul',
    'swiglu',
    'causal_attention',
    'layer_norm',
    'gelu',
    'adamw_step',
    'rope',
    'cross_entropy',
    'log_softmax',
    'batched_matmul',
    'silu',
)


def move_steps(text: str, entry, arrays: list, chip: str) -> list:
    "What the moves make of a kernel; nothing of one that is refused."
    try:
        profile = profile_of(schedule(trace_text(text, entry, specs_of(arrays), chip), chip))
    except kernel_error():
        return []
    return moved(text, entry, profile, [a.shape for a in arrays])


def move_case(name: str, path: tuple) -> dict:
    "The kernel that a path of candidates leads to, and the names of the moves; None where the path ends early."
    task = tasks()[name]
    w, chip = workloads(task)[0], chips()[0]
    (text, entry), arrays, names = first_kernel(task, w), list(inputs_of(task, w).values()), []
    for k in path:
        found = move_steps(text, entry, arrays, chip)
        if k >= len(found):
            return {'moves': [*names, None, len(found)]}
        names.append([found[k][0], len(found)])
        text = found[k][1]
    return {'moves': names} | of_text(text, entry, arrays, kept=True)


def move_cases() -> Iterator[Case]:
    paths = [(0,), (1,), (2,), (3,), (0, 0), (0, 1), (1, 0)]
    for name in (n for n in MOVED if n in tasks()):
        for path in paths:
            yield Case('move', f'{name} {"-".join(map(str, path))}', lambda name=name, path=path: move_case(name, path))


def run_page(page: Path) -> None:
    "Run a page's code cells from top to bottom."
    names = {'__name__': page.stem}
    for k, cell in enumerate(json.loads(page.read_text())['cells']):
        source, name = ''.join(cell['source']), f'<{page.stem} {k}>'
        if cell['cell_type'] != 'code' or source.startswith('#| default_exp'):
            continue
        linecache.cache[name] = len(source), None, source.splitlines(True), name
        exec(compile(ast.parse(source), name, 'exec'), names)


def of_function(kernel, arrays: list, wanted: list, **more) -> dict:
    "Aspects of a kernel that is a function."
    programs, found = over_chips(lambda chip: trace_function(kernel, arrays, chip, **more), wanted, lines=False)
    return found | (ran(programs[max(programs)], arrays, lines=False) if programs else {})


def of_ranks(kernel, inputs: list, wanted: list) -> dict:
    "Aspects of a kernel on several devices: the program of each, what the first takes, what all return."
    found = {}
    for chip in wanted:
        try:
            programs = trace_ranks(kernel, inputs, chip)
        except kernel_error() as e:
            found[f'refused {chip}'] = error_words(e, lines=False)
            continue
        found[f'programs {chip}'] = [program_hash(p, lines=False) for p in programs]
        found |= {f'{k} {chip}': v for k, v in on_chip(programs[0], chip, False, whole=True).items()}
        found[f'outputs {chip}'] = outcome(
            lambda chip=chip: [
                a for y in run_ranks(kernel, inputs, chip) for a in (y if isinstance(y, tuple) else (y,))
            ],
            False,
        )
    return found


def of_trial(t, misuse: bool) -> dict:
    p = trial_parts(t)
    kernel = p['misuse'] if misuse else p['kernel']
    if p['ranks']:
        return of_ranks(kernel, list(zip(*p['inputs'])), list(p['chips']))
    return of_function(kernel, list(p['inputs']), list(p['chips']))


def trial_key(t) -> str:
    "A trial's row, and a hash of what it is given and must answer: pages may come in another order."
    p = trial_parts(t)
    return (
        f'{p["row"]} {short(*map(array_hash, p["inputs"]), *map(array_hash, p["answers"]), " ".join(p["chips"]))[:6]}'
    )


def trial_cases() -> Iterator[Case]:
    seen: Counter = Counter()
    for t in trials():
        key = trial_key(t)
        seen[key] += 1
        name = f'{key} {seen[key]}' if seen[key] > 1 else key
        yield Case('trial', name, lambda t=t: of_trial(t, False))
        if trial_parts(t)['misuse']:
            yield Case('misuse', name, lambda t=t: of_trial(t, True))


GOOD, MISTAKEN = 90, 60


def texts_of_random() -> dict:
    "What a record keeps of random kernels: their texts, shapes and dtypes of their inputs, a seed for those."
    return {
        key: [text, [[list(s), d] for s, d in inputs], seed] for key, text, inputs, seed in random_texts(GOOD, MISTAKEN)
    }


def random_case(text: str, inputs: list, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    whole = lambda d: np.dtype(dtype_of(d)).kind in 'iu'
    draw = lambda s, d: (rng.integers(0, 9, s) if whole(d) else rng.integers(-16, 17, s) / 4).astype(dtype_of(d))
    return of_text(text, None, [draw(tuple(s), d) for s, d in inputs])


def random_cases(texts: dict) -> Iterator[Case]:
    for key, (text, inputs, seed) in texts.items():
        yield Case(*key.split('/'), lambda text=text, inputs=inputs, seed=seed: random_case(text, inputs, seed))


CORES = """
import numpy as np
import nki, nki.isa as nisa, nki.language as nl
@nki.jit
def kernel(x):
    core = nl.program_id(0)
    out, part = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.sequential_range(COUNT):
        t, u = nl.ndarray((128, WIDTH), x.dtype), nl.ndarray((128, WIDTH), x.dtype)
        at = nl.ds(i * WIDTH, WIDTH)
        nisa.dma_copy(t, x[core, :, at])
STEPS
        END
    return out
"""
STEPS = dict(
    S='nisa.activation(t, nl.exp, t)',
    V='nisa.tensor_scalar(t, t, nl.add, 1.0)',
    G='nisa.affine_select(t, [[1, WIDTH]], 1, t, 0.0)',
)
LAST = '; nisa.dma_copy(out[core, :, at], u)'
ENDS = dict(
    apart='nisa.dma_copy(out[core, :, at], t)',
    swap='nisa.dma_copy(part[core, :, at], t); nisa.sendrecv(t, u, 1 - core, 1 - core, 0)' + LAST,
    barrier='nisa.dma_copy(part[core, :, at], t); nisa.core_barrier(part, (0, 1)); '
    'nisa.dma_copy(u, part[1 - core, :, at])' + LAST,
    race='nisa.dma_copy(part[core, :, at], t); nisa.dma_copy(u, part[1 - core, :, at])' + LAST,
)


def core_case(steps: str, count: int, width: int, end: str) -> dict:
    "A kernel on two cores, which work apart, swap tiles, meet at a barrier, or should have."
    lines = '\n'.join(f'        {STEPS[s]}' for s in steps) or '        pass'
    text = (
        CORES.replace('STEPS', lines)
        .replace('END', ENDS[end])
        .replace('COUNT', str(count))
        .replace('WIDTH', str(width))
    )
    x = np.random.default_rng(3).standard_normal((2, 128, count * width)).astype(np.float32)
    programs, found = over_chips(lambda chip: trace_cores(text, x, chip), chips(), lines=False, deep=count > 1)
    return found | (ran(programs[max(programs)], [x], lines=False) if programs else {})


def trace_cores(text: str, x, chip: str):
    with installed():
        return trace_function(loaded(text), [x], chip, grid=(2,))


RANKS = """
import numpy as np
import nki, nki.isa as nisa, nki.language as nl
import nki.collectives as ncc
@nki.jit
def kernel(x):
    a = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    b = nl.ndarray((ROWS, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(a, x)
    CALL
    return b
"""
ALL, HALVES = '[list(range(8))]', '[[0, 2, 4, 6], [1, 3, 5, 7]]'
CALLS = {
    'add': (16, f'ncc.all_reduce(srcs=[a], dsts=[b], replica_group={ALL}, op=nl.add)'),
    'maximum': (16, f'ncc.all_reduce(srcs=[a], dsts=[b], replica_group={ALL}, op=nl.maximum)'),
    'halves': (16, f'ncc.all_reduce(srcs=[a], dsts=[b], replica_group={HALVES}, op=nl.add)'),
    'scatter': (2, f'ncc.reduce_scatter([a], [b], {ALL}, 0, nl.add)'),
    'gather': (128, f'ncc.all_gather([a], [b], {ALL}, 0)'),
    'all to all': (16, f'ncc.all_to_all([a], [b], {HALVES}, 0)'),
    'nobody comes': (
        16,
        f'if ncc.rank_id() < 3: ncc.all_reduce([a], [b], {ALL}, nl.add)\n    else: nisa.dma_copy(b, a)',
    ),
    'wrong rows': (5, f'ncc.all_gather([a], [b], {ALL}, 0)'),
}


def rank_case(rows: int, call: str, dtype: str) -> dict:
    xs = [(np.random.default_rng(r).standard_normal((16, 8)).astype(dtype_of(dtype)),) for r in range(8)]
    with installed():
        return of_ranks(loaded(RANKS.replace('ROWS', str(rows)).replace('CALL', call)), xs, ['trn2', 'trn3'])


def place_cases() -> Iterator[Case]:
    "Kernels on two cores, and on several devices."
    for steps, count, width in (('', 1, 512), ('S', 1, 16), ('SV', 2, 256), ('SVG', 4, 512)):
        for end in ENDS:
            yield Case(
                'cores', f'{steps or "-"} {count}x{width} {end}', lambda a=(steps, count, width, end): core_case(*a)
            )
    for name, (rows, call) in CALLS.items():
        for dtype in ('float32', 'bfloat16'):
            yield Case('ranks', f'{name} {dtype}', lambda a=(rows, call, dtype): rank_case(*a))


def limit_case(body: Callable, chip: str) -> dict:
    return {f'diagnostics {chip}': [error_words(d, lines=False) for d in limit_diagnosed(body, chip)]}


def bad_case(text: str, task) -> dict:
    "A bad kernel as it is traced here, and the verdict on it."
    w = workloads(task)[0]
    return judged(text, None, task, w, [1], {'seconds': 20})


def cheat_case(text: str, task, w, seeds: list, limits: dict) -> dict:
    return judged(text, 'kernel', task, w, seeds, limits)


def spoiled_cases() -> Iterator[Case]:
    "Limits, bad kernels, cheats."
    for name, body, chip in limit_cases():
        yield Case('limit', name, lambda body=body, chip=chip: limit_case(body, chip))
    for name, text, task in bad_kernels():
        yield Case('bad', name, lambda text=text, task=task: bad_case(text, task))
    for name, *rest in cheats():
        yield Case('cheat', name, lambda rest=rest: cheat_case(*rest))


def public_cases(folders: list, table: str, most: int) -> Iterator[Case]:
    "Kernels of public repositories: programs and times, none of their code."
    for row in public_rows(table):
        yield Case('public', public_words(row)[0], lambda row=row: public_case(row, folders, most))


NO_CHECKOUT = {'refused': 'UsageError'
               }  # a row whose repository is not among the checkouts, or that names nothing in it


def public_case(row, folders: list, most: int) -> dict:
    "One row; longer programs than `most` instructions have a hash and no times."
    try:
        programs = [p for p, _ in public_programs(row, folders)]
    except lab_error() as e:
        return {'refused': error_words(e) if isinstance(e, kernel_error()) else type(e).__name__}
    except (Exception, SystemExit) as e:  # noqa: BLE001 (a stranger's file may raise anything)
        return {'refused': type(e).__name__}
    chip, found = public_words(row)[1], {'programs': [program_hash(p) for p in programs]}
    short_enough = all(View(p).instructions() <= most for p in programs)
    return found | ({'on chip': [on_chip(p, chip, True, whole=True) for p in programs]} if short_enough else {})


# faces


def names_for_kernels(module: str) -> dict:
    with installed():
        return {'names': sorted(n for n in dir(import_module(module)) if not n.startswith('_'))}


EAGER = (
    'softmax',
    'rmsnorm',
    'matmul',
    'swiglu',
    'causal_attention',
    'gelu',
    'cross_entropy',
    'adamw_step',
    'layer_norm',
    'rope',
    'silu',
    'llama_layer',
    'mamba_block',
)


def eager_case(name: str) -> dict:
    task = tasks()[name]
    return {f'{w.name} {chip}': plain(eager_times(task, w, chip)) for w in workloads(task)[:1] for chip in chips()}


def face_cases() -> Iterator[Case]:
    for m in STAND_INS:
        yield Case('face', f'names of {m}', lambda m=m: names_for_kernels(m))
    for n in (n for n in EAGER if n in tasks()):
        yield Case('face', f'eager {n}', lambda n=n: eager_case(n))
    yield Case(
        'face', 'tasks', lambda: {n: plain([workload_words(w) for w in t.workloads]) for n, t in tasks().items()}
    )
    yield Case('face', 'commands', lambda: plain(commands()))
    yield Case('face', 'tables', lambda: plain(tables()))
    yield Case(
        'face',
        'lists',
        lambda: {'guards': guard_names(), 'statuses': statuses(), 'moves': move_names(), 'chips': chips()},
    )


def all_cases(texts: dict) -> list[Case]:
    "Every case, the long ones spread."
    return [
        *suite_cases(),
        *move_cases(),
        *trial_cases(),
        *random_cases(texts),
        *place_cases(),
        *spoiled_cases(),
        *face_cases(),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Recording and comparing
# ---------------------------------------------------------------------------------------------------------------------

RECORD, PUBLIC = ROOT / 'tests/frozen/behaviour.json.gz', ROOT / 'tests/frozen/public.json.gz'
OF_THE_MACHINE = ('outputs', 'verdict')  # aspects that need the same numerics


@contextmanager
def quiet():
    "A context in which what kernels print is dropped."
    with redirect_stdout(StringIO()):
        yield


def measured(case: Case) -> dict:
    "The aspects of a case; a fault of the lab (or of this tool) is an aspect too."
    try:
        with quiet():
            return case.measure()
    except Exception as e:  # noqa: BLE001 (one kernel must not end the run, and a fault shows as a difference)
        return {'fault': f'{type(e).__name__}: {e}'[:300]}


def wanted(key: str, globs: list) -> bool:
    return not globs or any(fnmatch(key, g) or fnmatch(key.split('/')[0], g) for g in globs)


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def read(path: Path) -> dict:
    return json.loads(gzip.decompress(Path(path).read_bytes()))


def write(record: dict, path: Path) -> None:
    "The same record gives the same bytes."
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, sort_keys=True, separators=(',', ':'), ensure_ascii=False)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def chosen_cases(args, texts: dict) -> list[Case]:
    cases = public_cases(args.public, args.rows, args.most) if args.public else all_cases(texts)
    return [c for c in cases if wanted(c.key, args.only)]


def part(args) -> None:
    "What one worker does: every n-th case, into a file."
    one_thread()
    k, n = args.part
    texts = json.loads(Path(args.texts).read_text())
    Path(args.to).write_text(json.dumps({c.key: measured(c) for c in chosen_cases(args, texts)[k::n]}))


def across_workers(args, texts: dict) -> dict:
    "Case -> aspects, measured by processes of their own."
    home = Path(os.environ['KERNEL_LAB_HOME'])
    (home / 'texts.json').write_text(json.dumps(texts))
    same = [
        *(f'--only={g}' for g in args.only),
        *(f'--public={p}' for p in args.public or ()),
        f'--rows={args.rows}',
        f'--most={args.most}',
    ]
    start = lambda k: subprocess.Popen(
        [
            sys.executable,
            __file__,
            'part',
            '--part',
            str(k),
            str(args.workers),
            '--to',
            str(home / f'{k}.json'),
            '--texts',
            str(home / 'texts.json'),
            *same,
        ],
        env=os.environ | {'FREEZE_HOME': str(home)},
    )
    running = [start(k) for k in range(args.workers)]
    if any([p.wait() for p in running]):
        sys.exit('freeze: a worker failed; what it said stands above')
    return {k: v for w in range(args.workers) for k, v in json.loads((home / f'{w}.json').read_text()).items()}


def gathered(args, texts: dict) -> dict:
    "The record of this moment."
    warm()
    cases = across_workers(args, texts)
    if args.public:
        cases = {k: v for k, v in cases.items() if v != NO_CHECKOUT}
    return {'format': 1, 'numerics': numerics(), 'texts': texts, 'cases': cases}


def differing(was, now, path: str = '') -> Iterator[tuple]:
    "(path, was, is) of what differs in two nests of dicts."
    if isinstance(was, dict) and isinstance(now, dict):
        for k in sorted({*was, *now}):
            yield from differing(was.get(k, '(absent)'), now.get(k, '(absent)'), f'{path}: {k}' if path else k)
    elif text_of(was) != text_of(now):
        yield path, was, now


def differences(was: dict, now: dict, globs: list | None = None) -> list[tuple]:
    "[(case, aspect, was, is)] between two records."
    found, same = [], was['numerics'] == now['numerics']
    for key in sorted(k for k in {*was['cases'], *now['cases']} if wanted(k, globs or [])):
        a, b = was['cases'].get(key), now['cases'].get(key)
        if a is None or b is None:
            found.append((key, '', 'absent' if a is None else 'there', 'absent' if b is None else 'there'))
            continue
        kept = lambda d: d if same else {k: v for k, v in d.items() if not k.startswith(OF_THE_MACHINE)}
        found += [(key, *d) for d in differing(kept(a), kept(b))]
    return found


def cut(x, most: int = 160) -> str:
    return text if len(text := json.dumps(x, ensure_ascii=False)) <= most else text[:most] + '…'


def table_of(was: dict, now: dict, found: list[tuple], globs: list) -> str:
    "How many of each source were compared, and every difference."
    keys = [k for k in was['cases'] if wanted(k, globs)]
    count, wrong = Counter(k.split('/')[0] for k in keys), Counter(k.split('/')[0] for k in {d[0] for d in found})
    lines = [
        f'{"source":10}{"compared":>10}{"differ":>8}',
        *(f'{s:10}{count[s]:>10}{wrong[s]:>8}' for s in sorted({*count, *wrong})),
    ]
    lines += [f'{"all":10}{sum(count.values()):>10}{sum(wrong.values()):>8}', '']
    if was['numerics'] != now['numerics']:
        lines.append("Outputs and verdicts were not compared: this machine's numpy or torch rounds otherwise.\n")
    return '\n'.join([*lines, *(f'{key}\n    {aspect}: {cut(a)} -> {cut(b)}' for key, aspect, a, b in found)])


def put_into(before: dict, now: dict, only: list) -> dict:
    """A record with the chosen cases of another in place of its own. Where that machine rounds otherwise, what depends
    on it stays as the record has it: it is compared by the record's numerics."""
    cases = now['cases']
    if before['numerics'] != now['numerics']:
        of_machine = lambda case, is_so: {k: v for k, v in case.items() if k.startswith(OF_THE_MACHINE) is is_so}
        cases = {k: of_machine(v, False) | of_machine(before['cases'].get(k, {}), True) for k, v in cases.items()}
    kept = {k: v for k, v in before['cases'].items() if not wanted(k, only)}
    return now | {'numerics': before['numerics'], 'cases': kept | cases}


def record(args) -> int:
    "Make the record; with --only, put the chosen cases in the place of what the file has of them."
    path = Path(args.to or (PUBLIC if args.public else RECORD))
    before = read(path) if args.only and path.exists() else None
    now = gathered(args, before['texts'] if before else {} if args.public else texts_of_random())
    if before: now = put_into(before, now, args.only)
    write(now, path)
    count = Counter(k.split('/')[0] for k in now['cases'])
    faults = [k for k, v in now['cases'].items() if 'fault' in v]
    print(
        '\n'.join(f'{s:10}{n:>6}' for s, n in sorted(count.items())),
        f'\n{path}: {sum(count.values())} kernels, {path.stat().st_size:,} bytes',
    )
    for k in faults:
        print(f'fault: {k}: {now["cases"][k]["fault"]}')
    return 1 if faults else 0


def compare(args) -> int:
    "Measure again and say what differs."
    was = read(args.record or (PUBLIC if args.public else RECORD))
    now = gathered(args, was['texts'])
    found = differences(was, now, args.only)
    print(table_of(was, now, found, args.only))
    return 1 if found else 0


def arguments(words: list | None = None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('do', choices=('record', 'compare', 'part'))
    parser.add_argument('--to', metavar='FILE', help='where the record goes')
    parser.add_argument('--with', dest='record', metavar='FILE', help='the record to compare with')
    parser.add_argument(
        '--only',
        metavar='GLOB',
        action='append',
        default=[],
        help='a source, or source/name; may be given several times',
    )
    parser.add_argument('--workers', type=int, default=2, metavar='N')
    parser.add_argument(
        '--public',
        metavar='DIR',
        action='append',
        help='a folder of checkouts: the record is of their kernels; their code is run',
    )
    parser.add_argument(
        '--rows',
        metavar='FILE.csv',
        default='',
        help='the table of published kernels, as `kernel-lab calibrate` reads it',
    )
    parser.add_argument(
        '--most', type=int, default=300_000, metavar='N', help='public programs of more instructions get no times'
    )
    parser.add_argument('--part', type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument('--texts', help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.public and not args.rows:
        parser.error('--public needs --rows')
    return args


def main(words: list | None = None) -> int:
    args = arguments(words)
    try:
        return {'record': record, 'compare': compare, 'part': part}[args.do](args) or 0
    finally:
        if not os.environ.get('FREEZE_HOME'):
            shutil.rmtree(os.environ['KERNEL_LAB_HOME'], ignore_errors=True)


if __name__ == '__main__':
    sys.exit(main())
