"""`kernel-lab app` as a class meets it: a token, a process a person, a bound, Ctrl-C. One server, a small notebook."""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from chromium import CHROMIUM, Watch, barriers, launched

if not find_spec('voila'): pytest.skip('voila is not installed', allow_module_level=True)
ROOT = Path(__file__).parents[2]
CELL = """import os
from kernel_lab.panels import SourceEditor
print('answer', 6 * 7, os.environ.get('PLANTED_API_KEY'))
SourceEditor('x = 1')"""


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def command(*words): return [sys.executable, '-c', 'from kernel_lab.cli.entry import start; start()', 'app', *map(str, words)]


@contextmanager
def serving(folder, cell=CELL):
    "(process, port, log) of a server with room for one person."
    own_cell = dict(cell_type='code', execution_count=None, id='a', metadata={}, outputs=[], source=cell)
    spec = dict(name='python3', display_name='Python 3', language='python')
    (folder / 'small.ipynb').write_text(json.dumps(dict(cells=[own_cell], metadata=dict(kernelspec=spec), nbformat=4, nbformat_minor=5)))
    own = {k: str(folder / k.lower()) for k in ('JUPYTER_CONFIG_DIR', 'JUPYTER_DATA_DIR', 'JUPYTER_RUNTIME_DIR', 'IPYTHONDIR', 'KERNEL_LAB_HOME')}
    env = {**os.environ, **own, 'PLANTED_API_KEY': 'planted-secret', 'PYTHONUNBUFFERED': '1',
           'PYTHONPATH': os.pathsep.join((str(ROOT), str(ROOT / 'tests' / 'support' / 'without_grammars')))}
    port, log = free_port(), folder / 'log'
    with open(log, 'w') as out:
        words = command(folder / 'small.ipynb', '--port', port, '--token', 'of-the-class', '--persons', 1, '--idle', 5)
        server = subprocess.Popen(words, cwd=folder, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        for _ in range(240):
            assert server.poll() is None, log.read_text()
            try: urllib.request.urlopen(f'http://127.0.0.1:{port}/login', timeout=2).close(); break
            except OSError: time.sleep(0.5)
        yield server, port, log
    finally:
        if server.poll() is None: os.killpg(server.pid, signal.SIGKILL)


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
    with serving(tmp_path_factory.mktemp('class')) as server: yield server


@pytest.fixture
def served(shared):
    "The shared server, when nobody is there any more."
    assert nobody(shared[0])
    return shared


def fetched(port, query=''):
    "(status, final address, text) of the page."
    try:
        with urllib.request.urlopen(f'http://127.0.0.1:{port}/{query}', timeout=120) as r: return r.status, r.url, r.read().decode()
    except urllib.error.HTTPError as e: return e.code, e.url, e.read().decode()


def children(pid): return (Path(f'/proc/{pid}/task/{pid}/children').read_text()).split()


def nobody(server):
    "Whether the processes of those who left end: 5 seconds, and a second between two looks."
    for _ in range(120):
        if not children(server.pid): return True
        time.sleep(0.25)


def as_the_only_one(port):
    "The page's text; the server hears of another one's end a moment after it."
    for _ in range(20):
        text = fetched(port, '?token=of-the-class')[2]
        if 'as may be' not in text: break
        time.sleep(0.5)
    return text


def test_the_log_says_the_link_and_a_busy_port_is_refused(served):
    _, port, log = served
    assert f'http://127.0.0.1:{port}/?token=of-the-class' in log.read_text() and 'at most 1 at once' in log.read_text()
    again = subprocess.run(command('--port', port), capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': str(ROOT)})
    assert again.returncode == 2 and again.stderr.count('\n') == 1
    assert f'port {port}: Address already in use. Give another with --port' in again.stderr


@pytest.mark.parametrize('query', ['', '?token=wrong', 'voila/files/small.ipynb'])
def test_without_the_token_nothing_is_shown_and_no_process_starts(served, query):
    server, port, _ = served
    status, url, text = fetched(port, query)
    assert status in (200, 403) and ('/login' in url or status == 403)
    assert 'answer' not in text and children(server.pid) == []


def looked_at(port):
    "The text of the page in a browser, with a live panel, and nothing asked of another server."
    with launched() as browser:
        page, answered, errors = browser.new_page(), [], []
        page.on('response', lambda r: answered.append(r.url))
        page.on('console', lambda m: m.type == 'error' and 'favicon' not in m.text and errors.append(m.text))
        for _ in range(20):                                             # see as_the_only_one
            answered.clear(), errors.clear()
            page.goto(f'http://127.0.0.1:{port}/?token=of-the-class', timeout=120_000)
            if 'as may be' not in page.content(): break
            time.sleep(0.5)
        page.locator('.kl-editor textarea').first.wait_for(timeout=120_000)
        assert page.locator('.kl-editor textarea').first.input_value() == 'x = 1'
        assert all(url.startswith((f'http://127.0.0.1:{port}', 'data:', 'blob:')) for url in answered), answered
        assert errors == []
        return page.locator('body').inner_text()


def test_a_person_has_a_process_without_the_keys_and_the_next_is_one_too_many(served):
    server, port, _ = served
    text = looked_at(port) if CHROMIUM and find_spec('playwright') else fetched(port, '?token=of-the-class')[2]
    assert 'answer 42 None' in text and 'planted-secret' not in text
    assert len(children(server.pid)) == 1
    status, _, text = fetched(port, '?token=of-the-class')
    assert status == 503 and 'As many persons are here as may be (1)' in text and len(children(server.pid)) == 1


@pytest.mark.slow
def test_the_process_of_a_closed_tab_ends_and_its_place_is_free(served):
    server, port, _ = served
    for _ in range(2):
        assert 'answer 42' in as_the_only_one(port) and len(children(server.pid)) == 1
        assert nobody(server)


def test_ctrl_c_ends_it_and_every_process(tmp_path):
    with serving(tmp_path) as (server, port, log):
        assert 'answer 42' in as_the_only_one(port)
        kernels = children(server.pid)
        assert len(kernels) == 1
        server.send_signal(signal.SIGINT)
        server.wait(60)
        assert 'all processes of the page are gone' in log.read_text() and 'Traceback' not in log.read_text()
        assert not [pid for pid in kernels if Path(f'/proc/{pid}').exists()]


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM or not find_spec('playwright'), reason='there is no Chromium on this machine')
def test_the_whole_page_is_alive_for_a_class(tmp_path):
    "A step, its pictures, the animation and a file for a friend, without JupyterLab; axe finds nothing serious."
    with serving(tmp_path, "from kernel_lab.panels import Lab\nLab('softmax', 'small', store=False, seeds=1)") as (_, port, _), launched() as browser:
        page = browser.new_context(viewport={'width': 1280, 'height': 1400}).new_page()
        watch = Watch(page, f'http://127.0.0.1:{port}', f'ws://127.0.0.1:{port}')
        page.goto(f'http://127.0.0.1:{port}/?token=of-the-class', timeout=120_000)
        page.locator('.kl-lab button:text-is("Evaluate the first kernel")').click(timeout=120_000)
        page.wait_for_function("document.querySelectorAll('.kl-lab .js-plotly-plot .gtitle').length === 3", timeout=120_000)
        page.locator('.kl-lab .kl-tabs button:text-is("Animation")').click()
        page.locator('.kl-an-run').click(timeout=120_000)
        page.wait_for_function('() => !document.querySelector(".kl-an-clock").textContent.startsWith("0.00")', timeout=120_000)
        with page.expect_download(timeout=120_000) as kept: page.locator('.kl-lab button:text-is("Save as a file")').click()
        assert kept.value.suggested_filename == 'softmax-small-report.html'
        assert barriers(page, '.kl-lab') == [] and watch.errors == [] and watch.outside == []
