"""The page in a real browser: JupyterLab on a free port, a task picked, three steps, pictures that change, nothing asked of the network."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
pytest.importorskip('jupyterlab', reason='jupyterlab is not installed')
ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get('KERNEL_LAB_CHROMIUM') or shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
pytestmark = pytest.mark.skipif(not CHROMIUM, reason='there is no Chromium on this machine (apt-get install chromium)')
FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
         '--disable-component-update', '--disable-sync']
SLOW = 180_000          # ms; a loaded machine of two cores starts a kernel in half a minute
NOISE = re.compile(r'favicon|ERR_ABORTED|status of 404.*(workspaces|settings)', re.I)


def settings(folder, theme):
    "JupyterLab's user settings: a theme, and no news."
    home = folder / 'settings' / '@jupyterlab' / 'apputils-extension'
    home.mkdir(parents=True, exist_ok=True)
    (home / 'themes.jupyterlab-settings').write_text(json.dumps({'theme': theme}))
    (home / 'notification.jupyterlab-settings').write_text(json.dumps({'fetchNews': 'false', 'checkForUpdates': False,
            'doNotDisturbMode': True}))


def environment(folder):
    keep = {k: v for k, v in os.environ.items() if not k.startswith(('ANTHROPIC_', 'JUPYTER', 'JPY_'))}
    own = {name: str(folder / name.lower()) for name in ('JUPYTER_CONFIG_DIR', 'JUPYTER_DATA_DIR', 'JUPYTER_RUNTIME_DIR', 'IPYTHONDIR',
                                                         'KERNEL_LAB_HOME')}
    return {**keep, **own, 'JUPYTERLAB_SETTINGS_DIR': str(folder / 'settings'), 'JUPYTERLAB_WORKSPACES_DIR': str(folder / 'workspaces'),
            'PYTHONPATH': str(ROOT)}


@pytest.fixture(scope='module')
def lab_server(tmp_path_factory):
    "(address, folder) of a JupyterLab over an empty folder of notebooks."
    folder = tmp_path_factory.mktemp('lab')
    (folder / 'notebooks').mkdir()
    settings(folder, 'JupyterLab Light')
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    command = [sys.executable, '-m', 'jupyterlab', '--no-browser', '--ip', '127.0.0.1', '--port', str(port), '--allow-root',
               '--ServerApp.port_retries=0', '--IdentityProvider.token=', '--ServerApp.password=',
               f'--ServerApp.root_dir={folder / "notebooks"}']
    with open(folder / 'server.log', 'w') as log: server = subprocess.Popen(command, env=environment(folder), stdout=log, stderr=log,
            cwd=folder)
    try:
        wait_for(f'http://127.0.0.1:{port}/api/status', server, folder / 'server.log')
        yield f'http://127.0.0.1:{port}', folder
    finally:
        server.terminate()
        try: server.wait(20)
        except subprocess.TimeoutExpired: server.kill()


def wait_for(url, server, log, seconds=120):
    for _ in range(seconds * 2):
        assert server.poll() is None, f'JupyterLab ended:\n{log.read_text()[-3000:]}'
        try: return urllib.request.urlopen(url, timeout=2).read()
        except OSError: time.sleep(0.5)
    pytest.fail(f'JupyterLab did not answer:\n{log.read_text()[-3000:]}')


@pytest.fixture(scope='module')
def browser():
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(lab_server, browser):
    "visit(name) opens a copy of the page under that name, with a kernel of its own; gives (page, watch)."
    address, folder = lab_server
    contexts = []
    def open_page(name):
        shutil.copy(ROOT / 'nbs' / 'lab.ipynb', folder / 'notebooks' / f'{name}.ipynb')
        contexts.append(browser.new_context(viewport={'width': 1400, 'height': 1000}))
        page = contexts[-1].new_page()
        watch = Watch(page, address)
        run_all(page, f'{address}/lab/workspaces/{name}/tree/{name}.ipynb?reset')
        return page, watch
    yield open_page
    for context in contexts: context.close()


class Watch:
    "Console errors and requests of a page."
    def __init__(self, page, address):
        self.errors, self.outside = [], []
        page.on('console', lambda m: m.type == 'error' and not NOISE.search(f'{m.text} {m.location.get("url")}') and self.errors.append(m.text))
        page.on('pageerror', lambda e: self.errors.append(str(e)))
        page.on('request', lambda r: r.url.startswith((address, address.replace('http', 'ws'), 'data:',
                                                       'blob:')) or self.outside.append(r.url))


def run_all(page, url):
    "Open the notebook, run all its cells, and pick the small softmax."
    page.goto(url, timeout=SLOW)
    page.locator('.jp-Notebook .jp-CodeCell').first.wait_for(timeout=SLOW)
    page.locator('.jp-StatusBar-TextItem:text-matches("Idle$")').first.wait_for(timeout=SLOW)        # before that, Run All does nothing
    page.locator('.lm-MenuBar-itemLabel:text-is("Run")').click(timeout=SLOW)
    page.locator('.lm-Menu-itemLabel:text-is("Run All Cells")').click(timeout=SLOW)
    page.wait_for_function('() => [...document.querySelectorAll(".jp-InputPrompt")].some(p => /\\[[*\\d]/.test(p.textContent))',
                           timeout=SLOW)
    lab = page.locator('.kl-lab button:text-is("Evaluate the first kernel")')
    for _ in range(SLOW // 1000):
        page.evaluate('() => { for (const n of document.querySelectorAll(".jp-WindowedPanel-outer")) n.scrollTop = 0 }')        # JupyterLab drops what is far from view
        if lab.count() and lab.is_visible(): break
        page.wait_for_timeout(1000)
    else: pytest.fail(f'the page did not appear: {page.locator(".jp-OutputArea-output").all_inner_texts()}')
    page.wait_for_function('() => [...document.querySelectorAll(".jp-InputPrompt")].every(p => !p.textContent.includes("*"))', timeout=SLOW)
    page.locator('.kl-lab select').first.select_option('softmax')
    page.locator('.kl-lab select').nth(1).select_option('small')
    page.wait_for_timeout(1000)


def titles(page): return page.locator('.kl-lab .gtitle').all_text_contents()
def bars(page, said):
    "How many bars the figure has whose title holds `said`."
    return page.evaluate("""said => [...document.querySelectorAll('.kl-lab .js-plotly-plot')]
        .filter(p => p.querySelector('.gtitle')?.textContent.includes(said))
        .flatMap(p => [...p.querySelectorAll('.barlayer .point')]).length""", said)


def press(page, label, steps):
    "Press a button and wait until there are as many chips as `steps`."
    page.locator(f'.kl-lab button:text-is("{label}")').click()
    page.wait_for_function('n => document.querySelectorAll(".kl-lab .kl-chips .widget-toggle-button").length === n', arg=steps,
                           timeout=SLOW)
    page.wait_for_function('() => !document.querySelector(".kl-lab .kl-main").disabled', timeout=SLOW)
    page.wait_for_function('() => document.querySelectorAll(".kl-lab .js-plotly-plot .gtitle").length === 4',
                           timeout=SLOW)        # the browser draws after Python is done
    page.wait_for_timeout(800)


def zoom(page):
    "Drag over a part of the timeline: fewer bars, and a subtitle that names the window."
    plot = page.locator('.kl-lab .js-plotly-plot').filter(has_text='simulated on')
    plot.scroll_into_view_if_needed()
    area = plot.locator('.nsewdrag').first.bounding_box()
    y = area['y'] + area['height'] / 2
    page.mouse.move(area['x'] + area['width'] * 0.55, y)
    page.mouse.down()
    page.mouse.move(area['x'] + area['width'] * 0.75, y, steps=5)
    page.mouse.up()
    page.wait_for_function('() => [...document.querySelectorAll(".kl-lab .gtitle")].some(t => t.textContent.includes(" between "))',
                           timeout=SLOW)


@pytest.mark.parametrize('theme', ['Light', 'Dark'])
def test_a_person_steps_three_times(lab_server, visit, theme):
    folder = lab_server[1]
    settings(folder, f'JupyterLab {theme}')
    page, watch = visit(theme.lower())
    assert {'No step yet', 'No timeline', 'Nothing to compare'} <= set(page.locator('.kl-lab .kl-rest .kl-title').all_text_contents())

    press(page, 'Evaluate the first kernel', 1)
    first, drawn = titles(page), bars(page, 'simulated on')
    assert drawn > 5 and any('simulated' in t for t in first)
    press(page, 'Step', 2)
    press(page, 'Step', 3)
    assert titles(page) != first and bars(page, 'faster at step') == 3
    assert page.locator('.kl-lab .kl-cost i').count() > 0 and page.locator('.kl-lab .kl-numbers b').first.inner_text().endswith('×')

    target = Path(os.environ.get('KERNEL_LAB_SHOTS') or folder)
    page.screenshot(path=target / f'lab-{theme.lower()}.png')
    zoom(page)
    page.set_viewport_size({'width': 1400, 'height': 2100})
    page.wait_for_timeout(1500)
    page.screenshot(path=target / f'lab-{theme.lower()}-whole.png')
    assert page.evaluate("""() => [...document.querySelectorAll('.kl-lab .js-plotly-plot')]
        .every(p => !p.clientWidth || Math.abs(p.querySelector('.main-svg').getAttribute('width') - p.clientWidth) <= 1)""")
    assert (target / f'lab-{theme.lower()}.png').stat().st_size > 20_000
    assert watch.outside == []
    assert watch.errors == []


def test_a_person_edits_and_breaks_the_kernel(lab_server, visit):
    folder = lab_server[1]
    page, watch = visit('edit')
    page.locator('.kl-lab textarea').first.fill('import nki\n\n@nki.jit\ndef softmax(x):\n    return y <b>\n')
    page.locator('.kl-lab button:text-is("Evaluate my edit"):not([disabled])').click(timeout=SLOW)
    page.wait_for_function('() => document.querySelectorAll(".kl-lab .kl-chips .widget-toggle-button").length === 2', timeout=SLOW)
    page.locator('.kl-lab .kl-band').wait_for(timeout=SLOW)
    log = page.locator('.kl-lab .kl-log').first.inner_text()
    assert 'parse error' in log and 'line 5' in log and 'Traceback' not in log
    assert page.locator('.kl-lab .kl-lineno').nth(4).evaluate('e => e.parentNode.className') == 'kl-line kl-marked'
    page.screenshot(path=Path(os.environ.get('KERNEL_LAB_SHOTS') or folder) / 'lab-broken.png')
    assert watch.outside == [] and watch.errors == []
