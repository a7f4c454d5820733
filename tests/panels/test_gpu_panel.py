"""The panel of a GPU kernel in a browser, both themes: its view of source and assembly on an empty page, the whole panel as a
saved page, hostile text, keys, and a stop in the background. No GPU, and no Triton: recorded kernels."""
import os
import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from chromium import CHROMIUM, barriers
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.gpu.recorded import recorded_kernel, recorded_names
from kernel_lab.evaluate.store.store import Store
from kernel_lab.panels import GpuBench, GpuPanel
from kernel_lab.panels.gpu.code_view import compiled_view, view_data
from kernel_lab.panels.style import PANEL_CSS, script_files

EVIL = '</span></div><img src=x onerror="window.evil = 1"><script>window.evil = 1</script>'
DARK = '--jp-ui-font-color1:#e4e7ec;--jp-ui-font-color2:#9aa2ae;--jp-layout-color0:#14171c;--jp-layout-color1:#14171c;background:#14171c'
MOUNT = """async ([source, given]) => {
    const found = await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })))
    window.heard = []
    window.panel = found.mount(document.getElementById('at'), { select: line => heard.push(line) })
    panel.show(given) }"""
with_browser = pytest.mark.skipif(not CHROMIUM or not find_spec('playwright'), reason='there is no Chromium on this machine')


@pytest.fixture
def mounted(browser, tmp_path):
    "mounted(what it shows, dark=False) → a page of 1,280 pixels with a `CodeView`; it had no error when the test ends."
    pages, errors, files = [], [], script_files('syntax', 'code_view')
    def open_page(given, dark=False):
        page = browser.new_page(viewport={'width': 1280, 'height': 640})
        pages.append(page)
        page.on('pageerror', lambda e: errors.append(str(e)))
        page.on('request', lambda r: r.url.startswith(('blob:', 'data:', 'about:')) or errors.append(r.url))
        sheet = PANEL_CSS + files['_css']
        page.set_content(f'<html lang="en"><title>t</title><body style="margin:8px;{DARK if dark else ""}"><style>{sheet}</style>'
                         '<main class="kl" id="at"></main></body></html>')
        page.evaluate(MOUNT, [files['_esm'], given])
        page.shots = Path(os.environ.get('KERNEL_LAB_SHOTS') or tmp_path)
        return page
    yield open_page
    for page in pages: page.close()
    assert errors == []


def softmax():
    r = recorded_kernel('softmax')
    return compiled_view(r.compiled, 0, r.stages[0])


def chosen(page, cls): return page.locator(f'.{cls} [aria-selected=true]')


@pytest.mark.sampled(2)
@with_browser
@pytest.mark.parametrize('dark', [False, True], ids=['light', 'dark'])
def test_a_line_shows_its_instructions_and_an_instruction_its_line(mounted, dark):
    page, data = mounted(softmax(), dark), softmax()
    sass = next(l for l in data['listings'] if l['stage'] == 'sass')
    of_line = [k for k, (_, at) in enumerate(sass['rows']) if at == 10]
    assert page.locator('.kl-cx').get_attribute('data-stage') == 'sass' and len(of_line) > 20
    page.locator('.kl-cx-source [role=option]').nth(9).click()
    assert page.locator('.kl-cx-made .kl-cx-lit').count() == len(of_line)
    assert page.evaluate('heard.at(-1)') == 10 and f'{len(of_line)} rows of SASS' in page.locator('.kl-cx-says').inner_text()
    first = chosen(page, 'kl-cx-made')
    assert first.locator('.kl-cx-text').inner_text() == sass['rows'][of_line[0]][0]
    row, box = first.bounding_box(), page.locator('.kl-cx-made').bounding_box()
    assert box['y'] <= row['y'] <= box['y'] + box['height'] - row['height']                 # it is in view
    page.screenshot(path=page.shots / f'code-view-{"dark" if dark else "light"}.png')
    other = next(k for k, (_, at) in enumerate(sass['rows']) if at == 11)
    page.locator('.kl-cx-made [role=option]').nth(other).click()
    assert chosen(page, 'kl-cx-source').locator('.kl-cx-n').inner_text() == '11' and page.evaluate('heard.at(-1)') == 11
    assert barriers(page, '#at') == []


@with_browser
def test_keys_walk_both_sides_and_the_stages(mounted):
    page = mounted(softmax())
    page.locator('.kl-cx-source').focus()
    for _ in range(9): page.keyboard.press('ArrowDown')
    assert chosen(page, 'kl-cx-source').locator('.kl-cx-n').inner_text() == '9'
    page.keyboard.press('ArrowRight')
    assert page.evaluate('document.activeElement.className').endswith('kl-cx-made')
    before = chosen(page, 'kl-cx-made').get_attribute('data-k')
    page.keyboard.press('n')
    assert chosen(page, 'kl-cx-made').get_attribute('data-k') != before
    assert chosen(page, 'kl-cx-source').locator('.kl-cx-n').inner_text() == '9'             # the next row of the same line
    page.keyboard.press('p')
    assert chosen(page, 'kl-cx-made').get_attribute('data-k') == before
    page.keyboard.press('ArrowLeft')
    page.keyboard.press('Home')
    assert chosen(page, 'kl-cx-source').locator('.kl-cx-n').inner_text() == '1'
    assert 'nothing in SASS' in page.locator('.kl-cx-says').inner_text()
    tab = page.locator('[role=tab][aria-selected=true]')
    tab.focus()
    for wanted in ('TTIR', 'TTGIR', 'LLVM IR', 'PTX', 'SASS'):
        page.keyboard.press('ArrowRight')
        assert tab.inner_text() == wanted and page.evaluate('document.activeElement.textContent') == wanted
    page.locator('.kl-cx-source [role=option]').nth(9).click()
    page.locator('.kl-cx-only input').check()
    shown = page.locator('.kl-cx-made [role=option]:visible')
    assert {*page.locator('.kl-cx-made [role=option]:visible .kl-cx-n').all_text_contents()} == {'10'} and shown.count() > 3
    page.keyboard.press('Tab')
    assert page.evaluate('document.activeElement.className').endswith('kl-cx-source')       # no trap


@with_browser
def test_spills_are_marked_and_reached_by_a_key(mounted):
    r = recorded_kernel('softmax of eight rows')
    data = compiled_view(r.compiled)
    page = mounted(data)
    bad = [int(l) for l, m in data['marks'].items() if any(kind == 'bad' for kind, _ in m['tags']) or m['signs']]
    page.locator('.kl-cx-source').focus()
    page.keyboard.press('m')
    assert chosen(page, 'kl-cx-source').locator('.kl-cx-n').inner_text() == str(bad[0])
    tags = page.locator('.kl-cx-source .kl-cx-tag.kl-cx-bad')
    assert tags.count() >= 1 and 'spills' in tags.first.inner_text()
    for tag in tags.all():                                                                  # a tag covers no text
        row = tag.locator('xpath=ancestor::*[@role="option"]')
        assert row.locator('.kl-cx-text').bounding_box()['y'] + 15 < tag.bounding_box()['y']
    page.screenshot(path=page.shots / 'code-view-spills.png')


@with_browser
def test_hostile_text_stays_text(mounted):
    r = recorded_kernel('softmax')
    listing = r.stages[0][0]
    listing = replace(listing, rows=((EVIL, 1), *listing.rows))
    page = mounted(view_data(f'# {EVIL}\nx = 1\n', EVIL, EVIL, {}, {1: EVIL}, [listing], EVIL))
    page.locator('.kl-cx-source [role=option]').first.click()
    page.wait_for_timeout(200)
    assert page.evaluate('window.evil') is None and page.locator('#at img, #at script').count() == 0
    assert EVIL in page.locator('.kl-cx-source').inner_text() and EVIL in page.locator('.kl-cx-made').inner_text()


@pytest.mark.sampled(3)
@with_browser
@pytest.mark.parametrize('name', ['softmax of tiles', 'softmax of eight rows', 'relu in CUDA C++'])
def test_a_saved_panel_reads_in_both_themes_and_after_a_reload(browser, tmp_path, name):
    r = recorded_kernel(name)
    e = replace(r.evaluation, log=f'{r.evaluation.log}\n{EVIL}')
    path = GpuPanel(r.compiled, e, r.stages if name == 'softmax of tiles' else {}).save_html(tmp_path / 'panel.html')
    page = browser.new_page(viewport={'width': 1280, 'height': 900})
    shots, file = Path(os.environ.get('KERNEL_LAB_SHOTS') or tmp_path), name.replace(' ', '-').replace('+', 'p')
    for theme in ('light', 'dark'):
        page.emulate_media(color_scheme=theme)
        page.goto(path.as_uri())
        page.reload()
        page.wait_for_timeout(300)
        assert page.evaluate('window.evil') is None and page.evaluate('document.documentElement.scrollWidth') <= 1280
        assert 'unknown: there is no card here' in page.locator('.kl-numbers').inner_text()
        assert page.locator('svg.kl-graph').count() == 1
        page.screenshot(path=shots / f'gpu-panel-{file}-{theme}.png', full_page=True)
        assert barriers(page) == []
    page.locator('summary:has-text("Line by line")').click()
    assert page.locator('details details summary:has-text("instructions")').first.is_visible()
    page.close()


def test_stages_are_not_ticked_that_were_not_reached():
    from kernel_lab.panels.gpu.gpu_panel import stage_verdicts
    for name in recorded_names():
        found = {stage: mark for stage, mark, _ in stage_verdicts(recorded_kernel(name).evaluation)}
        assert found['time'] == '–', name
    e = recorded_kernel('softmax').evaluation
    error = {'message': 'the PTX of f is not what the text of the kernel compiles to', 'kind': 'invalid'}
    forged = replace(e, status='implausible', verification=None, gpu=None, error=error)
    assert [mark for _, mark, _ in stage_verdicts(forged)] == ['✓', '✓', '✕', '–', '–']


def test_a_bench_stops_at_once_and_shows_nothing_of_what_was_stopped(monkeypatch):
    began, go = threading.Event(), threading.Event()
    def slow(kernel, *args, on_stage, **more):
        on_stage('plan', None)
        began.set()
        go.wait(20)
        on_stage('plan', 1.0)
        return recorded_kernel('softmax of tiles').evaluation
    monkeypatch.setattr('kernel_lab.evaluate.pipeline.evaluate', slow)
    monkeypatch.setattr(GpuBench, 'missing', None)
    bench = GpuBench('softmax', 'small')
    bench.begin()
    assert began.wait(10) and bench.busy and 'plan' in bench.message and bench.button.disabled
    since = time.monotonic()
    bench.stop()
    assert time.monotonic() - since < 2 and bench.message.startswith('Stopped') and not bench.button.disabled
    go.set()
    assert bench.work.thread.join(10) is None and not bench.work.thread.is_alive()
    assert bench.panel.evaluation is None and bench.message.startswith('Stopped')


def test_a_judged_text_is_shown_with_its_line(monkeypatch):
    e = recorded_kernel('softmax').evaluation
    refused = replace(e, status='unsupported', verification=None, gpu=None, error={'message': EVIL, 'kind': 'unsupported', 'line': 8})
    monkeypatch.setattr('kernel_lab.evaluate.pipeline.evaluate', lambda *args, **more: refused)
    monkeypatch.setattr('kernel_lab.panels.gpu.gpu_bench.compiled_again', lambda e, task: (None, {}, ''))
    bench = GpuBench('softmax', 'small')
    assert bench.evaluate() is refused and [*bench.editor.marks] == ['8'] and [*bench.panel.view.shown['errors']] == ['8']
    assert '<img' not in bench.panel.head.value and '<img' not in bench.status.value and '<img' not in bench.panel.static_html()


def test_nothing_is_compiled_again_after_judging_and_what_is_known_is_shown_first(monkeypatch):
    r, shown = recorded_kernel('softmax'), []
    def judged(kernel, *args, on_compiled, **more):
        on_compiled(r.compiled, {})
        shown.append((bench.panel.compiled is r.compiled, bench.panel.evaluation))
        on_compiled(r.compiled, r.stages)
        return r.evaluation
    monkeypatch.setattr('kernel_lab.evaluate.pipeline.evaluate', judged)
    monkeypatch.setattr('kernel_lab.panels.gpu.gpu_bench.compiled_again', lambda e, task: pytest.fail('compiled a second time'))
    bench = GpuBench('softmax', 'full')
    assert bench.evaluate() is r.evaluation and shown == [(True, None)]
    assert bench.panel.compiled is r.compiled and bench.panel.stages == r.stages and bench.earlier.value == r.evaluation.id
    bench.open_earlier('')
    assert bench.panel.compiled is None and 'rows' in bench.editor.value
    bench.open_earlier(r.evaluation.id)                                       # nor when it is opened again
    assert bench.panel.compiled is r.compiled and not bench.busy and bench.editor.value == r.evaluation.kernel.source


def test_the_assembly_of_a_real_evaluation_comes_from_its_own_compile(monkeypatch):
    pytest.importorskip('triton', reason='triton is not installed')
    monkeypatch.setattr('kernel_lab.panels.gpu.gpu_bench.compiled_again', lambda e, task: pytest.fail('compiled a second time'))
    bench = GpuBench('softmax', 'small', seeds=1)
    assert bench.evaluate().status == 'correct'
    assert [l.stage for l in bench.panel.stages[0]] == ['ttir', 'ttgir', 'llir'] and bench.panel.compiled.binaries[0].sass


def test_a_bench_after_a_reload_has_the_last_kernel_and_opens_earlier_ones(monkeypatch, tmp_path):
    monkeypatch.setattr(GpuBench, 'missing', None)
    compiled = []
    def again(e, task):
        compiled.append(e.id)
        return recorded_kernel('softmax').compiled, {}, ''
    monkeypatch.setattr('kernel_lab.panels.gpu.gpu_bench.compiled_again', again)
    e, store = recorded_kernel('softmax').evaluation, Store(tmp_path / 'store.db')
    evil = replace(e, id='evil', kernel=replace(e.kernel, source=f'# {EVIL}'), status='unsupported', created='2026-01-01T00:00:00+00:00',
                   error={'message': EVIL, 'kind': 'unsupported', 'line': 1}, verification=None, gpu=None)
    for x in (evil, replace(e, id='new', created='2026-01-02T00:00:00+00:00'), replace(e, id='other', task='relu'),
              replace(e, id='gone', workload='no longer there', created='2026-01-03T00:00:00+00:00')): store.save_evaluation(x)
    bench = GpuBench('softmax', e.workload, store=store)
    assert bench.editor.value == e.kernel.source and [id for _, id in bench.earlier.options] == ['', 'new', 'evil'] and not compiled
    bench.earlier.value = 'evil'
    assert bench.wait(20) and compiled == ['evil'] and bench.editor.value == evil.kernel.source and [*bench.editor.marks] == ['1']
    assert '<img' not in bench.panel.head.value and '<img' not in bench.about.value
    bench.open_earlier('new')
    assert bench.wait(20) and bench.editor.value == e.kernel.source and compiled == ['evil', 'new']
    with pytest.raises(UsageError): bench.open_earlier('nothing')
    bench.pick('relu', None, 'triton')
    assert [id for _, id in bench.earlier.options] == ['', *(['other'] if e.workload in [w.name for w in bench.task.workloads] else [])]
    store.close()
