"""The animation in a real browser without a network: a file is opened, played, scrubbed, stepped, and asked who wrote a
byte. One browser and one page for all."""
from base64 import b64encode
import os
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from chromium import CHROMIUM, Watch, barriers, launched
from kernel_lab.figures.animation.animate import MAX_PAGE_BYTES, animate, write_animation
from kernel_lab.figures.animation.sampled_values import SampledValues, grid_elements, grid_side
from kernel_lab.nki import ArraySpec, isa as nisa, language as nl, schedule, trace
from kernel_lab.nki.executor.stepper import Stepper
from kernel_lab.panels.player import PLAYER

if not find_spec('playwright'): pytest.skip('playwright is not installed', allow_module_level=True)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason='there is no Chromium on this machine (apt-get install chromium)')
SHOTS = os.environ.get('KERNEL_LAB_SHOTS')
EVIL = '</script><img src=x onerror="window.evil = 1">'


def roots(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        t = nl.ndarray((128, 64), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * (i + 1), :])
        nisa.activation(dst=t, op=nl.sqrt, data=t)
        nisa.tensor_scalar(dst=t[:, 0:32], data=t[:, 0:32], op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=t)
    return out


def long(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(2500):
        t = nl.ndarray((128, 8), x.dtype, buffer=nl.sbuf)
        u = nl.ndarray((128, 8), x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[128 * i:128 * (i + 1), :])
        nisa.activation(dst=u, op=nl.exp, data=t)
        for _ in nl.static_range(5): nisa.tensor_tensor(dst=u, data1=u, data2=t, op=nl.add)
        nisa.dma_copy(dst=out[128 * i:128 * (i + 1), :], src=u)
    return out


X = np.linspace(4, -1, 512 * 64).reshape(512, 64).astype(np.float32)             # below zero in the last block


@pytest.fixture(scope='module')
def animation(): return animate(roots, X, chip='trn2')


@pytest.fixture(scope='module')
def folder(tmp_path_factory): return tmp_path_factory.mktemp('animations')


@pytest.fixture(scope='module')
def tab():
    "(page, watch) of a browser that is offline."
    with launched() as chromium:
        page = chromium.new_context(offline=True, viewport={'width': 1280, 'height': 800}, reduced_motion='reduce').new_page()
        page.set_default_timeout(15_000)
        yield page, Watch(page, 'file:')


@pytest.fixture
def player(tab, animation, folder):
    "The page with the animation of `roots`, at its start."
    return opened(tab, write_animation(animation, [], folder / 'roots.html'))


def opened(tab, path):
    page, watch = tab
    page.goto(path.as_uri())
    page.wait_for_function('() => window.player?.animation && document.querySelector(".kl-an").dataset.t')
    watch.page = page
    return page


@pytest.fixture(autouse=True)
def no_errors(tab):
    yield
    watch = tab[1]
    assert (watch.errors, watch.outside) == ([], [])
    assert not tab[0].evaluate('() => window.evil')


def state(page):
    "(moment in µs, row that is looked at) when the picture stands still."
    page.evaluate('() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))')
    data = page.evaluate('() => ({ ...document.querySelector(".kl-an").dataset })')
    return float(data['t']), int(data['row'])


def picture(page): return page.evaluate('() => document.querySelector(".kl-an-stage").toDataURL()')


def ask(page, *at):
    "Click a place on the stage; what the page then says."
    page.mouse.click(*at)
    state(page)
    return page.locator('.kl-an-info').inner_text()


def lit(page): return [int(n) for n in page.locator('.kl-an-main .kl-an-no').all_inner_texts()]


def spot(page, value, row, column):
    "Where an element of a value is on the screen."
    at = page.evaluate("""([v, row, column]) => { const m = player.clock.map, t = m.tensors[m.tensor[v]], q = player.rectsOf(v)[0], b = document.querySelector('.kl-an-stage').getBoundingClientRect()
        return [b.left + q.x + (column + 0.5) / t.columns * q.w, b.top + q.y + (row + 0.5) / t.rows * q.h] }""", [value, row, column])
    return at


def shoot(page, name):
    if SHOTS: page.screenshot(path=Path(SHOTS) / f'player-{name}.png')


def test_a_person_plays_scrubs_and_steps(player, animation):
    timeline = animation.timeline
    assert 'roots' in player.locator('h1').inner_text() and 'simulated on trn2' in player.locator('h1').inner_text()
    before = picture(player)
    player.keyboard.press('Space')
    player.wait_for_function('t => +document.querySelector(".kl-an").dataset.t > t', arg=float(timeline.start_us[2]))
    player.keyboard.press('Space')
    stopped, _ = state(player)
    assert picture(player) != before and state(player)[0] == stopped
    order = sorted(range(16), key=lambda r: (timeline.end_us[r], r))
    player.keyboard.press('Home')
    for r in order[:3]:
        player.keyboard.press('ArrowRight')
        t, row = state(player)
        line = timeline.program.instructions[timeline.instr[r]].line
        assert row == r and timeline.start_us[r] - 1e-3 <= t <= timeline.end_us[r] + 1e-3 and lit(player) == [line]
    player.get_by_role('button', name='One instruction back').click()
    assert state(player)[1] == order[1]
    box = player.locator('.kl-an-lanes').bounding_box()
    left, wide = box['x'] + 74, box['width'] - 82                       # the lanes' axis
    player.mouse.move(left + 0.2 * wide, box['y'] + 8)
    player.mouse.down()
    player.mouse.move(left + 0.75 * wide, box['y'] + 8, steps=4)
    player.mouse.up()
    assert state(player)[0] == pytest.approx(0.75 * timeline.latency_us, rel=0.01)
    player.keyboard.press('End')
    assert state(player)[0] == pytest.approx(timeline.latency_us)
    player.keyboard.press('ArrowLeft')
    assert state(player)[1] == order[-1]


def test_a_byte_says_its_value_its_writer_and_its_reader(player, animation):
    program, where = animation.timeline.program, animation.where
    lines = [o.line for o in program.instructions]                      # load, sqrt, twice, store
    tile = int(where.value[where.writes & (where.row == 0)][0])         # the first tile
    for _ in range(2): player.keyboard.press('ArrowRight')
    while state(player)[1] != 2: player.keyboard.press('ArrowRight')    # after the doubling of the first tile
    row, column = divmod(int(grid_elements(program.tensors[where.tensor[tile]], 0, animation.values.side)[9]), 64)
    player.mouse.move(*spot(player, tile, row, column))
    said = player.locator('.kl-an-tip').inner_text()
    shown = float(re.search(r'≈ (\S+)', said)[1])
    assert f'partition {row}, element {column}' in said
    assert shown == pytest.approx(np.sqrt(X[row, column]) * (2 if state(player)[0] >= animation.timeline.end_us[2] else 1), rel=1e-3)
    said = ask(player, *spot(player, tile, row, 10))                    # in the doubled half
    assert f'written by tensor_scalar, line {lines[2]} (i0=0)' in said
    assert f'read next by dma_copy, line {lines[3]} (i0=0)' in said
    said = ask(player, *spot(player, tile, row, 50))                    # in the other half
    assert f'written by activation, line {lines[1]} (i0=0)' in said
    shoot(player, 'byte')
    info = player.locator('.kl-an-info')
    info.locator('button:has-text("activation")').first.click()
    assert state(player)[1] == 1 and lit(player) == [lines[1]]
    player.keyboard.press('Escape')
    state(player)
    assert 'written by' not in info.inner_text()


def test_who_wrote_it_is_what_the_stepper_says(player, animation):
    "Elements of the output and of the last tile, at the end: the browser decides by access patterns, the stepper by sets."
    t, where = animation.timeline, animation.where
    s, rows = Stepper(t.program, X), {k: r for r, k in enumerate(zip(t.instr.tolist(), t.turn.tolist()))}
    s.goto(s.count)
    for v in (int(where.value[where.row == 15][1]), int(where.value[where.row == 15][0])):
        k = int(where.tensor[v])
        for element in np.random.default_rng(v).integers(0, t.program.tensors[k].size, 24).tolist():
            moment = s.writer(k, *np.unravel_index(element, t.program.tensors[k].shape))
            found = player.evaluate('([v, byte]) => player.who(v, byte, Infinity)', [v, 4 * element])
            assert found['writer'] == rows[moment.number, moment.env['i0']] and found['sure'], (k, element)


def test_the_first_nan_and_another_clock(player, animation):
    first = int(np.flatnonzero(animation.values.nans)[0])
    row = int(animation.where.row[animation.where.writes][first])
    player.keyboard.press('n')
    assert state(player)[1] == row == 13                                # the root of the last block
    assert 'NaN' in player.locator('.kl-an-info').inner_text()
    shoot(player, 'nan')
    assert player.locator('.kl-an-whatif button').all_inner_texts() == ['as it is', *(c.name for c in animation.clocks)]
    for k, clock in enumerate(animation.clocks, 1):
        player.locator('.kl-an-whatif button').nth(k).click()
        start, end = (x[row] for x in (clock.timeline.start_us, clock.timeline.end_us))
        assert start - 1e-3 <= state(player)[0] <= end + 1e-3           # the same instruction, elsewhere in time
    assert 'as fast' in player.locator('.kl-an-titles').inner_text()


def test_everything_has_a_name_and_tab_is_no_trap(player):
    names = []
    for _ in range(24):
        player.keyboard.press('Tab')
        names.append(player.evaluate('() => { const e = document.activeElement; return e === document.body ? null : e.getAttribute("aria-label") || e.textContent.trim() }'))
    assert None in names                                                # it leaves the page again
    seen = names[:names.index(None)]
    assert len(seen) >= 10 and all(seen) and {'Play (Space)', 'Simulated time', 'Source of the kernel'} <= {*seen}
    assert player.evaluate('() => document.documentElement.scrollWidth') <= 1280


@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_both_themes_are_drawn(player, theme):
    player.emulate_media(color_scheme=theme)
    for _ in range(6): player.keyboard.press('ArrowRight')
    state(player)
    paper = player.evaluate('() => getComputedStyle(document.querySelector(".kl-an")).backgroundColor')
    assert paper == {'light': 'rgb(255, 255, 255)', 'dark': 'rgb(20, 23, 28)'}[theme]
    shoot(player, theme)


def test_20_000_instructions_travel_in_two_megabytes(tab, folder):
    bare = animate(schedule(trace(long, ArraySpec((2500 * 128, 8)), chip='trn2')))
    count = int(bare.where.writes.sum())
    side = grid_side(count)
    bits = np.random.default_rng(0).integers(0, 2**32, (2 * count + count * side**2), dtype=np.uint32)     # none repeats
    least, greatest = bits[:2 * count].view(np.float32).reshape(2, count)
    values = SampledValues(side, least, greatest, np.zeros(count, np.int32), bits[2 * count:].reshape(count, -1), {}, count)
    path = write_animation(replace(bare, values=values), [], folder / 'long.html')
    assert len(bare.rows) == len(bare.timeline) == 20_000 and path.stat().st_size <= MAX_PAGE_BYTES == 2_000_000
    page = opened(tab, path)
    page.keyboard.press('PageDown')
    page.keyboard.press('ArrowRight')
    t, row = state(page)
    assert bare.timeline.start_us[row] - 1e-3 <= t <= bare.timeline.end_us[row] + 1e-3
    shoot(page, 'long')


def test_what_is_folded_is_said(tab, folder, animation):
    page = opened(tab, write_animation(animate(roots, X, chip='trn2', most=12), [], folder / 'folded.html'))
    assert '16 instructions, 12 of them shown' in page.locator('.kl-an-titles').inner_text()
    assert 'first 2 and the last are shown' in page.locator('.kl-an-notes').inner_text()
    page.keyboard.press('End')
    assert state(page)[0] == pytest.approx(animation.timeline.latency_us)


def test_text_of_others_is_text(tab, folder, animation):
    program = animation.timeline.program
    tensors = tuple(replace(t, name=EVIL + t.name) if t.role == 'output' else t for t in program.tensors)
    hostile = replace(program, name=EVIL, tensors=tensors, source=f'"""{EVIL}\u2028"""\n' + program.source)
    page = opened(tab, write_animation(hostile, [X], folder / 'evil.html'))
    page.keyboard.press('End')
    page.keyboard.press('ArrowLeft')
    state(page)
    assert EVIL in page.locator('h1').inner_text() and EVIL in page.locator('.kl-an-line').first.inner_text()
    assert EVIL in page.locator('.kl-an-info').inner_text() and page.locator('img').count() == 0
    page.goto('about:blank')
    page.set_content(animate(hostile, X)._repr_html_())                  # in a notebook: a frame without rights
    frame = page.frame_locator('iframe')
    frame.locator('.kl-an-clock:has-text("of")').wait_for()
    assert EVIL in frame.locator('h1').inner_text()


def test_a_broken_file_says_so(tab, folder, animation):
    page, _ = tab
    text = animation.to_html()
    for name, data in (('cut', text.replace('id="data">', 'id="data">AAAA')), ('empty', re.sub('id="data">[^<]*', 'id="data">', text))):
        (folder / f'{name}.html').write_text(data)
        page.goto((folder / f'{name}.html').as_uri())
        page.locator('.kl-an-fail:has-text("cannot be shown")').wait_for()


def test_the_panel_plays_what_python_sends(tab, animation):
    "What anywidget calls: a model whose trait is bytes, and which changes."
    page, _ = tab
    page.goto('about:blank')
    other = animate(roots, X + 2, chip='trn2')
    page.add_style_tag(content=(PLAYER / 'player.css').read_text(encoding='utf-8'))
    source = (PLAYER / 'player.js').read_text(encoding='utf-8')
    page.evaluate("""async ([source, first, second]) => {
        const bytes = text => new DataView(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer), heard = []
        const panel = (await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })))).default
        let packed = bytes(first)
        const model = { get: () => packed, on: (_, f) => heard.push(f), off: () => {} }
        window.stop = panel.render({ model, el: document.body })
        window.change = () => { packed = bytes(second); heard.forEach(f => f()) } }""",
                  [source, *(b64encode(a.packed).decode() for a in (animation, other))])
    nan = page.locator('button:text-matches("NaN")')
    nan.wait_for()
    assert nan.inner_text() == 'First NaN'
    page.evaluate('() => window.change()')
    page.locator('button:text-is("no NaN")').wait_for()
    page.evaluate('() => window.stop()')


def test_axe_finds_nothing_serious(player):
    found = {}
    for theme in ('light', 'dark'):
        player.emulate_media(color_scheme=theme)
        player.wait_for_timeout(100)
        found[theme] = barriers(player)
    player.emulate_media(color_scheme='light')
    assert found == {'light': [], 'dark': []}


def test_a_narrow_window_shows_the_stage_and_cuts_no_caption(player):
    "As beside a side bar, and in a window of 450 pixels: what has no room is said shorter, and the memories are drawn."
    said = {}
    try:
        for width in (1280, 840, 450):
            player.set_viewport_size({'width': width, 'height': 1200})
            player.wait_for_function("""() => { const c = document.querySelector('.kl-an-stage')      // drawn, in several colours
                return c.dataset.sbuf && new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size > 8 }""")
            state(player)
            said[width] = player.locator('.kl-an-stage').get_attribute('data-sbuf')
            left, right = (player.locator(f'.kl-an-{name}').bounding_box()['y'] for name in ('left', 'right'))
            assert (left == right) == (width > 800)                     # the source beside the stage where both have room
            shoot(player, f'{width}-wide')
    finally: player.set_viewport_size({'width': 1280, 'height': 800})
    assert 'partitions' in said[1280] and 'partitions' not in said[450] and said[450].startswith('nothing'), said
