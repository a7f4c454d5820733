"""The figures held against records made by hand: frames, traces, escaping, size. No browser."""
import json
import re
from types import SimpleNamespace as Record

import numpy as np
import pandas as pd
import pytest

from kernel_lab.core.errors import UsageError
from kernel_lab.figures.error_map import error_map_figure, error_map_frame
from kernel_lab.figures.move_path import move_path_figure
from kernel_lab.figures.report import figures_json, ledger_html, report_figures, report_html
from kernel_lab.figures.source import changed_lines, source_frame, source_html
from kernel_lab.figures.speedup import speedup_figure, speedup_frame
from kernel_lab.figures.theme import LANE_COLOURS, THEMES, empty_figure, save_figure, figure_texts
from kernel_lab.figures.timeline import (
    busy_us,
    lane_shares,
    timeline_bars,
    timeline_figure,
    timeline_frame,
    timeline_summary,
    utilisation_figure,
    utilisation_frame,
)

EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(2)>'


def table(n, seed=0, label='op'):
    "A timeline of `n` instructions on random lanes, in no particular order."
    rng = np.random.default_rng(seed)
    start, dur = rng.uniform(0, n / 4, n), rng.uniform(0.01, 1.5, n)
    return pd.DataFrame(
        dict(lane=rng.choice(list(LANE_COLOURS), n), op='op', label=label, start_us=start, end_us=start + dur,
             dur_us=dur, line=rng.integers(1, 40, n), instr=np.arange(n), iteration='i0=1'))


def profile(us, timeline=None):
    return Record(latency_us=us, peak_us=10.0, peak_pct=1000 / us, bound='DMA',
                  engines={'Tensor': 0.1, 'Vector': 0.4, 'Scalar': 0.2, 'GpSimd': 0.0,
                           'DMA': 0.9}, lines={3: {'DMA in': us / 2, 'Vector': us / 4}
                                               }, timeline=timeline if timeline is not None else table(60))


def verification(passed, rows=8, columns=16):
    error = np.full((rows, columns), 0.3)
    if not passed: error[2, 5], error[3, 6] = 40.0, np.nan
    seed = Record(seed=1, output=0, max_abs=1.0, max_rel=1.0, mismatch_share=0.0 if passed else 0.02, worst_index=(2,
                                                                                                                   5),
                  worst_got=1.0, worst_want=0.0, nan_count=0 if passed else 1, first_bad=None if passed else (256, 320))
    tile_map = dict(shape=(rows * 128, columns * 64), tile=(128, 512), cell=(128, 64), first_bad=None if passed else
                    (256, 320), error=[[None if v != v else v for v in row] for row in error.tolist()])
    return Record(passed=passed, tolerance=Record(rtol=1e-5, atol=1e-6, why='float32'), seeds=(seed,),
                  tile_map=tile_map)


def step(index, us, status='correct', move='a move', why='because', error=None,
         source='def kernel(x):\n    return x\n'):
    evaluation = Record(status=status, profile=profile(us) if us else None, error=error,
                        verification=verification(us is not None), log='', seconds={}, task='t', target='nki_sim',
                        versions={'kernel_lab': '0'}, kernel=Record(source=source))
    return Record(index=index, move=move, why=why, expected='', evaluation=evaluation, tokens_in=0, tokens_out=0,
                  cost_usd=0.0, seconds=0.1)


def run(*steps):
    right = [s for s in steps if s.evaluation.profile]
    best = min(right, key=lambda s: s.evaluation.profile.latency_us, default=None)
    return Record(id='r', task='softmax', workload='full', chip='trn1', agent='rewrite', state='finished',
                  created='2026-01-01T00:00:00', config={}, steps=steps, best=best,
                  first_us=right[0].evaluation.profile.latency_us if right else None)


GOOD_RUN = run(step(0, 40.0), step(1, None, 'wrong_result', error={'message': 'off'}), step(2, 20.0), step(3, 30.0))


# the path of moves

def a_worth(before, after, alone, change='x'):
    move = Record(family='fuse nests', change=change, why='why')
    return Record(move=move, before_us=before, after_us=after, gain_us=before - after, alone_us=alone)


@pytest.mark.parametrize('theme', THEMES)
def test_a_path_of_moves_adds_up_and_escapes_what_is_foreign(theme):
    path = [a_worth(90.0, 70.0, 20.0, EVIL), a_worth(70.0, 75.0, None), a_worth(75.0, 30.0, 60.0)]
    fig = move_path_figure(path, theme)
    ends, steps, alone = fig.data
    assert list(ends.x) == [90.0, 30.0] and sum(steps.x) == 60.0
    assert [b + x for b, x in zip(steps.base, steps.x)] == [90.0, 70.0, 75.0]
    assert list(alone.y) == [1, 3] and '<script' not in fig.to_json().replace('\\u003c', '<')
    assert move_path_figure([], theme).layout.title.text.startswith('No move')


# the timeline

def test_busy_time_equals_a_union_by_brute_force():
    rng = np.random.default_rng(1)
    start = np.sort(rng.integers(0, 300, 80))
    end = start + rng.integers(1, 30, 80)
    covered = set().union(*(range(a, b) for a, b in zip(start, end)))
    assert busy_us(start.astype(float), end.astype(float)).sum() == len(covered)


@pytest.mark.parametrize('n', [1, 700, 30_000])
def test_merging_keeps_every_instruction_and_all_busy_time(n):
    t = table(n)
    bars, shares = timeline_bars(t), lane_shares(t)
    assert bars.rows.sum() == n
    for lane, part in bars.groupby('lane'):
        drawn = (part.busy * (part.end_us - part.start_us)).sum() / t.end_us.max()
        # a lone bar under a longer one is drawn whole
        if part.rows.max() > 1: assert drawn == pytest.approx(shares[lane], rel=2e-3)


def test_fifty_thousand_instructions_stay_a_small_figure():
    t = table(50_000)
    fig = timeline_figure(t)
    assert sum(len(trace.base) for trace in fig.data) <= 2 * 800 * len(LANE_COLOURS)
    assert len(fig.to_json()) < 4_000_000
    assert 'merged' in figure_texts(fig)[1]


def test_a_window_is_exact_and_says_so():
    t = table(50_000)
    fig = timeline_figure(t, window=(1000, 1100))
    inside = t[(t.end_us > 1000) & (t.start_us < 1100)]
    assert sum(len(trace.base) for trace in fig.data) == len(inside)
    assert 'one bar each' in figure_texts(fig)[1] and tuple(fig.layout.xaxis.range) == (1000, 1100)


def test_the_words_of_a_timeline_agree_with_its_bars():
    t = table(500)
    rows = timeline_summary(t).set_index('lane')
    assert rows.instructions.to_dict() == t.lane.value_counts().reindex(list(LANE_COLOURS), fill_value=0).to_dict()
    assert rows.loc['Tensor', 'busiest_line'] == t[t.lane == 'Tensor'].groupby('line').dur_us.sum().idxmax()


def test_a_timeline_is_not_altered_by_drawing_it():
    t = table(3000)
    before = t.copy()
    timeline_figure(t, window=(5, 50))
    pd.testing.assert_frame_equal(t, before)


def test_an_empty_timeline_draws_six_empty_lanes():
    assert [len(trace.base) for trace in timeline_figure(table(0)).data] == [0] * 6


def test_what_is_no_timeline_is_refused():
    with pytest.raises(UsageError, match='lacks'): timeline_frame(pd.DataFrame({'lane': []}))
    with pytest.raises(UsageError, match='earlier to a later'): timeline_figure(table(5), window=(2, 2))


# runs

def test_best_so_far_only_falls_and_ignores_failures():
    frame = speedup_frame(GOOD_RUN)
    assert frame.best_us.tolist() == [40, 40, 20, 20]
    assert frame.best.tolist() == [False, False, True, False]
    assert frame.speedup.tolist()[2] == 2.0 and np.isnan(frame.speedup[1])


def test_a_failed_step_is_marked_and_has_no_bar():
    fig = speedup_figure(GOOD_RUN)
    bars, _, failed = fig.data
    assert list(bars.y) == [0, 2, 3] and list(failed.y) == [1]
    assert 'wrong result' in failed.text[0] and 'off' in failed.hovertext[0]


def test_the_line_of_eager_execution_lies_on_no_label():
    one = run(step(0, 40.0), step(1, 20.0))
    one.eager_us = 41.0
    [line] = [s for s in speedup_figure(one).layout.shapes if s.type == 'path']
    heights = [float(y) for y in re.findall(r'[ML]41.0,(\S+)', line.path)]
    assert len(heights) == 10 and all(abs(y - row) > 0.3 for y in heights for row in range(5))       # a label is as high as its bar


def test_a_long_run_stays_readable():
    fig = speedup_figure(run(*(step(i, 40.0 - i / 10) for i in range(120))))
    assert fig.layout.height < 2000 and fig.layout.yaxis.ticktext[7] == '7'


def test_a_run_whose_first_kernel_fails_counts_from_the_first_correct_one():
    frame = speedup_frame(run(step(0, None, 'trace_error'), step(1, 40.0), step(2, 10.0)))
    assert frame.speedup.tolist()[1:] == [1.0, 4.0] and np.isnan(frame.best_us[0])


def test_utilisation_compares_first_and_best():
    frame = utilisation_frame(GOOD_RUN)
    assert set(frame.kernel) == {'first', 'best'} and len(frame) == 10
    assert len(utilisation_figure(GOOD_RUN.best.evaluation).data) == 1
    assert figure_texts(utilisation_figure(run(step(0, None, 'timeout'))))[0] == 'No utilisation yet'


# correctness

def test_the_map_has_tile_borders_nan_and_the_first_bad_element():
    fig = error_map_figure(verification(False))
    assert [t.name for t in fig.data] == ['error', 'not a number', 'first bad']
    assert {s.x0 for s in fig.layout.shapes if s.x0 == s.x1} == {0, 512, 1024}
    assert {s.y0 for s in fig.layout.shapes if s.y0 == s.y1} == set(range(0, 1025, 128))
    assert np.nansum(fig.data[1].z) == 1 and list(fig.data[2].x)[0] == 320


def test_the_words_of_a_map_name_the_tile():
    worst = error_map_frame(verification(False)).iloc[0]
    assert (worst.row, worst.column, worst.worst) == (256, 0, 40.0)
    assert error_map_frame(None).empty and error_map_frame(verification(True)).bad_share.sum() == 0


def test_infinite_errors_and_odd_shapes_draw():
    v = verification(False)
    v.tile_map.update(error=[['inf', None, 2.0]], shape=(1, 700), cell=(1, 256), first_bad=(0, 0))
    assert len(error_map_figure(v).data) == 3


# foreign text

@pytest.fixture(scope='module')
def evil_report(tmp_path_factory):
    steps = step(0, 40.0, move=EVIL, why=EVIL, source=EVIL), step(1, None, 'limit_exceeded', EVIL, EVIL, {
        'message': EVIL, 'line': 1}), step(2, 20.0, move=EVIL, source=f'{EVIL}\n# {EVIL}')
    for s in steps:
        if s.evaluation.profile: s.evaluation.profile.timeline = table(30, label=EVIL)
        s.evaluation.versions = {EVIL: EVIL}
    r = run(*steps)
    r.task = r.workload = r.agent = r.id = r.chip = r.state = r.created = EVIL
    return report_html(r, tmp_path_factory.mktemp('report') / 'report.html').read_text()


def test_no_foreign_markup_reaches_the_report(evil_report):
    from kernel_lab.figures.files.drawn import plotly_script
    page = evil_report.replace(plotly_script(), '')
    assert 'alert(1)' in page                                       # the text is there …
    assert '<img' not in page and 'script>alert' not in page and page.count('<script') == 3        # … and is only text


def test_a_report_asks_nobody_for_anything(evil_report):
    assert "default-src 'none'" in evil_report
    head = evil_report[:evil_report.index('<script>')]
    assert not re.search(r'<[a-z][^>]*\s(src|href)\s*=|@import|url\(', head)


def test_every_latency_of_a_report_is_called_simulated(tmp_path):
    page = report_html(GOOD_RUN, tmp_path / 'r.html').read_text()
    body = page[page.index('<body>'):page.index('<script>')]
    for part in re.findall(r'<div><b>[^<]*µs</b><span>[^<]*', body) + re.findall(r'title="[^"]*µs[^"]*"', body):
        assert 'simulated' in part
    assert 'simulated latency' in ledger_html(GOOD_RUN) and 'none was measured' in body
    for fig, _ in report_figures(GOOD_RUN).values():
        said = ' '.join(figure_texts(fig))
        assert 'µs' not in said or 'simulated' in said


def test_figures_show_foreign_text_as_text():
    r = run(step(0, 40.0, move='<b>x</b>'))
    assert '&lt;b&gt;' in speedup_figure(r).layout.yaxis.ticktext[0]
    assert '<img' not in timeline_figure(table(3, label=EVIL)).data[0].hovertext.__repr__()
    assert '<' not in figures_json({'a': (empty_figure(EVIL), None)})
    assert '<img' not in source_html('a', EVIL)


# the rest

def test_changed_lines_rebuild_both_texts():
    a, b = 'x\ny\nz\n', 'x\nnew\nz\nmore\n'
    rows = changed_lines(a, b)
    assert [t for m, _, t in rows if m != '+'] == a.splitlines() and [t for m, _, t in rows
                                                                      if m != '-'] == b.splitlines()
    assert source_frame(a, b, profile(8.0)).busy_us.max() == 6.0


@pytest.mark.parametrize('theme', THEMES)
def test_every_figure_exists_on_every_paper(theme):
    figures = [
        timeline_figure(table(9), theme=theme),
        utilisation_figure(GOOD_RUN, theme=theme),
        speedup_figure(GOOD_RUN, theme=theme),
        error_map_figure(verification(False), theme=theme)]
    for fig in figures:
        assert json.loads(fig.to_json())['layout']['template']['layout']['font']['color'] == THEMES[theme]['ink']


def test_files_are_written_and_odd_kinds_refused(tmp_path):
    assert save_figure(empty_figure('x'), tmp_path / 'x.html', theme='dark').stat().st_size > 1e6
    assert json.loads(save_figure(empty_figure('x'),
                                  tmp_path / 'x.json').read_text())['layout']['title']['text'].startswith('x')
    with pytest.raises(UsageError, match='kind of figure file'): save_figure(empty_figure('x'), tmp_path / 'x.bmp')

def test_two_cores_have_lanes_of_their_own():
    "Rows of a kernel on two cores never share a lane with those of the other; colours are those of the engines."
    import pandas as pd
    from kernel_lab.figures.theme import LANE_COLOURS
    from kernel_lab.figures.timeline import lane_shares, timeline_figure
    row = dict(op='tensor_copy', label='x', start_us=0.0, end_us=2.0, dur_us=2.0, line=1, instr=0, iteration='')
    table = pd.DataFrame([row | dict(lane='Vector', core=c) for c in (0, 1)] + [row | dict(lane='DMA in', core=-1)])
    assert list(lane_shares(table)) == [f'{lane} {c}' for c in (0, 1) for lane in LANE_COLOURS]
    bars = [d for d in timeline_figure(table).data if d.y is not None and len(d.y)]
    assert {(d.name, int(d.y[0]), d.marker.color) for d in bars} == {('Vector 0', 1, LANE_COLOURS['Vector']),
                                                                     ('Vector 1', 7, LANE_COLOURS['Vector']),
                                                                     ('DMA in 0', 4, LANE_COLOURS['DMA in'])}
