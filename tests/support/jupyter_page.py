"A JupyterLab on a free port over an empty folder, with a theme and without news: for the tests of the page, and what times it."
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def settings(folder, theme):
    "JupyterLab's user settings: a theme, no news, and no question whether it must be built, which starts node five times."
    config = folder / 'jupyter_config_dir' / 'labconfig'
    config.mkdir(parents=True, exist_ok=True)
    (config / 'page_config.json').write_text(json.dumps({'buildCheck': False, 'buildAvailable': False, 'disabledExtensions': {
        '@jupyterlab/extensionmanager-extension': True}}))
    home = folder / 'settings' / '@jupyterlab' / 'apputils-extension'
    home.mkdir(parents=True, exist_ok=True)
    (home / 'themes.jupyterlab-settings').write_text(json.dumps({'theme': theme}))
    (home / 'notification.jupyterlab-settings').write_text(json.dumps({'fetchNews': 'false', 'checkForUpdates': False,
            'doNotDisturbMode': True}))


def environment(folder):
    keep = {k: v for k, v in os.environ.items() if not k.startswith(('ANTHROPIC_', 'JUPYTER', 'JPY_'))}
    own = {
        name: str(folder / name.lower())
        for name in ('JUPYTER_CONFIG_DIR', 'JUPYTER_DATA_DIR', 'JUPYTER_RUNTIME_DIR', 'IPYTHONDIR', 'KERNEL_LAB_HOME')}
    return {
        **keep, **own, 'JUPYTERLAB_SETTINGS_DIR': str(folder / 'settings'),
        'JUPYTERLAB_WORKSPACES_DIR': str(folder / 'workspaces'),
        'PYTHONPATH': os.pathsep.join((str(ROOT), str(ROOT / 'tests' / 'support' / 'without_grammars')))}


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


@contextmanager
def jupyter_lab(folder):
    "(address, folder) of a JupyterLab over `folder`/notebooks, which is empty."
    (folder / 'notebooks').mkdir()
    settings(folder, 'JupyterLab Light')
    port = free_port()
    command = [
        sys.executable, '-m', 'jupyterlab', '--no-browser', '--ip', '127.0.0.1', '--port',
        str(port), '--allow-root', '--ServerApp.port_retries=0', '--IdentityProvider.token=', '--ServerApp.password=',
        f'--ServerApp.root_dir={folder / "notebooks"}']
    with open(folder / 'server.log', 'w') as log:
        server = subprocess.Popen(command, env=environment(folder), stdout=log, stderr=log, cwd=folder)
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
    raise AssertionError(f'JupyterLab did not answer:\n{log.read_text()[-3000:]}')
