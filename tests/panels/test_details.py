"""The memory view and the timeline under a slider in a browser, without a notebook: their scripts are mounted on an
empty page. One browser and few pages, so that it takes seconds."""
import base64
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from chromium import CHROMIUM, barriers
from kernel_lab.core.format import bytes_text

if not find_spec('playwright'): pytest.skip('playwright is not installed', allow_module_level=True)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason='there is no Chromium on this machine (apt-get install chromium)')
EVIL = '<img src=x onerror="window.evil=1">'
MOUNT = """async ([source, given]) => {
    const revive = x => x?.bytes !== undefined ? new DataView(Uint8Array.from(atob(x.bytes), c => c.charCodeAt(0)).buffer)
        : Array.isArray(x) ? x.map(revive) : x && typeof x === 'object'
        ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, revive(v)])) : x
    const found = await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })))
    window.heard = []; window.revive = revive
    const at = document.getElementById('at')
    window.panel = found.mount(at, { select: e => heard.push(e) })
    panel.show(...revive(given)) }"""


def plain(x):
    "Data as a page takes it: bytes as base64."
    if isinstance(x, bytes): return {'bytes': base64.b64encode(x).decode()}
    if isinstance(x, dict): return {k: plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple): return [plain(v) for v in x]
    return x


@pytest.fixture
def mounted(browser, tmp_path):
    "mounted(script, *what it shows, dark=False) → a page of 1,280 pixels; it had no error when the test ends."
    from kernel_lab.panels.style import PANEL_CSS, canvas_files
    pages, errors = [], []
    def open_page(name, *given, dark=False):
        page = browser.new_page(viewport={'width': 1280, 'height': 720})
        pages.append(page)
        page.on('pageerror', lambda e: errors.append(str(e)))
        page.on('request', lambda r: r.url.startswith(('blob:', 'data:', 'about:')) or errors.append(r.url))
        theme = '--jp-ui-font-color1:#e4e7ec;--jp-ui-font-color2:#9aa2ae;--jp-layout-color1:#14171c;background:#14171c' if dark else ''
        files = canvas_files(name)
        sheet = PANEL_CSS + files['_css']
        page.set_content(f'<body style="margin:8px;{theme}"><style>{sheet}</style><div class="kl" id="at"></div></body>')
        page.evaluate(MOUNT, [files['_esm'], plain(given)])
        page.wait_for_timeout(150)
        page.shots = Path(os.environ.get('KERNEL_LAB_SHOTS') or tmp_path)
        return page
    yield open_page
    for page in pages: page.close()
    assert errors == []


@pytest.fixture(scope='module')
def timelines():
    "{name: timeline}: a product of eight tiles, a kernel that spills, and one of a hundred thousand instructions."
    from kernel_lab.nki import ArraySpec, isa as nisa, language as nl, schedule, trace
    def product(a, b):
        out = nl.ndarray((a.shape[1], b.shape[1]), nl.float32, buffer=nl.shared_hbm)
        for n in nl.affine_range(b.shape[1] // 512):
            acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(a.shape[0] // 128):
                left, right = nl.load(a[nl.ds(k * 128, 128), :]), nl.load(b[nl.ds(k * 128, 128), nl.ds(n * 512, 512)])
                nisa.nc_matmul(acc, left, right)
            nl.store(out[:, nl.ds(n * 512, 512)], nl.copy(acc))
        return out
    def hoard(x):
        tiles = []
        for _ in range(6): tiles.append(nl.load(x))
        for t in tiles: nisa.tensor_copy(t, t)
        return x
    def many(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(x.shape[1] // 64):
            nl.store(out[:, nl.ds(i * 64, 64)], nl.exp(nl.load(x[:, nl.ds(i * 64, 64)])))
        return out
    timed = lambda f, *shapes: schedule(trace(f, *map(ArraySpec, shapes), chip='trn2'))
    return dict(product=timed(product, (512, 128), (512, 1024)), hoard=timed(hoard, (128, 16384)),
                many=timed(many, (128, 64 * 33_334)))


def memory(timeline, **changed):
    from kernel_lab.nki.explain.memory import memory_use
    from kernel_lab.panels.memory_view import packed_memory
    return packed_memory(memory_use(timeline)) | changed


def now(page): return float(page.locator('.kl-mv-time').get_attribute('data-now'))


def test_a_person_looks_into_memory(mounted, timelines):
    part = memory(timelines['product'])
    page = mounted('memory_view', part, {'of': 'run 3f · step 2'})
    info, tiles = page.locator('.kl-mv-info'), page.locator('.kl-mv-tile')
    sbuf = part['pools'][0]
    assert now(page) == pytest.approx(sbuf['peakUs']) and f'SBUF {bytes_text(sbuf["peak"])} in use' in info.inner_text()
    assert 'run 3f · step 2' in page.locator('.kl-mv .kl-quiet').inner_text()
    assert 'KiB free then' in page.locator('.kl-mv-says').inner_text()
    lanes = page.locator('.kl-mv-time')
    lanes.focus()
    for key, way in (('ArrowRight', 1), ('ArrowLeft', -1), ('End', 1), ('ArrowLeft', -1)):
        before = now(page)
        page.keyboard.press(key)
        page.wait_for_function('([w, b]) => w * (document.querySelector(".kl-mv-time").dataset.now - b) > 0', arg=[way, before])
    page.keyboard.press('p')
    page.keyboard.press('w')
    page.wait_for_function('() => { const [a, b] = document.querySelector(".kl-mv-time").dataset.window.split(" "); return b - a < 40 }')
    page.keyboard.press('Escape')
    tiles.first.click()                                                 # a tile ↔ its line
    line = int(tiles.first.inner_text().split('line ')[1].split()[0])
    page.wait_for_function('l => heard.at(-1)?.line === l', arg=line)
    assert tiles.first.get_attribute('aria-pressed') == 'true' and f'line {line}' in page.locator('.kl-mv-says').inner_text()
    page.screenshot(path=page.shots / 'memory-light.png')
    page.keyboard.press('Tab')
    assert page.evaluate('document.activeElement.tagName') == 'BUTTON'  # no trap
    assert page.evaluate('document.documentElement.scrollWidth <= innerWidth')


def test_what_was_spilled_is_marked_in_both_themes(mounted, timelines):
    part = memory(timelines['hoard'])
    part['tiles'][0]['name'] = part['title'] = EVIL
    for dark in (False, True):
        page = mounted('memory_view', part, {'of': EVIL}, dark=dark)
        assert 'fetched again' in page.locator('.kl-mv-says').inner_text()
        assert 'saved to HBM' in page.locator('.kl-mv-list').inner_text()
        assert EVIL in page.locator('.kl-mv .kl-title').inner_text() and not page.evaluate('window.evil')
        page.screenshot(path=page.shots / f'memory-spilled-{"dark" if dark else "light"}.png')
        assert barriers(page, '#at') == []


def test_a_hundred_thousand_instructions_are_painted(mounted, timelines):
    page = mounted('memory_view', memory(timelines['many']), {})
    assert len(timelines['many']) > 100_000 and int(page.locator('.kl-mv-time').get_attribute('data-drawn')) > 60_000


def test_the_word_peak_lies_on_no_tile(mounted, timelines):
    for name in ('hoard', 'many'):
        page = mounted('memory_view', memory(timelines[name]), {})
        at = page.evaluate("""() => { const c = document.querySelector('.kl-mv-time'), g = c.getContext('2d'), r = devicePixelRatio
            if (!c.dataset.peak0) return null
            const [left, low] = c.dataset.peak0.split(',').map(Number), all = g.getImageData(left * r, (low - 9) * r, 60 * r, 11 * r).data
            let most = 0
            for (let k = 0; k < all.length; k += 4) most = Math.max(most, Math.max(...all.slice(k, k + 3)) - Math.min(...all.slice(k, k + 3)))
            return most }""")
        assert at is None or at < 60, (name, at)                    # grey and black; tiles have colours
        assert name != 'hoard' or at is not None


def test_a_slider_moves_the_lower_timeline_only(mounted, timelines):
    from kernel_lab.nki.explain.retiming import Assumptions, Retimer
    from kernel_lab.panels.engine_timeline import packed_timeline, packed_times, packed_waits
    timeline = timelines['many']
    quick = Retimer(timeline)(Assumptions(dma=4))
    page = mounted('engine_timeline', [packed_timeline(timeline)] * 2, {'title': 'now'})
    page.evaluate("""([times, words]) => panel.move(1, revive(times), words)""",
        [plain(packed_times(quick)), {'title': 'then'}])
    page.locator('.kl-tl select').select_option('cause')            # what it waited for is not there yet: grey, no error
    page.locator('.kl-tl input[type=checkbox]').check()
    page.wait_for_timeout(100)
    page.evaluate('waits => panel.wait(1, revive(waits))', plain(packed_waits(quick)))
    page.wait_for_timeout(100)
    page.locator('.kl-tl select').select_option('engine')
    page.locator('.kl-tl input[type=checkbox]').uncheck()
    window = [float(x) for x in page.locator('canvas').get_attribute('data-window').split()]
    assert window == pytest.approx([0, timeline.latency_us]) and quick.latency_us < timeline.latency_us
    assert page.locator('.kl-title').inner_text() == 'then'
    page.screenshot(path=page.shots / 'what-if-light.png')
    with_path = '() => { const c = document.querySelector("canvas"); return c.toDataURL() }'
    before = page.evaluate(with_path)
    page.locator('.kl-tl input[type=checkbox]').check()             # which the page finds by itself, of the moved times
    page.wait_for_function(f'was => ({with_path})() !== was', arg=before)
    assert barriers(page, '#at') == []
