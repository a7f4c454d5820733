"""What requests have cost that made no kernel: in the report, in an export, and where a beam stops paying."""
import pytest
from kernel_lab.agents.engine.loop import AgentLoop
from kernel_lab.agents.models.messages import ChatError, Reply
from kernel_lab.agents.models.prices import Usage
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.systems.beam import BeamAgent
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.core.errors import LabError
from kernel_lab.evaluate.records.journal import spent_in
from kernel_lab.evaluate.store.export import COLUMNS, REST, rows
from kernel_lab.evaluate.store.store import Store
from kernel_lab.figures.report import report_html

PRICED = 'claude-haiku-4-5'


def worked(store, agent):
    "An `AgentLoop` that has ended, well or with an error."
    loop = AgentLoop('relu', agent, workload='small', store=store, seeds=1)
    try:
        for _ in loop: pass
    except LabError: pass
    return loop


@pytest.fixture
def store(tmp_path): return Store(tmp_path / 'lab.sqlite3')


@pytest.mark.parametrize('name', [PRICED, 'nobody-knows'])
@pytest.mark.parametrize('reply', [ChatError('dropped', usage=Usage(46_084, 6)), Reply(({'type': 'text', 'text': 'I cannot.'},), 'end_turn', Usage(46_084, 6))],
                         ids=['failed', 'without code'])
def test_what_made_no_kernel_is_paid_and_seen(store, tmp_path, name, reply):
    loop = worked(store, ReactAgent(ScriptedModel([reply], name, repeat=True), turns=2))
    journal = store.journal(loop.run.id)
    spent = spent_in(journal)
    assert spent.tokens_in >= 46_084
    found = list(rows(store, [loop.run.id]))
    assert sum(r['tokens_in'] or 0 for r in found) == spent.tokens_in and sum(r['tokens_out'] or 0 for r in found) == spent.tokens_out
    rest = found[-1]
    assert rest['move'] == REST and rest.keys() == COLUMNS.keys() and rest['evaluation'] is rest['status'] is None
    if name == PRICED: assert sum(r['cost_usd'] for r in found) == pytest.approx(spent.dollars, rel=1e-12) and spent.dollars > 0.04
    else: assert rest['cost_usd'] is spent.dollars is None
    assert list(rows(store, task='softmax')) == [] and len(list(rows(store, task='relu'))) == len(found)
    page = report_html(loop.run, tmp_path / 'report.html', journal=journal).read_text()
    assert f'{spent.tokens_in + spent.tokens_out:,} tokens' in page
    assert ('unknown price' if spent.dollars is None else f'${spent.dollars:.4f}') in page
    for text in {e.body['text'] for e in journal if e.kind == 'note'}: assert text in page


def test_a_run_without_a_model_has_no_row_of_requests(store):
    loop = AgentLoop('relu', None, workload='small', store=store, seeds=1)
    loop.step(loop.task.first(loop.workload).source)
    assert [r['move'] for r in rows(store)] == [s.move for s in loop.run.steps]


@pytest.mark.parametrize('answer', ['I cannot help with that.', ''])
def test_a_beam_ends_after_a_round_without_a_kernel(store, answer):
    model = ScriptedModel([answer or Reply((), 'refusal')], PRICED, repeat=True)
    loop = worked(store, BeamAgent(model, rounds=16, beam=2, plans=3, samples=2))
    assert len(model.asked) == 3 * (1 + 2) and loop.done
    assert [e.body['text'] for e in store.journal(loop.run.id) if e.kind == 'note'][-1].startswith('No answer of round 0 held a kernel')
