"""Every record as HTML and as text: hostile text is text, a large program is short and quick, nothing is asked of a
network."""
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from kernel_lab.agents.engine.loop import AgentLoop
from kernel_lab.core.errors import KernelError
from kernel_lab.core.markup import save_html
from kernel_lab.evaluate import evaluate
from kernel_lab.evaluate.records.run import Run, Step
from kernel_lab.nki.checks.diagnostic import Diagnostic
from kernel_lab.nki.ir.affine import Affine
from kernel_lab.nki.ir.nodes import Access, Instruction, Loop, Tensor
from kernel_lab.nki.ir.program import Program
from kernel_lab.tasks import get_task
from kernel_lab.tasks.model.workload import Kernel

EVIL = '</style></pre><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e" onmouseover="alert(1)\'\r\n</details>'
TAGS = {'div', 'style', 'b', 'span', 'details', 'summary', 'p', 'table', 'thead', 'tbody', 'tr', 'th', 'td', 'i', 'button', 'pre', 'a',
        'svg', 'text', 'rect', 'path'}
ATTRIBUTES = {'class', 'tabindex', 'id', 'style', 'title', 'open', 'href', 'type', 'aria-label', 'data-n', 'onclick', 'viewbox', 'role', 'x', 'y', 'width',
              'height', 'fill', 'd', 'text-anchor'}


class Strict(HTMLParser):
    "Fails at a tag or attribute that no template of the lab writes, and where tags are not closed in order."
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.hrefs, self.scripts = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS and {k for k, _ in attrs} <= ATTRIBUTES, (tag, attrs)
        found = dict(attrs)
        self.ids += [found['id']] if 'id' in found else []
        self.hrefs += [found['href']] if 'href' in found else []
        self.scripts |= {found['onclick']} if 'onclick' in found else set()
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs): assert tag in TAGS and {k for k, _ in attrs} <= ATTRIBUTES

    def handle_endtag(self, tag): assert self.open.pop() == tag


def checked(record):
    "The HTML of a record, after a strict reading of it."
    html, reader = record._repr_html_(), Strict()
    reader.feed(html)
    assert reader.open == [] and len(reader.ids) == len(set(reader.ids)) and len(reader.scripts) <= 1
    assert {h.removeprefix('#') for h in reader.hrefs} <= set(reader.ids)
    assert not re.search('[\x00-\x08\x0b-\x1f\u202e]', html) and 'alert(1)' not in ''.join(reader.scripts)
    return html


@pytest.fixture(scope='module')
def loop():
    found = AgentLoop('softmax', workload='small', chip='trn2', store=False, seeds=1)
    found.step()
    return found


def hostile_records(loop):
    e = loop.run.steps[0].evaluation
    program = e.profile.timeline.program
    error = KernelError(EVIL, kind='limit', line=1, instruction=EVIL, operand=EVIL, limit=EVIL, value=EVIL, hint=EVIL)
    bad = replace(e, status='trace_error', profile=None, verification=None, error=error.to_dict(), log=EVIL, task=EVIL,
                  kernel=Kernel(EVIL, name=EVIL), versions={EVIL: EVIL}, workload=EVIL)
    step = Step('r', 0, EVIL, EVIL, EVIL, bad, prompt=EVIL, thought=EVIL, tool_calls=({'name': EVIL},))
    task = replace(get_task('softmax'), name=EVIL, doc=EVIL, family=EVIL, tags=(EVIL,), first_kernel=Kernel(EVIL))
    named = replace(program, name=EVIL, source=EVIL * 3, tensors=tuple(replace_name(t) for t in program.tensors))
    timeline = replace(e.profile.timeline, program=named)
    return dict(error=error, diagnostic=Diagnostic(EVIL, 1, EVIL, EVIL, EVIL, EVIL, EVIL), evaluation=bad, step=step, task=task,
                run=Run('r', EVIL, EVIL, 'trn2', EVIL, (step,)), kernel=Kernel(EVIL, name=EVIL), program=named,
                timeline=timeline, profile=replace(e.profile, bound=EVIL, clock=EVIL, engines={EVIL: 0.5}, chip=EVIL))


def replace_name(t): return Tensor(EVIL, t.shape, t.dtype, t.buffer, t.role, t.par, t.zero, t.scope, t.line, t.alias, t.places)


def test_hostile_text_is_text_in_every_record(loop):
    for name, record in hostile_records(loop).items():
        html = checked(record)
        assert '&lt;script&gt;alert(1)' in html, name
        assert not re.search('[\x00-\x08\x0b-\x1f\u202e]', record._repr_mimebundle_()['text/plain']), name


def test_every_record_has_html_and_text_at_once(loop):
    run = loop.run
    e = run.steps[0].evaluation
    for record in (e.profile.timeline.program, e.profile.timeline, e.profile, e, run.steps[0], run, get_task('softmax'),
                   KernelError('x'), Diagnostic('x'), e.kernel, e.verification):
        found = record._repr_mimebundle_()
        assert set(found) == {'text/plain', 'text/html'} and len(found['text/plain']) < 20_000, record
        assert 'http' not in checked(record) and found['text/plain']
    assert all('simulated' in x._repr_html_() for x in (e.profile.timeline, e.profile, e, run))


def test_a_line_leads_to_its_instruction_and_back(loop):
    program = loop.run.steps[0].evaluation.profile.timeline.program
    html = checked(program)
    line = next(i.line for i in program.instructions if i.line)
    anchor = re.search(r'id="(kl-[\w-]+)-i(\d+)"', html)[1]
    assert f'id="{anchor}-i{line}"' in html and f'href="#{anchor}-L{line}"' in html
    assert f'id="{anchor}-L{line}"' in html and f'href="#{anchor}-i{line}"' in html


def huge(pattern):
    "A program of a million instructions, each a row of its body."
    at = lambda k: Access(k, Affine(), ((512, 128), (1, 512)))
    rows = [Instruction('dma_copy', {'dst': at(1)}, {'src': at(0)}, line=int(k)) for k in pattern]
    x, t = Tensor('x', (128, 512), 'float32', 'hbm', 'input'), Tensor('t', (128, 512), 'float32', 'sbuf')
    return Program('huge', (x, t), tuple(rows * (1_000_000 // len(rows))), (), source='y = 1\n' * 5000)


@pytest.mark.parametrize('pattern', [[1, 2], np.random.default_rng(0).integers(1, 900, 4000)], ids=['plain', 'noise'])
def test_a_million_instructions_show_as_a_small_page(pattern):
    program = huge(pattern)
    found = program._repr_mimebundle_()
    assert len(found['text/html']) < 200_000
    assert '1,000,000 instructions' in found['text/html'] and 'left out' in found['text/html']


def test_loops_count_what_they_issue():
    at = lambda k: Access(k, Affine(), ((512, 128), (1, 512)))
    one = Instruction('dma_copy', {'dst': at(1)}, {'src': at(0)}, line=3)
    x, t = Tensor('x', (128, 512), 'float32', 'hbm', 'input'), Tensor('t', (128, 512), 'float32', 'sbuf')
    program = Program('p', (x, t), (Loop('i', 1000, (Loop('j', 1000, (one,)),)), one, one), ())
    assert '1,000,002 instructions' in checked(program) and '1,000 instructions' in checked(program)


def test_a_long_log_and_a_long_run_say_what_they_leave_out(loop):
    e = loop.run.steps[0].evaluation
    assert 'more lines are left out' in checked(replace(e, log='word\n' * 2_000_000))
    steps = tuple(replace(loop.run.steps[0], index=k, move=f'move {k}') for k in range(200))
    html = checked(replace(loop.run, steps=steps))
    assert len(html) < 400_000 and 'more steps are left out' in html and 'Step 199' in html


def test_an_evaluation_that_failed_opens_at_its_line():
    e = evaluate(Kernel('import nki\n\n@nki.jit\ndef softmax(x):\n    return y <b>\n'), get_task('softmax'), 'small', 'trn2')
    assert re.search(r'kl-line kl-bad" id="kl-[\w-]+-L5"', checked(e))


# --- files for others ---

SECRET, USER, HOST = 'sk-planted-9f8e7d6c5b4a', 'gwendolynplanted', 'tigerlilyplanted'


@pytest.fixture
def planted(monkeypatch, tmp_path):
    "A person, a machine, a folder and a key that no exported file may hold."
    home = tmp_path / USER / 'secret_folder'
    home.mkdir(parents=True)
    monkeypatch.setenv('USER', USER)
    monkeypatch.setenv('LOGNAME', USER)
    monkeypatch.setenv('HOSTNAME', HOST)
    monkeypatch.setenv('HOME', str(tmp_path / USER))
    monkeypatch.setenv('PLANTED_API_KEY', SECRET)
    monkeypatch.setattr('platform.node', lambda: HOST)
    return home


def tells(text): return [word for word in (SECRET, USER, HOST, 'secret_folder') if word in text]


def told(loop, home):
    "A run whose texts tell everything."
    words = f'{USER}@{HOST} {home}/my_kernel.py {SECRET}'
    e = loop.run.steps[0].evaluation
    kernel = Kernel(f'# {words}\n{e.kernel.source}', name=str(home / 'my_kernel.py'))
    error = KernelError(f'File "{home}/my_kernel.py", line 3: {words}', line=1, hint=words)
    bad = replace(e, status='trace_error', profile=None, verification=None, error=error.to_dict(), log=words, kernel=kernel,
                  versions={**e.versions, 'where': words})
    good = replace(e, kernel=kernel, log=words)
    steps = [Step('r', k, words, words, words, x, prompt=words, thought=words) for k, x in enumerate((good, bad))]
    return Run('r', 'softmax', 'small', 'trn2', words, tuple(steps), config={'where': words})


def test_no_exported_record_tells_of_person_machine_folder_or_key(loop, planted, tmp_path):
    run = told(loop, planted)
    task = replace(get_task('softmax'), doc=f'{planted}/x {SECRET}', first_kernel=run.steps[0].evaluation.kernel)
    for name, record in dict(run=run, step=run.steps[1], good=run.steps[0].evaluation, bad=run.steps[1].evaluation, task=task,
                             kernel=run.steps[0].evaluation.kernel).items():
        assert tells(record._repr_html_()), name                          # it is in there
        text = save_html(record, tmp_path / f'{name}.html', f'{planted}/a {USER}').read_text()
        assert not tells(text) and 'my_kernel.py' in text or name == 'task' and not tells(text), name


def test_no_report_tells_either(loop, planted, tmp_path):
    from kernel_lab.figures.report import report_html
    text = Path(report_html(told(loop, planted), tmp_path / 'report.html')).read_text()
    assert not tells(text) and 'my_kernel.py' in text


@pytest.mark.parametrize('kind', ['jsonl', 'csv', 'parquet', 'flashinfer'])
def test_no_export_of_the_store_tells_either(loop, planted, tmp_path, kind, monkeypatch):
    from kernel_lab.cli.runs import export_store
    from kernel_lab.evaluate.store.store import Store
    run = told(loop, planted)
    with monkeypatch.context() as before:                                 # stored when the key was not yet known
        before.delenv('PLANTED_API_KEY')
        store = Store(tmp_path / 'lab.sqlite3')
        store.save_run(run)
    target = tmp_path / ('traces' if kind == 'flashinfer' else f'rows.{kind}')
    export_store(str(target), format=kind, place=str(tmp_path / 'lab.sqlite3'))
    files = [p for p in target.rglob('*') if p.is_file()] if target.is_dir() else [target]
    text = as_text(target) if kind == 'parquet' else ''.join(p.read_text() for p in files)
    assert files and len(text) > 500 and not tells(text)


def as_text(path):
    pq = pytest.importorskip('pyarrow.parquet')
    return str(pq.read_table(path).to_pylist())
