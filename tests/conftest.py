"What every test shares."
import gc
import signal

import pytest


def pytest_sessionstart():
    "A worker is born deaf to Ctrl-C, and so would be every process it starts; some tests press it."
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure():
    """Each notebook leaves a shell that collects garbage when Python ends, a hundred times over everything: nothing is
    left to find."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """With several workers (`make test`): a file goes to one of them, for what its tests share; notebooks go to
    whoever is free. The longest file first, so that nobody waits for it in the end."""
    items.sort(key=lambda i: i.path.name != 'test_page.py')
    for i in items:
        if i.path.name != "test_notebooks.py": i.add_marker(pytest.mark.xdist_group(i.path.name))
