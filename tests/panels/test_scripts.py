"""The editor, and what brings plotly.js, in a browser without a notebook: their scripts on an empty page, over a model that only
remembers. The browser has scroll bars that take room, as most people's have."""
from importlib.util import find_spec

import pytest

from chromium import CHROMIUM, barriers
from kernel_lab.figures.theme import static_text
from kernel_lab.panels.source_and_log import SourceEditor
from kernel_lab.panels.style import PANEL_CSS, STATIC

if not find_spec('playwright'): pytest.skip('playwright is not installed', allow_module_level=True)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason='there is no Chromium on this machine (apt-get install chromium)')
SOURCE = '\n'.join(f'line_{k} = nisa.tensor_tensor({"x" * (200 if k == 40 else 20)})' for k in range(1, 61))
MOUNT = """async ([script, traits]) => {
    const found = await import(URL.createObjectURL(new Blob([script], { type: 'text/javascript' }))), heard = {}
    window.heard = heard
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
    said.wait_for()                                                     # drawn with the next frame
    assert said.inner_text() == 'Line 48: index 899 is outside <b>w_tile</b>' and said.get_attribute('role') == 'status'
    box, editor = said.bounding_box(), page.locator('.kl-editor').bounding_box()
    assert 0 <= box['y'] - editor['y'] - editor['height'] < 20
    page.evaluate("() => model.set('marks', {})")
    said.wait_for(state='hidden')


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


def test_a_long_line_goes_on_below_and_nothing_scrolls_sideways(page):
    wide = page.evaluate("() => { const e = document.querySelector('.kl-editor'); return [e.scrollWidth, e.clientWidth] }")
    assert wide[0] == wide[1]
    high = page.evaluate("() => [...document.querySelectorAll('.kl-line')].map(e => e.offsetHeight)")
    assert set(high) == {19, high[39]} and high[39] >= 38
    page.evaluate("() => { model.set('marks', { 40: 'wide', 41: 'below' }) }")
    page.locator('.kl-band').nth(1).wait_for(state='attached')          # drawn with the next frame
    bands = page.evaluate("() => [...document.querySelectorAll('.kl-band')].map(b => [parseFloat(b.style.top), parseFloat(b.style.height)])")
    assert sorted(bands) == [[8 + 19 * 39, high[39]], [8 + 19 * 39 + high[39], 19]]
    page.set_viewport_size({'width': 2600, 'height': 700})
    page.wait_for_function("() => [...document.querySelectorAll('.kl-line')].every(e => e.offsetHeight === 19)")


def test_names_stand_under_what_is_typed_in_a_long_line_too(page):
    text = f'x = ({"1 + " * 60}nl.a'
    page.evaluate("text => model.set('value', text + '\\n'.repeat(9))", text)
    page.wait_for_function("text => document.querySelector('textarea').value.startsWith(text)", arg=text)
    page.evaluate("n => document.querySelector('textarea').setSelectionRange(n, n)", len(text))
    page.evaluate("() => heard['msg:custom'][0]({ type: 'names', names: { nl: [['add', '(x, y)', 'Sum.']], nisa: [] } })")
    page.locator('textarea').focus()
    page.keyboard.press('Control+Space')
    box, body = page.locator('.kl-names.kl-open').bounding_box(), page.locator('.kl-body').bounding_box()
    high = page.locator('.kl-line').first.bounding_box()['height']
    assert high >= 38 and abs(box['y'] - body['y'] - 8 - high) < 6 and box['x'] < body['x'] + body['width'] - 100


def test_a_slider_is_filled_up_to_where_it_stands(browser):
    from kernel_lab.panels.what_if import StopSlider
    slider, page = StopSlider('DMA', 'how fast', [('1×', 1.0), ('2×', 2.0), ('4×', 4.0)], 2.0), browser.new_page()
    page.set_content(f'<style>{slider._css}</style><div id="at"></div>')
    page.evaluate(MOUNT, [slider._esm, dict(label='DMA', stops=['1×', '2×', '4×'], index=1, home=0, says='how fast')])
    at = lambda: page.evaluate("() => document.querySelector('input').style.getPropertyValue('--kl-at')")
    assert at() == '50%'
    page.locator('input').press('ArrowRight')
    assert at() == '100%'
    page.close()
    slider.close()


def test_a_title_takes_as_many_lines_as_a_narrow_panel_needs(browser):
    page = browser.new_page()
    page.add_script_tag(content=static_text('title.js'))
    said = 'simulated on trn2 · 42.7 flops a byte of HBM, 2,187 GFLOP/s · a point can rise to its roof'
    lines = page.evaluate("""said => { const layout = { title: { text: `A finding<br><span style="a">${said}</span>` }, height: 380, margin: { t: 62 } }
        broken(layout, 300)
        return [layout.title.text.split('<br>').map(l => l.replace(/<.*?>/g, '')), layout.height, layout.margin.t] }""", said)
    assert lines[0][0] == 'A finding' and len(lines[0]) == 4 and ' · '.join(lines[0][1:]) == said
    assert lines[1:] == [380 + 32, 62 + 32]
    page.close()


def test_figures_find_room_for_their_labels_before_they_are_drawn(browser):
    "Plotly draws a figure twice where it must find its margins itself."
    from kernel_lab.agents.recorded.runs import recorded_run
    from kernel_lab.figures.error_map import error_map_figure
    from kernel_lab.figures.speedup import speedup_figure
    from kernel_lab.figures.timeline import utilisation_figure
    from kernel_lab.panels.figure_panels import Plot, stamped
    from plotly.offline import get_plotlyjs
    run, page = recorded_run('beam-masked_softmax').run, browser.new_page()
    page.add_script_tag(content=get_plotlyjs())
    page.add_script_tag(content=Plot._esm.split('export default')[0])
    for figure in (speedup_figure(run), utilisation_figure(run), error_map_figure(run.steps[1].evaluation.verification)):
        for width in (340, 600, 1000):
            found = page.evaluate("""async ([drawn, width]) => { const plot = document.createElement('div'), { data, layout } = JSON.parse(drawn)
                plot.style.width = `${width}px`; document.body.replaceChildren(plot); broken(layout, width); margins(data, layout, width)
                await Plotly.newPlot(plot, data, layout)
                const box = plot.getBoundingClientRect(), words = [...plot.querySelectorAll('.ytick text, .ytitle, .cbaxis text, .xtitle')].map(t => t.getBoundingClientRect())
                return [layout.margin, plot._fullLayout._size, Math.min(...words.map(r => r.left - box.left)), Math.min(...words.map(r => box.right - r.right))] }""",
                                  [stamped(figure, 'run x').to_json(), width])
            margin, size, left, right = found
            assert all(size[side] == margin[side] for side in 'lrtb'), (margin, size)
            assert 0 <= left < 24 and right >= 0, found
    page.close()
