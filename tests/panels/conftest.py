"What the tests of pages share."
import pytest

from chromium import launched


@pytest.fixture(scope='module')
def browser():
    with launched() as chromium: yield chromium
