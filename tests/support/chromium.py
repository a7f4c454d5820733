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
    "A browser without a window, closed in the end. Its scroll bars take room, as most people's do."
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS, ignore_default_args=['--hide-scrollbars'])
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


def barriers(page, within=None):
    """What axe-core finds on a page, or on its part `within` (a CSS selector), that is serious or critical: a line
    each, with the element and what is wrong."""
    from axe_playwright_python.sync_playwright import Axe
    found = Axe().run(page, context=within).response['violations']
    return [f'{v["id"]}: {" ".join(map(str, n["target"]))}: {n["failureSummary"].splitlines()[-1].strip()}'
            for v in found if v['impact'] in ('serious', 'critical') for n in v['nodes']]
