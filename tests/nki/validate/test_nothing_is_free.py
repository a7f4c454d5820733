"""No kernel passes a peak of the lab, and equal work has its price: copies of all kinds, the suite's first kernels."""
import pytest
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.explain.efficiency import efficiency
from kernel_lab.nki.ir.nodes import ArraySpec
from kernel_lab.nki.lang import isa as nisa, language as nl
from kernel_lab.nki.lang.trace import trace, trace_source
from kernel_lab.nki.timing.flat_program import dma_ns
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.core.errors import KernelError
from kernel_lab.nki.validate.nothing_is_free import DIVIDE, PEAKS, TIMES, WORKS, equal_work, kernel_of, moved_ns
from kernel_lab.tasks.codegen.lower import first_kernel_for
from kernel_lab.tasks.suite.registry import TASKS


def shares(timeline):
    "Every share of a peak that the lab shows, but AccelOpt's, which is another unit."
    e = efficiency(timeline)
    return {k: getattr(e, k) for k in ('mfu', 'hfu', 'mbu', 'mbu_least', 'roof_share')} | {'peak': e.peak_pct / 100}

def assert_within_peaks(timeline):
    found = shares(timeline)
    assert max(found.values()) <= 1 + 1e-9, (timeline, found)

ON_CHIPS = pytest.mark.parametrize('chip', [c if c == 'trn2' else pytest.param(c, marks=pytest.mark.slow) for c in CHIPS])

@ON_CHIPS
@pytest.mark.parametrize('work', WORKS, ids=lambda w: w.name)
def test_no_way_of_any_work_passes_a_peak(work, chip):
    for way in work.ways.values():
        try: timeline = schedule(kernel_of(way, 4 * TIMES, chip), chip)
        except KernelError:
            assert chip != 'trn2'                               # only other chips lack a way
            continue
        assert_within_peaks(timeline)

@pytest.mark.parametrize('chip', [c for c in CHIPS if c != 'trn2'])                   # of trn2 the page asks it
def test_equal_work_is_never_free(chip):
    pairs = equal_work(chips=(chip,))
    ran = pairs[pairs.refused == '']
    assert len(ran) >= 60 and not len(ran[(ran.ns < ran.bound_ns) | (ran.plain_ns < ran.bound_ns)])
    divisions = ran[ran.work == DIVIDE.name]
    assert len(divisions) > 5 and (divisions.ns >= 0.999 * divisions.plain_ns).all()

@pytest.mark.parametrize('chip', CHIPS)
@pytest.mark.parametrize('shape', [(128, 64), (128, 8192), (8, 8192), (1, 30000), (4096, 512)])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'uint8'])
def test_copies_of_all_kinds_stay_below_the_peak_of_memory(chip, shape, dtype):
    def through(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for k in range(-(-shape[0] // 128)):
            rows = nl.ds(k * 128, min(128, shape[0]))
            t = nl.ndarray((min(128, shape[0]), shape[1]), x.dtype)
            nisa.dma_copy(t, x[rows, :])
            nisa.dma_copy(out[rows, :], t)
        return out
    def within(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for _ in range(8): nisa.dma_copy(out, x)
        return out
    for kernel in (through, within): assert_within_peaks(schedule(trace(kernel, ArraySpec(shape, dtype), chip=chip)))

def test_an_input_that_is_not_read_counts_for_nothing():
    "A kernel that needs one row of a large table is not above the peak for the rest of it."
    def kernel(table):
        t = nl.ndarray((128, 16), table.dtype)
        out = nl.ndarray((128, 16), table.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(t, table[nl.ds(0, 128), 0:16])
        nisa.dma_copy(out, t)
        return out
    assert_within_peaks(schedule(trace(kernel, ArraySpec((128, 2**20)), chip='trn2')))

def assert_first_kernel_within_peaks(task):
    specs = [ArraySpec(v.shape, str(v.dtype)) for v in task.draw('small', 0).values()]
    program = trace_source(first_kernel_for(task, 'small').source, None, specs)
    for chip in CHIPS: assert_within_peaks(schedule(program, chip))

@pytest.mark.sampled(2)
@pytest.mark.parametrize('name', sorted(TASKS)[::12])
def test_first_kernels_stay_below_the_peaks(name): assert_first_kernel_within_peaks(TASKS[name])

@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(TASKS))
def test_every_first_kernel_stays_below_the_peaks(name): assert_first_kernel_within_peaks(TASKS[name])

@pytest.mark.parametrize('chip', CHIPS)
@pytest.mark.parametrize('partitions', [1, 3, 8, 9, 64, 100, 128])
def test_few_partitions_are_few_engines(chip, partitions):
    "However a load of P partitions is cut along the row, P/8 engines carry it."
    def kernel(x):
        t = nl.ndarray((partitions, 4096), x.dtype)
        nisa.dma_copy(t, x[nl.ds(0, partitions), :])
        out = nl.ndarray((partitions, 4096), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, t)
        return out
    program = trace(kernel, ArraySpec((128, 4096)), chip=chip)
    ns, _ = dma_ns(program, program.instructions[0], CHIPS[chip])
    assert ns >= moved_ns(PEAKS[chip], 4 * 4096 * partitions, partitions)
