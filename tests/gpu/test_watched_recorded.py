"""What compute-sanitizer and ncu printed on an H200 for plans of ours, read again: lines, bytes, operations, waits. The
recording is `tests/gpu/card/test_watched.py`'s own, and no card is needed here."""
import json
import lzma
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.figures import gpu_roofline_figure, waterfall_figure
from kernel_lab.figures.theme import figure_texts
from kernel_lab.gpu.launch.counters import COUNTERS, PlanCounters, counters_of
from kernel_lab.gpu.launch.sanitizer import SANITIZER_CHECKS, KernelMap, sanitizer_findings, sanitizer_trouble, unprinted
from watched_kernels import KERNELS

RECORDED = json.loads(lzma.decompress((Path(__file__).parent / 'watched_h200.json.xz').read_bytes()))


SAID = {('unmasked', 'memcheck'): ('doubled', 'reads 16 bytes behind the end of x', 6),
        ('cuda', 'memcheck'): ('outside', 'writes 4 bytes behind the end of a buffer', 4),
        ('cuda', 'racecheck'): ('races', 'line 11 writes shared memory that line 12 reads, with no barrier between them', 20),
        ('cuda', 'initcheck'): ('unset', 'reads 4 bytes of a buffer that nobody wrote', 20)}


def test_every_kernel_was_recorded():
    assert set(RECORDED['sanitizer']) == set(KERNELS) and set(RECORDED['counters']) == {'softmax', 'matmul'}
    texts = {check: RECORDED['sanitizer']['cuda']['runs'][check][1] for check in SANITIZER_CHECKS}
    assert [unprinted(texts[c]) for c in SANITIZER_CHECKS] == [0, 1005, 236]


def lines_of(name): return {entry: {int(k): v for k, v in lines.items()} for entry, lines in name.items()}


@pytest.mark.parametrize('name', RECORDED['sanitizer'])
@pytest.mark.parametrize('check', SANITIZER_CHECKS)
def test_findings_stand_on_the_marked_lines(name, check):
    found = RECORDED['sanitizer'][name]
    status, text, places = found['runs'][check]
    lines = lines_of(found['lines'])
    where = KernelMap({entry: (found['names'][entry], lines[entry]) for entry in lines}, places)
    findings = sanitizer_findings(check, text, where)
    source = found.get('source', KERNELS[name])                    # of a run before this file was
    marked = {k for k, row in enumerate(source.splitlines(), 1) if check in row.partition('#!')[2].split()}
    assert {f.line for f in findings} == marked and bool(findings) == bool(marked) and not sanitizer_trouble(text)
    assert (status == 'crash') == (bool(marked) and check == 'memcheck')
    if (name, check) in SAID: assert [(f.kernel, f.says, f.count) for f in findings] == [SAID[name, check]]


def counted(name):
    found = RECORDED['counters'][name]
    binaries = [SimpleNamespace(kernel=SimpleNamespace(entry=e, name=e), sass=[SimpleNamespace(address=a, line=l) for a, l in lines.items()])
                for e, lines in lines_of(found['lines']).items()]
    kernel = SimpleNamespace(chip='sm_90', buffers=[], steps=[], outputs=[], launches=[])
    got = counters_of(kernel, binaries, found, found['card'])
    return PlanCounters(got.status, got.launches, got.card, got.chip, found['least_bytes'])


def test_a_product_works_on_tensor_cores():
    found = counted('matmul')
    assert found.operations['fp16_tflops'] == pytest.approx(2 * 2048 ** 3, rel=0.01) == found.total('tensor_operations')
    assert found.profile.bound == 'Tensor' and found.roofline_point.bound == 'compute'
    assert 17 < found.floor_us < 18 and found.floors_us['compute'] == found.floor_us            # 2 · 2,048³ at 989 TFLOP/s
    assert found.waterfall().bar[0] == 'ideal compute' and found.waterfall().us.sum() == pytest.approx(found.us)
    loop = {8, 9, 10, 11}
    assert sum(sum(w.values()) for line, w in found.waits.items() if line in loop) > 0.8 * found.us


def test_a_softmax_waits_for_memory():
    found = counted('softmax')
    assert found.total('read_bytes') == pytest.approx(64 << 20, rel=0.01) and not found.total('tensor_operations')
    assert found.peak_gbps == pytest.approx(4800, rel=0.02)                                       # what the data sheet of an H200 says
    assert max(found.waits, key=lambda line: sum(found.waits[line].values())) == 7              # the line that needs the row
    assert 0.85 < found.floor_us / found.us < 0.95 and found.roofline_point.bound == 'memory'


def test_figures_of_what_was_counted():
    both = {name: counted(name) for name in ('softmax', 'matmul')}
    title, note = figure_texts(gpu_roofline_figure(both))[:2]
    assert 'measured on NVIDIA H200' in note and 'Tensor in fp16' in title
    title, note = figure_texts(waterfall_figure(both['softmax']))[:2]
    assert 'of the time is ideal memory' in title and 'under ncu' in note
    with pytest.raises(UsageError, match='at least one'): gpu_roofline_figure({})
    other = PlanCounters('counted', both['softmax'].launches, 'NVIDIA A100', 'sm_80')
    with pytest.raises(UsageError, match='one card'): gpu_roofline_figure({**both, 'other': other})


@pytest.mark.parametrize('missing', sorted(COUNTERS.keys() - {'ns'}))
def test_a_counter_that_a_chip_lacks_is_unknown(missing):
    metric = COUNTERS[missing][0]
    raw = RECORDED['counters']['softmax']['raw']
    if missing not in ('spill_read', 'spill_written'):             # recorded before these were asked for
        assert f'"{metric}"' in raw
        raw = raw.replace(f'"{metric}"', '"of another chip"')
    found = counters_of(SimpleNamespace(chip='sm_90', buffers=[], steps=[], outputs=[], launches=[]), [], {'raw': raw, 'source': ''}, 'a card')
    assert getattr(found.launches[0], missing) is None
    assert str(found) and found._repr_html_() and found.profile and len(found.waterfall()) == 2


@pytest.mark.parametrize('raw', ['', '==ERROR== The application returned an error', '"ID","Kernel Name"\n', '"a"\n"b"\n', '"ID"\n"0"\n'])
def test_an_answer_without_counters_is_a_sentence(raw):
    with pytest.raises(KernelError, match='no counters'): counters_of(SimpleNamespace(chip='sm_90', launches=[]), [], {'raw': raw, 'source': ''}, 'a card')
