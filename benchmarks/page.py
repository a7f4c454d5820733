"""How long the page keeps a person waiting: JupyterLab in headless Chromium, wall time, browser included.

    python benchmarks/page.py [--times 5] [--instructions 1000000]

Each row has the median and the worst of some repetitions beside what is wanted on two idle cores, and the table the
load while it ran. A time begins with the key or the click of the person. *to the last pixel* ends with the last change
of the page in the two seconds after it, *first paint* when the canvas has drawn; a frame is counted from the wheel's
event to the end of the drawing, the wait for the screen included. Modules are compiled before, as an installation
leaves them: compiling them anew, which PYTHONDONTWRITEBYTECODE asks of every process, makes the first `Lab()` twice as
long."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from chromium import launched               # noqa: E402
from jupyter_page import jupyter_lab        # noqa: E402

SLOW = 300_000                              # ms; what takes longer is an error
FIRST = "import time"
LAB = "from kernel_lab.panels import Lab\nLab('softmax', 'small')"
MADE = """from kernel_lab.nki import ArraySpec, language as nl, schedule, trace
from kernel_lab.panels import EngineTimeline, WhatIf
def many(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[1] // 64):
        at = nl.ds(i * 64, 64)
        nl.store(out[:, at], nl.exp(nl.load(x[:, at])))
    return out
timeline = schedule(trace(many, ArraySpec((128, 64 * (COUNT // 3 + 1))), chip='trn2'))
len(timeline)"""
LANES, ASK = "EngineTimeline(timeline)", "WhatIf(timeline, waterfall=False)"

BEGIN = """kinds => { window.began = 0; window.last = 0
    const start = () => { window.began ||= performance.now() }
    for (const kind of kinds) addEventListener(kind, start, { capture: true, once: true })
    window.seen?.disconnect()
    window.seen = new MutationObserver(() => { window.last = performance.now() })
    const all = { childList: true, subtree: true, attributes: true, characterData: true }
    window.seen.observe(document.querySelector('.jp-Notebook'), all) }"""
UNTIL = """text => new Promise((done, fail) => { const holds = new Function('return ' + text)
    setTimeout(() => fail(new Error(`not within two minutes: ${text}`)), 120_000)
    const look = () => window.began && holds() ? done(performance.now() - window.began) : requestAnimationFrame(look)
    look() })"""
FRAMES = """async times => { const canvas = document.querySelector(".kl-tl canvas"), found = []
    const box = canvas.getBoundingClientRect()
    canvas.focus()
    for (let n = 0; n < times; n++) {
        const zooms = n % 2 === 0, way = n % 8 < 4 ? -1 : 1, began = performance.now()
        const deltas = zooms ? { deltaY: way * 120 } : { deltaX: way * 60 }
        const at = { clientX: box.left + box.width * 0.6, clientY: box.top + 20, cancelable: true, bubbles: true }
        canvas.dispatchEvent(new WheelEvent('wheel', { ...deltas, ...at }))
        await new Promise(drawn => requestAnimationFrame(drawn))
        found.push(performance.now() - began)
    }
    return found }"""
READY = """(() => { const b = document.querySelector('.kl-lab .kl-main'), has = of => document.querySelector(of)?.value
    return b && !b.disabled && b.offsetWidth > 0 && has('.kl-lab select') && has('.kl-lab textarea') })()"""
CHIPS = "document.querySelectorAll('.kl-lab .kl-chips .widget-toggle-button').length"


def notebook(folder, name, *cells):
    "Write a notebook of code cells."
    own = dict(cell_type="code", execution_count=None, metadata={}, outputs=[])
    kernel = dict(name="python3", display_name="Python 3", language="python")
    book = dict(cells=[dict(own, id=f"c{n}", source=text) for n, text in enumerate(cells)],
                metadata=dict(kernelspec=kernel), nbformat=4, nbformat_minor=5)
    (folder / f"{name}.ipynb").write_text(json.dumps(book))


def opened(browser, address, name):
    "A page with a notebook whose kernel is idle."
    page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
    page.set_default_timeout(SLOW)
    page.goto(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    page.locator('.jp-StatusBar-TextItem:text-matches("Idle$")').first.wait_for()
    return page


def left(page):
    "Close a page, and end its kernel, which would look for new runs every second beside what is timed next."
    page.evaluate("""async () => { const known = { 'X-XSRFToken': /_xsrf=([^;]*)/.exec(document.cookie)?.[1] ?? '' }
        const all = await (await fetch('/api/sessions')).json()
        for (const { id } of all) await fetch('/api/sessions/' + id, { method: 'DELETE', headers: known }) }""")
    page.context.close()


def run_cell(page, n, until=None):
    "Run a cell by keyboard; ms until something holds, or None."
    page.locator(".jp-Notebook .jp-CodeCell").nth(n).locator(".jp-InputPrompt").click()
    page.wait_for_timeout(300)
    page.evaluate(BEGIN, ["keydown"])
    page.keyboard.press("Control+Enter")
    if until: return page.evaluate(UNTIL, until)
    prompts = "[...document.querySelectorAll('.jp-InputPrompt')]"
    page.wait_for_function(f"/\\[\\d+\\]/.test({prompts}[{n}].textContent)")


def last_pixel(page, kinds, act, wait=2000):
    "ms from what a person does to the last change of the page."
    page.evaluate(BEGIN, kinds)
    act()
    page.wait_for_timeout(wait)
    return page.evaluate("window.last - window.began")


def pressed(page, label, steps):
    page.locator(f'.kl-lab button:text-is("{label}")').click()
    page.wait_for_function(f"{CHIPS} === {steps} && !document.querySelector('.kl-lab .kl-main').disabled")
    page.wait_for_timeout(2500)


def moved(page, key):
    "ms from a key on the first slider to the title of the timeline under it, which is drawn with its bars."
    title = "document.querySelector('.kl-tl .kl-title').textContent"
    before = page.evaluate(title)
    page.locator(".kl-what-if input[type=range]").first.focus()
    page.evaluate(BEGIN, ["keydown"])
    page.keyboard.press(key)
    took = page.evaluate(UNTIL, f"{title} !== {json.dumps(before)}")
    page.wait_for_timeout(700)
    return took


def of_lab(browser, address, folder, times):
    "Rows about `Lab()`, its steps, and a run of the store."
    first, again, stored, page = [], [], [], None
    for n in range(times):
        if page: left(page)
        notebook(folder, f"lab{n}", FIRST, LAB)
        page = opened(browser, address, f"lab{n}")
        run_cell(page, 0)
        page.wait_for_timeout(1500)
        first.append(run_cell(page, 1, READY))
    yield "Lab() to interactive, first in a kernel", 2000, first
    for _ in range(times):
        page.evaluate("document.querySelector('.kl-lab').classList.remove('kl-lab')")       # the one that goes
        again.append(run_cell(page, 1, READY))
    yield "Lab() to interactive, again", 2000, again
    pressed(page, "Evaluate the first kernel", 1)
    pressed(page, "Step", 2)
    chips = page.locator(".kl-lab .kl-chips .widget-toggle-button")
    looks = [last_pixel(page, ["pointerdown"], chips.nth(n % 2).click) for n in range(2 * times)]
    yield "another step to the last pixel", 300, looks
    menu = page.locator(".kl-lab .widget-dropdown:has-text('earlier runs') select")
    for _ in range(times):
        run_cell(page, 1, f"{READY} && {CHIPS} === 0")
        page.wait_for_timeout(2500)                     # the earlier runs are there
        stored.append(last_pixel(page, ["change"], lambda: menu.select_option(index=1)))
    yield "a stored step, from choosing its run", 500, stored
    left(page)


def of_lanes(browser, address, folder, times, count):
    "Rows about a timeline of many instructions."
    notebook(folder, "lanes", MADE.replace("COUNT", str(count)), LANES)
    page = opened(browser, address, "lanes")
    run_cell(page, 0)
    first = run_cell(page, 1, "document.querySelector('.kl-tl canvas')?.dataset.bars > 0")
    page.wait_for_timeout(1000)
    yield f"first paint of {count:,} instructions", 1500, [first]
    yield "pan and zoom, a frame of them", 50, page.evaluate(FRAMES, 8 * times)
    left(page)


def of_sliders(browser, address, folder, times, count=100_000):
    "A row about a slider over a program of 100,000 instructions."
    notebook(folder, "ask", MADE.replace("COUNT", str(count)), ASK)
    page = opened(browser, address, "ask")
    run_cell(page, 0)
    run_cell(page, 1, "document.querySelector('.kl-tl canvas')?.dataset.bars > 0")
    page.wait_for_timeout(3000)
    found = [moved(page, key) for key in ["ArrowRight", "ArrowLeft"] * times]
    yield f"a slider to the moved timeline, {count:,}", 100, found
    left(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--instructions", type=int, default=1_000_000)
    given, before = parser.parse_args(), os.getloadavg()[0]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", "from kernel_lab.panels import Lab; Lab(store=False)"], check=True)
    print(f"{'':42} {'median':>8} {'worst':>8} {'wanted':>8}  ms")
    with tempfile.TemporaryDirectory() as top, jupyter_lab(Path(top)) as (address, folder), launched() as browser:
        books = folder / "notebooks"
        rows = of_lab(browser, address, books, given.times)
        more = of_lanes(browser, address, books, given.times, given.instructions)
        for name, wanted, ms in chain(rows, more, of_sliders(browser, address, books, given.times)):
            print(f"{name:42} {median(ms):8.0f} {max(ms):8.0f} {wanted:8}", flush=True)
    print(f"load of {os.cpu_count()} cores: {before:.1f} before, {os.getloadavg()[0]:.1f} after, this program included")


if __name__ == "__main__": main()
