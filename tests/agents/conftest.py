"Parts that the walks of a person share: an evaluation that was really made, and a store of one's own."
import mortal
import pytest

from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.records.verification import Status
from kernel_lab.evaluate.store.store import Store
from kernel_lab.tasks.suite.registry import get_task


@pytest.fixture(scope='module')
def measured():
    "One real evaluation, which the quick ones are copies of."
    softmax = get_task('softmax')
    found = evaluate(softmax.first_kernel, softmax, 'small', seeds=1)
    assert found.status == Status.CORRECT, found.log
    return found


@pytest.fixture
def quick(monkeypatch, measured): return mortal.make_quick(measured, monkeypatch.setattr)


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path/'runs.db')
    yield made
    made.close()
