"The browser of the tests: where it is, how it is started, and who watches a page."
import os
import re
import shutil
from contextlib import contextmanager

CHROMIUM = os.environ.get('KERNEL_LAB_CHROMIUM') or shutil.which('chromium') or shutil.which(
    'chromium-browser') or shutil.which('google-chrome')
FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
         '--disable-component-update', '--disable-sync']
NOISE = re.compile(r'favicon|ERR_ABORTED|status of 404.*(workspaces|settings)', re.I)


@contextmanager
def launched():
    "A browser without a window, closed in the end."
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Watch:
    "Console errors of a page, and its requests to other addresses than these."
    def __init__(self, page, *addresses):
        self.errors, self.outside = [], []
        page.on(
            'console', lambda m: m.type == 'error' and not NOISE.search(f'{m.text} {m.location.get("url")}') and self.
            errors.append(m.text))
        page.on('pageerror', lambda e: self.errors.append(str(e)))
        page.on('request', lambda r: r.url.startswith((*addresses, 'data:', 'blob:')) or self.outside.append(r.url))
