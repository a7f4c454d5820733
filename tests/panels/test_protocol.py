"""The widgets on a bare page that offers only what anywidget's protocol names (get, set, save_changes, on, off, send),
as a host that is not JupyterLab does: VS Code, a page of one's own."""
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from chromium import CHROMIUM, barriers
from kernel_lab.panels.style import STATIC
from test_details import plain

if not find_spec('playwright'): pytest.skip('playwright is not installed', allow_module_level=True)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason='there is no Chromium on this machine (apt-get install chromium)')
MOUNT = """async ([source, css, state]) => {
    const revive = x => x?.bytes !== undefined ? new DataView(Uint8Array.from(atob(x.bytes), c => c.charCodeAt(0)).buffer)
        : Array.isArray(x) ? x.map(revive) : x && typeof x === 'object'
        ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, revive(v)])) : x
    const held = revive(state), heard = new Map()
    const model = { get: k => held[k], set: (k, v) => { held[k] = v; heard.get('change:' + k)?.forEach(f => f()) }, save_changes: () => {},
        on: (what, f) => heard.set(what, [...heard.get(what) ?? [], f]), off: (what, f) => heard.set(what, (heard.get(what) ?? []).filter(g => g !== f)),
        send: said => window.sent.push(said) }
    const found = await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })))
    const at = document.body.appendChild(document.createElement('div'))
    at.className = 'kl'
    at.append(Object.assign(document.createElement('style'), { textContent: css }))
    await found.default.initialize?.({ model })
    window.models.push(model); window.ends.push(await found.default.render?.({ model, el: at }))
    await new Promise(requestAnimationFrame)
    return at.textContent.length + at.querySelectorAll('canvas, svg, input, textarea').length }"""


@pytest.fixture(scope='module')
def lab():
    from kernel_lab.panels import Lab
    found = Lab('softmax', 'small', store=False, seeds=1)
    found.control.button.click()
    found.control.wait()
    for name in ('Memory', 'What if'): found.details.look_at(name)
    return found


def parts(widget):
    "A widget and all that it holds, in tabs that are closed too."
    yield widget
    for child in (*getattr(widget, 'children', ()), *getattr(widget, 'built', {}).values()): yield from parts(child)


def test_every_widget_is_of_a_package_that_other_hosts_know(lab):
    shown = list(parts(lab))
    assert {w._model_module for w in shown} <= {'@jupyter-widgets/base', '@jupyter-widgets/controls', 'anywidget'}
    assert len({type(w).__name__ for w in shown if w._model_module == 'anywidget'}) >= 8


def test_scripts_and_sheets_name_nothing_of_jupyterlab():
    for path in sorted(STATIC.iterdir()):
        text = path.read_text(encoding='utf-8')
        for word in ('jupyterapp', 'window.jupyter', 'requirejs', 'require(', 'widget_manager', '.jp-', 'fetch(', 'https:'):
            assert word not in text.lower(), (path.name, word)
        bare = re.findall(r'var\(--jp-[\w-]+\)', text)
        assert not bare, f'{path.name}: {bare} has no second value'


@needs_chromium
def test_widgets_draw_with_the_protocol_alone(browser, lab, tmp_path):
    page = browser.new_page(viewport={'width': 1280, 'height': 1400})
    wrong = []
    page.on('pageerror', lambda e: wrong.append(str(e)))
    page.on('request', lambda r: r.url.startswith(('blob:', 'data:', 'about:')) or wrong.append(r.url))
    page.set_content('<body style="margin:8px;background:#fff"></body>')
    page.evaluate('window.sent = []; window.models = []; window.ends = []')
    sheet, drawn = lab.children[0].value.removeprefix('<style>').removesuffix('</style>'), {}
    for w in parts(lab):
        if w._model_module != 'anywidget' or type(w).__name__ in drawn: continue
        state = w.get_state()
        given = [state.pop('_esm'), sheet + state.pop('_css', ''), plain({k: v for k, v in state.items() if k in w.keys and k != 'layout'})]
        drawn[type(w).__name__] = page.evaluate(MOUNT, given)
    unseen = {'Library', 'Plot', 'Fit'}                 # plotly.js comes as a message, and then draws
    assert {'TimelineCanvas', 'MemoryCanvas', 'SourceEditor', 'TaskSearch', 'StopSlider'} <= set(drawn)
    assert all(n > 0 for name, n in drawn.items() if name not in unseen), drawn
    assert {'type': 'library'} in page.evaluate('window.sent')
    area = page.locator('textarea').first
    area.fill('nisa.')
    area.press('Control+Enter')
    assert {'type': 'evaluate'} in page.evaluate('window.sent')
    assert int(page.locator('.kl-tl canvas').first.get_attribute('data-bars')) > 5
    page.screenshot(path=Path(os.environ.get('KERNEL_LAB_SHOTS') or tmp_path) / 'protocol.png')
    page.evaluate('window.ends.forEach(end => end?.())')          # a view that goes leaves nothing behind that fails
    page.wait_for_timeout(200)
    page.close()
    assert wrong == []


@needs_chromium
def test_outputs_without_a_kernel_are_readable_in_vs_code(browser, lab, tmp_path):
    "What a notebook keeps as HTML stands on the editor's own dark background, under its variables."
    page = browser.new_page(viewport={'width': 1280, 'height': 1600})
    shown = lab._repr_mimebundle_()['text/html'] + lab.loop.run._repr_html_()
    page.set_content('<body style="background:#1f1f1f;color:#ccc;--vscode-editor-background:#1f1f1f;'
                     f'--vscode-editor-foreground:#cccccc">{shown}</body>')
    page.wait_for_timeout(100)
    page.screenshot(path=Path(os.environ.get('KERNEL_LAB_SHOTS') or tmp_path) / 'vscode-dark.png')
    assert [b for b in barriers(page, '.kl') if 'contrast' in b] == []
    assert 'drawn when the cell is run' in page.locator('.kl-plot').first.inner_text()
    page.close()
