"""The editor, and what brings plotly.js, in a browser without a notebook: their scripts on an empty page, over a model that only
remembers. The browser has scroll bars that take room, as most people's have."""
from importlib.util import find_spec

import pytest

from chromium import CHROMIUM, barriers
from kernel_lab.panels.source_and_log import SourceEditor
from kernel_lab.panels.style import PANEL_CSS, STATIC

if not find_spec('playwright'): pytest.skip('playwright is not installed', allow_module_level=True)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason='there is no Chromium on this machine (apt-get install chromium)')
SOURCE = '\n'.join(f'line_{k} = nisa.tensor_tensor({"x" * (200 if k == 40 else 20)})' for k in range(1, 61))
MOUNT = """async ([script, traits]) => {
    const found = await import(URL.createObjectURL(new Blob([script], { type: 'text/javascript' }))), heard = {}
    window.model = { get: k => traits[k], on: (k, f) => (heard[k] ??= []).push(f), off() {}, send() {}, save_changes() {},
        set(k, v) { traits[k] = v; for (const f of heard[`change:${k}`] ?? []) f() } }
    found.default.render({ model, el: document.getElementById('at') }) }"""
LINES = """() => { const pre = document.querySelector('pre'), words = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT), tops = []
    for (let n; n = words.nextNode();) for (const m of n.textContent.matchAll(/line_\\d+/g)) { const r = document.createRange()
        r.setStart(n, m.index); r.setEnd(n, m.index + m[0].length); tops.push(r.getBoundingClientRect()) }
    const middle = r => r.top + r.height / 2, numbers = [...document.querySelectorAll('.kl-lineno')]
    return tops.map((r, i) => Math.abs(middle(r) - middle(numbers[i].getBoundingClientRect()))) }"""


@pytest.fixture
def page(browser):
    "An editor of 60 lines, one of them wider than the page; it had no error when the test ends."
    errors, found = [], browser.new_page(viewport={'width': 1000, 'height': 700})
    found.on('pageerror', lambda e: errors.append(str(e)))
    editor = SourceEditor(SOURCE, height=300)
    found.set_content(f'<style>{PANEL_CSS}{editor._css}</style><div class="kl" id="at"></div>')
    found.evaluate(MOUNT, [editor._esm, {k: getattr(editor, k) for k in editor.keys if not k.startswith('_') and k not in ('layout', 'tabbable', 'tooltip')}])
    yield found
    found.close()
    editor.close()
    assert errors == []


def test_numbers_stay_beside_their_lines(page):
    page.mouse.move(600, 150)
    for right, down in ((0, 150), (400, 0), (0, 5000), (0, -40), (-400, -5000)):
        page.mouse.wheel(right, down)
        page.wait_for_timeout(200)
        assert max(page.evaluate(LINES)) < 4, (right, down)
        assert page.locator('.kl-lineno').first.bounding_box()['x'] < 60                # they are seen beside a long line too
    scrolled = page.evaluate("""() => [...document.querySelectorAll('#at *')].filter(e => e.scrollHeight > e.clientHeight + 1
        && /auto|scroll/.test(getComputedStyle(e).overflowY)).map(e => e.className)""")
    assert scrolled == ['kl-editor'] and barriers(page, '#at') == []


def test_what_is_wrong_stands_below_the_text(page):
    said = page.locator('.kl-wrong')
    assert not said.is_visible()
    page.evaluate("() => model.set('marks', { 48: 'index 899 is outside <b>w_tile</b>' })")
    assert said.inner_text() == 'Line 48: index 899 is outside <b>w_tile</b>' and said.get_attribute('role') == 'status'
    box, editor = said.bounding_box(), page.locator('.kl-editor').bounding_box()
    assert 0 <= box['y'] - editor['y'] - editor['height'] < 20
    page.evaluate("() => model.set('marks', {})")
    assert not said.is_visible()


def test_plotly_is_asked_for_until_it_comes(browser):
    "A kernel on a busy machine missed the first request, and every figure stayed blank."
    page = browser.new_page()
    page.evaluate("""async script => {
        const found = await import(URL.createObjectURL(new Blob([script], { type: 'text/javascript' })))
        window.asked = 0
        const answer = ({ type }) => { if (type === 'library' && ++asked === 2) window.take({}, [new TextEncoder().encode('globalThis.Plotly = 7')]) }
        found.default.initialize({ model: { on: (kind, f) => { window.take = f }, off() {}, send: answer } }) }""", (STATIC / 'library.js').read_text())
    page.wait_for_function('() => globalThis.Plotly === 7', timeout=10_000)
    page.wait_for_timeout(4500)
    assert page.evaluate('asked') == 2                                  # and no more once it is there
    page.close()
