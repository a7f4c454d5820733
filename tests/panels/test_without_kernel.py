"""Figures, panels and records on pages without a kernel, a server or a network, in a real browser: what nbconvert
writes, files for a friend, hostile text."""
import base64
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import nbformat
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from chromium import CHROMIUM, barriers, launched

if not find_spec('playwright'): pytest.skip('playwright is not installed', allow_module_level=True)
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not CHROMIUM, reason='there is no Chromium on this machine (apt-get install chromium)')
EVIL = '</style></script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">\x1b[2J" onclick="window.hacked = 1'
PLOTLY = 'application/vnd.plotly.v1+json'               # all that a kernel gives of a plotly figure
VIEW, STATE = 'application/vnd.jupyter.widget-view+json', 'application/vnd.jupyter.widget-state+json'


@pytest.fixture(scope='module')
def page():
    with launched() as browser:
        found = browser.new_context(viewport={'width': 1280, 'height': 900}, offline=True).new_page()
        found.asked = []
        found.on('request', lambda r: r.url.startswith(('file:', 'data:', 'blob:')) or found.asked.append(r.url))
        yield found


@pytest.fixture(scope='module')
def loop():
    from kernel_lab.agents.engine.loop import AgentLoop
    found = AgentLoop('softmax', workload='small', chip='trn2', store=False, seeds=1)
    found.step()
    return found


def seen(page, path):
    "Open a file; (plots drawn, records, how wide the page is)."
    page.goto(path.as_uri(), wait_until='domcontentloaded')
    page.evaluate("typeof withPlotly === 'undefined' ? null : new Promise(drawn => withPlotly(() => setTimeout(drawn)))")      # it is unpacked later
    return page.evaluate("""[document.querySelectorAll('.js-plotly-plot .main-svg').length > 0 && document.querySelectorAll('.js-plotly-plot').length,
        document.querySelectorAll('.kl-record').length, document.documentElement.scrollWidth]""")


def buttons(page):
    "What the buttons on the figures of a page offer."
    return set(page.evaluate("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)"))


def displays(loop):
    "Every kind of figure, panel and record that a cell can end in."
    from kernel_lab.figures import error_map_figure, speedup_figure, timeline_figure, utilisation_figure
    from kernel_lab.panels import (CompileLog, CorrectnessDiff, CostPanel, EngineTimeline, Lab, MemoryView, SourceEditor, SpeedupPanel, TimelinePanel,
                                   UtilisationPanel, WhatIf)
    run = loop.run
    e = run.steps[0].evaluation
    timeline = e.profile.timeline
    editor = SourceEditor()
    editor.show(e)
    figures = [timeline_figure(timeline), utilisation_figure(e), speedup_figure(run), error_map_figure(e.verification)]
    panels = [TimelinePanel(timeline), UtilisationPanel(e), SpeedupPanel(run), CorrectnessDiff(e.verification), EngineTimeline(timeline), MemoryView(timeline),
              WhatIf(timeline), CostPanel(run), CompileLog(e), editor, Lab('softmax', 'small', 'trn2', store=False)]
    return figures, panels, [timeline.program, timeline, e.profile, e, run]


def executed(shown):
    "A notebook whose cells ended in `shown`, as an execution leaves it: with the states of its widgets."
    form, cells, states = InteractiveShell.instance().display_formatter, [], {}
    for x in shown:
        data, metadata = ({PLOTLY: json.loads(x.to_json())}, {}) if hasattr(x, 'to_plotly_json') else form.format(x)
        assert data, type(x)
        cells.append(nbformat.v4.new_code_cell('x', outputs=[nbformat.v4.new_output('display_data', json.loads(json.dumps(data)), metadata=metadata)]))
        if VIEW in data: states[data[VIEW]['model_id']] = {'model_name': 'AnyModel', 'model_module': 'anywidget', 'state': {}}
    widgets = {STATE: {'state': states, 'version_major': 2, 'version_minor': 0}}
    return nbformat.v4.new_notebook(cells=cells, metadata={'widgets': widgets})


def test_nbconvert_shows_every_figure_without_a_network(page, loop, tmp_path):
    figures, panels, records = displays(loop)
    nbformat.write(executed([*figures, *panels, *records]), tmp_path / 'all.ipynb')
    config = {**os.environ, 'JUPYTER_CONFIG_PATH': str(ROOT / 'kernel_lab' / 'figures' / 'static'),
              'PYTHONPATH': os.pathsep.join((str(ROOT), str(ROOT / 'tests' / 'support' / 'without_grammars')))}
    subprocess.run([sys.executable, '-m', 'nbconvert', '--to', 'html', 'all.ipynb'], cwd=tmp_path, env=config, check=True, capture_output=True)
    plots, shown, width = seen(page, tmp_path / 'all.html')
    assert plots == len(figures) + 4 + 1 + 1 + 3 and shown >= len(records) + 2 and width <= 1280   # what if: a waterfall and two timelines
    heights = page.evaluate("[...document.querySelectorAll('.jp-OutputArea-output')].map(o => o.getBoundingClientRect().height)")
    assert len(heights) == len(figures + panels + records) and min(heights) > 30           # no output is blank
    assert page.evaluate("[...document.querySelectorAll('.js-plotly-plot .gtitle')].every(t => t.textContent.length > 3)")
    assert buttons(page) == {'Download plot', 'Reset axes'}                                # none uploads a figure
    ragged = page.evaluate("""[...document.querySelectorAll('.kl-record :is(th, td):not(.kl-right)')]
        .filter(c => !/left|start/.test(getComputedStyle(c).textAlign)).map(c => c.textContent)""")
    assert ragged == []                                                 # JupyterLab sets the cells of tables to the right
    page.screenshot(path=Path(os.environ.get('KERNEL_LAB_SHOTS') or tmp_path) / 'nbconvert.png', full_page=True)


def test_a_panel_as_a_file_is_interactive(page, loop, tmp_path):
    from kernel_lab.panels import SpeedupPanel
    page.asked.clear()
    assert seen(page, SpeedupPanel(loop.run).save_html(tmp_path / 'panel.html'))[0] == 1
    page.locator('.js-plotly-plot').hover()
    assert buttons(page) == {'Download plot', 'Reset axes'} and page.asked == []


def test_numbers_of_figures_are_as_they_were_in_what_others_get(page, loop, tmp_path):
    "Their base64 has slashes: whatever looked like an absolute path was taken out, and the figure stayed blank."
    from plotly.graph_objects import Figure, Heatmap
    from kernel_lab.figures import save_figure
    from kernel_lab.figures.notebook_html import plot_html, save_page
    numbers = np.frombuffer(base64.b64decode('AA+/some/ada/x+/y/z8AAAA') * 4 + bytes(8), np.float64).reshape(-1, 2)
    figure = Figure(Heatmap(z=numbers))
    body = plot_html(figure)
    assert '+/some/ada/' in body
    for path in (save_figure(figure, tmp_path / 'figure.html'), save_page('t', body, tmp_path / 'page.html')):
        page.goto(path.as_uri())
        page.locator('.hm image').wait_for(state='attached', timeout=20_000)


def test_hostile_text_runs_nowhere(page, loop, tmp_path):
    from kernel_lab.core.errors import KernelError
    from kernel_lab.core.markup import save_html
    from kernel_lab.evaluate.records.run import Run, Step
    from kernel_lab.panels import CompileLog, SourceEditor, SpeedupPanel
    from kernel_lab.tasks.model.workload import Kernel
    e = loop.run.steps[0].evaluation
    bad = replace(e, status='trace_error', profile=None, verification=None, error=KernelError(EVIL, line=1).to_dict(), log=EVIL, task=EVIL,
                  kernel=Kernel(EVIL, name=EVIL))
    run = Run('r', EVIL, EVIL, 'trn2', EVIL, (Step('r', 0, EVIL, EVIL, EVIL, bad, thought=EVIL),))
    editor = SourceEditor()
    editor.show(bad)
    program = replace(e.profile.timeline.program, name=EVIL, source=EVIL)
    paths = [save_html(x, tmp_path / f'{k}.html', EVIL) for k, x in enumerate((run, bad, program, Kernel(EVIL)))]
    paths += [SpeedupPanel(run).save_html(tmp_path / 'a.html'), CompileLog(bad).save_html(tmp_path / 'b.html')]
    for path in paths:
        seen(page, path)
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        page.mouse.click(300, 100)
        assert page.evaluate('window.hacked') is None and page.locator('img').count() == 0, path
        assert '<script>wi' in page.locator('main').inner_text() + page.title(), path
    nbformat.write(executed([run, bad, editor, SpeedupPanel(run)]), tmp_path / 'evil.ipynb')
    assert 'window.hacked' in (tmp_path / 'evil.ipynb').read_text()


def test_folds_links_and_copies_in_both_themes(page, loop, tmp_path):
    from kernel_lab.core.markup import save_html
    program = loop.run.steps[0].evaluation.profile.timeline.program
    page.context.grant_permissions(['clipboard-read', 'clipboard-write'])
    seen(page, save_html(program, tmp_path / 'program.html'))
    link = page.locator('.kl-line a[href*="-L"]').first
    source = page.locator('details:has(> summary:text("Source"))').last
    assert source.get_attribute('open') is None
    link.focus()
    page.keyboard.press('Enter')                                        # the browser unfolds what a link leads to
    page.locator('.kl-line:target').wait_for()
    number = link.get_attribute('data-n')
    assert page.locator('.kl-line:target').inner_text().strip() == program.source.splitlines()[int(number) - 1].strip()
    page.locator('.kl-copy').first.click()
    page.locator('.kl-copy:text-is("copied")').first.wait_for()
    assert page.evaluate('navigator.clipboard.readText()').strip() == program.source.strip()
    def inks():
        return page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.querySelector('.kl-record')))")
    light = inks()
    page.emulate_media(color_scheme='dark')
    dark = inks()
    page.emulate_media(color_scheme='light')
    assert light != dark and light[1] == 'rgb(255, 255, 255)' and dark[1] == 'rgb(20, 23, 28)'


def test_axe_finds_nothing_serious(page, loop, tmp_path):
    from kernel_lab.core.markup import save_html
    from kernel_lab.figures import report_html
    from kernel_lab.panels import Lab
    run = loop.run
    report_html(run, tmp_path / 'report.html')
    save_html(run.steps[0].evaluation, tmp_path / 'record.html')
    Lab('softmax', 'small', 'trn2', store=False).save_html(tmp_path / 'lab.html')
    found = {}
    for name in ('report', 'record', 'lab'):
        for theme in ('light', 'dark'):
            page.emulate_media(color_scheme=theme)
            seen(page, tmp_path / f'{name}.html')
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
            found[name, theme] = barriers(page)
    page.emulate_media(color_scheme='light')
    assert {key: bad for key, bad in found.items() if bad} == {}


@pytest.mark.slow
def test_a_saved_panel_is_seen_in_the_dark_too(page, loop, tmp_path):
    from kernel_lab.panels import MemoryView
    view = MemoryView(loop.run.steps[0].evaluation.profile.timeline)
    shades = {}
    for theme in ('light', 'dark'):
        page.emulate_media(color_scheme=theme)
        assert seen(page, view.save_html(tmp_path / 'memory.html'))[0] == 1
        ink = page.evaluate("getComputedStyle(document.querySelector('.gtitle')).fill")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        shades[theme] = [sum(map(int, c[4:-1].split(','))) for c in (ink, paper)]
        page.screenshot(path=Path(os.environ.get('KERNEL_LAB_SHOTS') or tmp_path) / f'memory-file-{theme}.png')
    page.emulate_media(color_scheme='light')
    assert shades['light'][1] - shades['light'][0] > 400 and shades['dark'][0] - shades['dark'][1] > 400, shades
