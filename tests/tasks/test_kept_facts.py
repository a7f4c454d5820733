"""What is kept of each task is what comes out today, and the bounds hold for kernels that are right."""
import json
import lzma
import re
from pathlib import Path

import pytest

from kernel_lab.evaluate.verification.adversarial_inputs import work_out_facts
from kernel_lab.evaluate.verification.stability import HARMLESS_TOLERANCES
from kernel_lab.evaluate.verification.plausibility import Evidence, run_guards
from kernel_lab.evaluate.verification.program_bounds import program_bounds
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.targets.nki_sim import specs_of, trace_here
from kernel_lab.tasks.baselines import kept_facts
from kernel_lab.tasks.baselines.kept_facts import kept_line
from kernel_lab.tasks.model.workload import Kernel
from kernel_lab.tasks.suite.registry import TASKS, get_task

RECORDED = sorted((Path(__file__).parents[3] / 'shared' / 'model_runs' / 'kernels').glob('*.py'))
SOME = ('relu', 'embedding', 'quantised_linear' if 'quantised_linear' in TASKS else 'layer_norm')


def agree(reason, kept):
    """Whether two machines say the same of a draw. The order of a float32 sum is the processor's (vector width,
    threads), and so are the tolerances that a reason names: within a factor of three, and near the threshold either
    answer will do."""
    number = r'(?<= )[\d.]+(?:e[+-]?\d+)?(?= tolerances)|(?<=costs )[\d.e+-]+'
    one, other = (re.findall(number, r) for r in (reason, kept))
    if one and other and re.sub(number, '', reason) == re.sub(number, '', kept):
        return 1/3 < float(one[0]) / float(other[0]) < 3
    if one and other: return min(float(one[0]), float(other[0])) < 2 * HARMLESS_TOLERANCES      # the next reason counts
    return reason == kept or not (reason and kept) and float((one or other or ['inf'])[0]) < 2 * HARMLESS_TOLERANCES


def same(name):
    now, kept = work_out_facts(name), kept_line(name)
    for dtype, facts in kept['draws'].items():
        today = now['draws'][dtype]
        loose = {'draws': 0, 'patchwork': 0}
        assert today | loose == facts | loose, (name, dtype)
        # a part comes or goes with its draw alone, and those are held against each other below
        for part in {*(today['patchwork'] or ())} ^ {*(facts['patchwork'] or ())}:
            assert bool(today['draws'][part]) != bool(facts['draws'][part]), (name, dtype, part)
        assert today['draws'].keys() == facts['draws'].keys()
        for draw, reason in facts['draws'].items():
            assert agree(today['draws'][draw], reason), (name, dtype, draw, today['draws'][draw], reason)
    for w, facts in now['workloads'].items():
        assert facts == kept['workloads'][w] | {'scale': pytest.approx(kept['workloads'][w]['scale'], rel=1e-4)}, (name, w)


def test_every_task_workload_and_dtype_is_kept():
    for task in TASKS.values():
        line = kept_line(task.name)
        assert list(line['workloads']) == [w.name for w in task.workloads], task.name
        assert set(line['draws']) == {w.dtype for w in task.workloads}, task.name


def test_reasons_that_agree_on_two_machines():
    far, near = 'the reference in float32 is {} tolerances from the one in float64', 'roundings move the answer by {} tolerances'
    assert agree('', '') and agree(far.format('0.66'), far.format('1.2')) and agree(far.format('9.6e+02'), far.format('1e+03'))
    assert agree('', far.format('0.28')) and agree(near.format('0.28'), '')
    assert agree(near.format('0.57'), far.format('0.27')) and agree(far.format('0.27'), near.format('3'))
    assert not agree('', far.format('1.2')) and not agree(near.format('0.57'), far.format('0.6'))
    assert not agree(far.format('1'), far.format('9.6e+02')) and not agree('', 'the answer is all zeros')


@pytest.mark.parametrize('name', SOME)
def test_kept_facts_are_those_of_today(name): same(name)


@pytest.mark.slow
@pytest.mark.parametrize('name', [n for n in TASKS if n not in SOME])
def test_all_kept_facts_are_those_of_today(name): same(name)


# --- first kernels ---

WRITTEN = [t for t in TASKS.values() if t.writes]


@pytest.fixture
def sources(tmp_path, monkeypatch):
    "The kept sources anew, from a copy of the file that a test may spoil."
    path = tmp_path / kept_facts.KERNELS_FILE.name
    path.write_bytes(kept_facts.KERNELS_FILE.read_bytes())
    monkeypatch.setattr(kept_facts, 'KERNELS_FILE', path)
    kept_facts.kept_sources.cache_clear()
    yield path
    kept_facts.kept_sources.cache_clear()


def test_every_first_kernel_is_kept():
    kept = kept_facts.kept_sources()
    assert kept, 'a module of tasks/model, codegen or suite changed: run python tools/first_kernels.py'
    assert {t.name: [w.name for w in t.workloads] for t in WRITTEN} == {k: list(v) for k, v in kept.items()}
    for t in WRITTEN:
        assert [t.first(w).hash for w in t.workloads] == [kept_line(t.name)['workloads'][w.name]['first']
                                                          for w in t.workloads], t.name


def as_written(tasks):
    for t in tasks:
        for w in t.workloads: assert t.first(w) == t.writes(t, w), (t.name, w.name)


def test_a_kept_first_kernel_is_what_the_compiler_writes(): as_written(WRITTEN[::50])


@pytest.mark.slow
def test_every_kept_first_kernel_is_what_the_compiler_writes(): as_written(WRITTEN)


@pytest.mark.parametrize('damage', [
    lambda kept: b'', lambda kept: kept[:-9], lambda kept: b'not compressed', lambda kept: lzma.compress(b'{'),
    lambda kept: lzma.compress(json.dumps(json.loads(lzma.decompress(kept)) | {'writers': 'others'}).encode())])
def test_a_spoilt_file_or_one_of_other_writers_is_not_read(sources, damage):
    sources.write_bytes(damage(sources.read_bytes()))
    assert kept_facts.kept_sources() == {}


def holds(kernel, task, workload, chip):
    program = trace_here(kernel, specs_of(task, workload), chip)
    us, least = schedule(program, chip).latency_us, program_bounds(program, chip)
    assert max(least.values()) <= us * 0.999, (task.name, workload.name, chip, us, least)
    return program, us


def few(count):
    return [(t, w, chip) for t in list(TASKS.values())[::count] for w in t.workloads[-1:] for chip in CHIPS]


def test_no_first_kernel_is_below_its_bound():
    for task, w, chip in few(25): holds(task.first(w), task, w, chip)


@pytest.mark.slow
def test_no_first_kernel_of_the_suite_is_below_its_bound():
    for task in TASKS.values():
        for w in task.workloads: holds(task.first(w), task, w, 'trn2')


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED, reason='there are no recorded kernels here')
@pytest.mark.parametrize('path', RECORDED, ids=lambda p: p.stem)
def test_a_recorded_kernel_carries_no_mark(path):
    task, source = get_task(path.stem), path.read_text()
    program, us = holds(Kernel(source), task, task.workload('full'), 'trn2')
    found = run_guards(Evidence(source, task, task.workload('full'), 'trn2', program, us))
    assert not [g for g in found if g.found and g.severity != 'note'], [str(g) for g in found if g.found]
