"""The panels in this process: buttons are pressed with click(), and the state is looked at. No browser."""
import json
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from kernel_lab.agents.engine.loop import EDITED_BY_HAND, AgentLoop
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.recorded.runs import recorded_run
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.store.store import Store
from kernel_lab.panels.step_control import StepControl
from kernel_lab.panels.lab import Lab
from kernel_lab.panels.engine_timeline import packed_timeline
from kernel_lab.panels.figure_panels import CorrectnessDiff, SpeedupPanel, TimelinePanel, UtilisationPanel, library
from kernel_lab.panels.source_and_log import CompileLog, CostPanel, SourceEditor
from kernel_lab.tasks.model.task import task_from

EVIL = '<img src=x onerror=alert(1)>'


@pytest.fixture(autouse=True)
def no_key(monkeypatch): monkeypatch.delenv('ANTHROPIC_API_KEY', raising=False)


@pytest.fixture
def store(tmp_path): return Store(tmp_path / 'lab.sqlite3')


@pytest.fixture
def lab(store): return Lab('softmax', 'small', store=store, seeds=1, max_steps=3)


def test_three_presses_change_the_pictures(lab):
    seen = []
    for _ in range(3):
        lab.control.button.click()
        lab.control.wait()
        seen.append((lab.speedup.title, len(lab.speedup.figure.data[0].x) + len(lab.speedup.figure.data[2].x),
                     lab.compile_log.text))
    assert [n for _, n, _ in seen] == [1, 2, 3] and len({t for _, _, t in seen}) == 3
    assert len(lab.control.chips.options) == 3 and lab.control.chips.value == 2 and lab.shown.index == 2


def test_run_to_the_end_stops_and_says_so(lab):
    lab.control.all_button.click()
    lab.control.wait()
    assert lab.loop.done and lab.control.button.disabled and len(lab.loop.steps) <= 4
    assert 'done' in lab.control.message or 'nothing left' in lab.control.message


def test_looking_at_a_step_changes_nothing_in_the_run(lab):
    lab.control.button.click()
    lab.control.wait()
    lab.control.button.click()
    lab.control.wait()
    run = lab.loop.run
    lab.control.chips.value = 0
    assert lab.shown.index == 0 and lab.editor.value == run.steps[0].evaluation.kernel.source and lab.loop.run is run
    lab.speedup.select(1)
    assert lab.shown.index == 1 and lab.control.chips.value == 1


def test_an_edit_waits_for_its_evaluation(lab):
    lab.control.button.click()
    lab.control.wait()
    original = lab.editor.value
    lab.editor.value += '\n# mine\n'
    assert lab.control.button.disabled and not lab.control.edit_button.disabled
    lab.editor.value = original
    assert not lab.control.button.disabled and lab.control.edit_button.disabled
    lab.editor.value += '\n# mine\n'
    lab.control.edit_button.click()
    lab.control.wait()
    assert lab.loop.steps[-1].move == 'edited by hand' and not lab.control.button.disabled


def test_a_broken_edit_is_text_and_marks_its_line(lab):
    lab.editor.value = f'import nki\n\n@nki.jit\ndef softmax(x):\n    return {EVIL}\n'
    lab.control.edit_button.click()
    lab.control.wait()
    assert lab.editor.marks.keys() == {
        '5'} and 'Traceback' not in lab.compile_log.text and '<img' not in lab.compile_log.body.value
    assert (lab.timeline.title, lab.diff.title) == ('No timeline', 'Nothing to compare')
    assert len(lab.loop.steps) == 2                                     # the first kernel came first, to compare with


def test_the_button_is_off_while_a_step_runs(lab):
    seen = []
    lab.control.on('step', lambda _: seen.append((lab.control.busy, lab.control.button.disabled)))
    lab.control.button.click()
    lab.control.wait()
    assert seen == [(True, True)] and not lab.control.busy


def test_picking_starts_afresh_and_the_run_can_be_resumed(lab, store):
    lab.control.button.click()
    lab.control.wait()
    lab.control.button.click()
    lab.control.wait()
    run = lab.loop.run
    lab.picker.pick(task='matmul')
    assert lab.loop is None and 'matmul' in lab.editor.value and lab.speedup.title == 'No step yet'
    again = Lab('matmul', 'small', store=store, seeds=1)
    line = next(text for text, value in again.picker.resume.options if value == run.id)
    assert 'softmax small' in line and 'unfinished' in line
    again.picker.resume.value = run.id
    assert again.loop.run.id == run.id and again.picker.choice[
        'task'] == 'softmax' and again.shown.index == 1 and len(again.timeline.timelines) == 1
    again.control.button.click()
    again.control.wait()
    assert len(store.load_run(run.id).steps) == 3


def test_looking_at_the_page_stores_nothing(lab, store):
    lab.picker.pick(task='swiglu')
    assert store.runs() == []


def test_without_a_key_the_page_offers_the_built_in_agent(lab):
    assert lab.picker.menus['agent'].options == ('rewrite',) and 'ANTHROPIC_API_KEY' in lab.picker.agent.said.value
    with pytest.raises(UsageError, match='rewrite'): lab.picker.pick(agent='react')
    with pytest.raises(UsageError, match=r"'runs\.db' is no store.*Store\('runs\.db'\)"): Lab('softmax', 'small', store='runs.db')


def test_with_a_key_the_model_agent_is_offered(store, monkeypatch):
    pytest.importorskip('anthropic')
    monkeypatch.setenv('ANTHROPIC_API_KEY', 'not-a-real-key')
    assert Lab('softmax', 'small', store=store).picker.menus['agent'].options == (
        'rewrite', 'react', 'beam', 'two_stage', 'guided')


def test_a_task_of_ones_own(store):
    task = task_from(lambda x: x + 1, lambda rng: {'x': rng.normal(size=(128, 256)).astype('float32')}, name='mine')
    lab = Lab(task, store=store, seeds=1)
    assert lab.picker.choice['task'] == 'mine' and lab.control.message == 'Write a kernel and evaluate it.'


def test_every_panel_works_alone():
    loop = AgentLoop('softmax', workload='small', store=False, seeds=1)
    evaluation = loop.step().evaluation
    panels = [
        TimelinePanel(evaluation.profile.timeline),
        UtilisationPanel(evaluation),
        SpeedupPanel(loop.run),
        CostPanel(loop.run),
        CorrectnessDiff(evaluation.verification),
        CompileLog(evaluation),
        StepControl(loop)]
    for panel in panels: assert '<style>' in panel.children[0].value and panel.layout is not None
    editor = SourceEditor()
    editor.show(evaluation)
    assert editor.costs and editor.value == evaluation.kernel.source


def drawn(panel):
    "What a view that is opened now is drawn from: the state that the kernel answers a page with."
    return json.loads(panel.plot.get_state()['drawn'])


def test_the_state_of_a_picture_is_the_picture(lab):
    lab.control.button.click()
    lab.control.wait()
    first, lanes = lab.speedup.plot, lab.timeline.canvas
    lab.control.button.click()
    lab.control.wait()
    assert lab.speedup.plot is first and lab.timeline.canvas is lanes      # one for a panel: nothing is left open
    for panel in (lab.speedup, lab.utilisation, lab.diff):
        assert drawn(panel) == json.loads(panel.figure.to_json())
    (part,) = lanes.get_state()['parts']
    assert part == packed_timeline(lab.timeline.timelines[0]) and part['count'] == len(lab.timeline.timelines[0])
    lab.picker.pick(task='matmul')
    assert {panel.plot.get_state()['drawn'] for panel in (lab.speedup, lab.utilisation, lab.diff)} == {''}
    assert lanes.get_state()['parts'] == []


def test_a_message_that_no_page_sends_changes_nothing(lab):
    lab.control.button.click()
    lab.control.wait()
    run, said = lab.loop.run, lab.control.message
    made_up = [None, 'click', {}, {'type': 'click', 'trace': 99, 'y': 0}, {'type': 'click', 'trace': 0, 'y': 99}, {'type': 'click', 'trace': 0, 'y': EVIL},
               {'type': 'window', 'window': [EVIL, None]}, {'type': 'select', 'line': -1}, {'type': 'select', 'step': 10**9}, {'type': 'line', 'line': EVIL}]
    for widget in (lab.speedup.plot, lab.utilisation.plot, lab.diff.plot, lab.editor, lab.timeline.canvas, lab.tree.canvas):
        for message in made_up: widget._handle_custom_msg(message, [])
    lab.picker.menus['task'].set_state({'value': EVIL})
    assert lab.picker.menus['task'].value == 'softmax' and lab.loop.run is run and lab.shown.index == 0 and lab.control.message == said


def test_a_run_that_is_gone_and_ten_megabytes_of_log_are_said(lab):
    lab.restart('nosuchrun')
    assert "There is no run 'nosuchrun'. There is none at all." in lab.compile_log.text and lab.loop is None
    lab.control.button.click()
    lab.control.wait()
    line = f'{EVIL} ' * 3 + '\n'
    lab.compile_log.show(replace(lab.loop.steps[0].evaluation, log=line * (10_000_000 // len(line))))
    assert len(lab.compile_log.body.value) < 1_000_000 and '<img' not in lab.compile_log.body.value and 'lines left out' in lab.compile_log.text


def test_a_timeline_panel_zooms():
    panel = TimelinePanel(AgentLoop('softmax', workload='small', store=False, seeds=1).step().evaluation.profile.timeline)
    panel.zoom((0, 5))
    assert drawn(panel)['layout']['xaxis']['range'] == [0, 5]


def test_every_picture_names_its_run_and_step(lab):
    for _ in range(2):
        lab.control.button.click()
        lab.control.wait()
    lab.control.chips.value = 0
    run = f'run {lab.loop.run.id}'
    of = lambda panel: next(a['text'] for a in drawn(panel)['layout']['annotations'] if a.get('name') == 'of')
    assert lab.timeline.canvas.words['of'] == f'{run} · step 0'
    assert [of(p) for p in (lab.diff, lab.speedup)] == [f'{run} · step 0', f'{run} · 2 steps']
    assert of(lab.utilisation).startswith(f'{run} · step') and f'{run} · step 0' in lab.about.value


def test_a_reload_does_not_wait_for_the_library(lab):
    lab.control.button.click()
    lab.control.wait()
    assert len({panel.box.children[0] for panel in (lab.speedup, lab.utilisation, lab.diff)}) == 1
    esm = [w.get_state()['_esm'] for w in (library(), lab.speedup.plot, lab.timeline.canvas)]
    assert sum(map(len, esm)) < 40_000                                   # JupyterLab waits four seconds for all states


def test_details_are_built_when_they_are_opened(lab):
    lab.control.button.click()
    lab.control.wait()
    assert lab.details.built == {} and lab.details.layout.display is None
    memory = lab.details.look_at('Memory')
    assert memory.use.timeline is lab.timeline.timelines[0] and memory.canvas.words['of'].endswith('step 0')
    tile = next(t for t in memory.canvas.part['tiles'] if t['line'])
    memory.on_event({'type': 'select', 'line': tile['line']})           # a tile shows its line in the editor
    assert lab.editor.at == tile['line']
    lab.editor._handle_custom_msg({'type': 'line', 'line': tile['line']}, [])
    assert memory.canvas.line == tile['line'] == lab.timeline.canvas.line
    lab.editor.value += '\n<b>'
    lab.control.edit_button.click()
    lab.control.wait()
    assert memory.canvas.part == {} and 'only a correct kernel' in memory.note.value
    for name in ('What if', 'Roofline', 'Comparison'): lab.details.look_at(name)
    assert 'only a correct kernel' in lab.details.built['What if'].note.value
    assert lab.details.built['Comparison'].panel.comparison.second.note
    assert 'first, best' in lab.details.built['Roofline'].figure.data[-1].text[0]
    lab.picker.pick(task='matmul')
    assert lab.details.tabs.value == 'none' and lab.details.layout.display == 'none'


@pytest.mark.parametrize('holds', [None, b''])
def test_an_empty_store_offers_no_run_until_there_is_one(tmp_path, holds):
    path = tmp_path / 'new' / 'lab.sqlite3'
    if holds is not None:
        path.parent.mkdir()
        path.write_bytes(holds)
    lab = Lab('softmax', 'small', store=Store(path), seeds=1)
    assert [value for _, value in lab.picker.resume.options] == [''] and not lab.control.button.disabled
    lab.restart('0123456789ab')                                         # which nobody has made
    assert lab.loop is None and 'cannot be shown' in lab.compile_log.text and '0123456789ab' in lab.compile_log.text
    lab.control.button.click()
    lab.control.wait()
    assert [value for _, value in Lab('softmax', 'small', store=Store(path)).picker.resume.options] == ['', lab.loop.run.id]


def test_a_damaged_store_is_named_and_left_alone(tmp_path):
    path = tmp_path / 'lab.sqlite3'
    path.write_bytes(b'these are my notes\n' * 200)
    with pytest.raises(UsageError, match=r'lab\.sqlite3 is not a store.*Move it away'): Lab('softmax', 'small', store=Store(path))
    assert path.read_bytes() == b'these are my notes\n' * 200


def test_a_run_of_another_chip_takes_its_chip_along(store):
    loop = AgentLoop('softmax', workload='small', chip='trn1', store=store, seeds=1)
    loop.step()
    lab = Lab('softmax', 'small', chip='trn2', store=store, seeds=1)
    lab.picker.resume.value = loop.run.id
    assert lab.picker.choice['chip'] == 'trn1' and lab.timeline.title.endswith('on trn1')
    what_if, roofline, memory = (lab.details.look_at(name) for name in ('What if', 'Roofline', 'Memory'))
    assert what_if.words.startswith(lab.timeline.title) and what_if.controls['chip'].options[0] == ('trn1', '')
    assert 'on trn1' in roofline.figure.layout.title.text and '176 KiB' in memory.title            # trn2 has 208 KiB
    lab.picker.menus['chip'].value = 'trn2'
    assert lab.loop is None and not lab.timeline.timelines
    lab.control.button.click()
    lab.control.wait()
    assert lab.loop.run.chip == 'trn2' and lab.timeline.title.endswith('on trn2')


def test_profiles_of_two_chips_stand_side_by_side_or_are_refused(store):
    from kernel_lab.panels import ComparisonPanel, EngineTimeline, RooflinePanel
    one, two = (AgentLoop('softmax', workload='small', chip=c, store=store, seeds=1) for c in ('trn1', 'trn2'))
    a, b = one.step().evaluation, two.step().evaluation
    lanes = [e.profile.timeline for e in (a, b)]
    assert 'times of two chips: trn1 and trn2' in ComparisonPanel(a, b).head.value
    title = EngineTimeline(*lanes).title
    assert 'on trn1' in title and 'on trn2' in title
    roof = RooflinePanel(dict(zip('ab', lanes)))
    assert roof.figure is None and 'a on trn1, b on trn2' in roof.note.value
    with pytest.raises(UsageError, match='trn2.*trn1'):                  # no run, and so no picture of one, mixes two clocks
        replace(two.run, steps=(*two.steps, replace(one.steps[0], run=two.run.id, index=1)))


def test_a_store_of_another_version_is_named_and_left_alone(tmp_path):
    import sqlite3
    from kernel_lab.evaluate.store.database import META
    path = tmp_path / 'lab.sqlite3'
    Lab('softmax', 'small', store=Store(path), seeds=1).control.step()
    held = sqlite3.connect(path)
    held.execute(f"update {META.name} set value = '999' where key = 'schema'")
    held.commit()
    held.close()
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r'newer lab \(schema 999'): Lab('softmax', 'small', store=Store(path))
    assert path.read_bytes() == before


@pytest.fixture
def own(tmp_path, monkeypatch):
    "The path of a person's own store, which nobody has made yet."
    monkeypatch.setenv('KERNEL_LAB_HOME', str(tmp_path / 'home'))
    monkeypatch.delenv('KERNEL_LAB_STORE', raising=False)
    return tmp_path / 'home' / 'lab.sqlite3'


def drawn_until(lab, holds):
    "Display a page, and wait until something holds."
    lab._repr_mimebundle_()
    late = time.monotonic() + 30
    while not holds() and time.monotonic() < late: time.sleep(0.05)
    lab.close()
    assert holds()


def test_your_own_store_is_opened_behind_the_page(own):
    made = AgentLoop('softmax', workload='small', seeds=1)
    made.step()
    lab = Lab('softmax', 'small', seeds=1)
    shown, offered = lab.picker.resume, lambda: [value for _, value in lab.picker.resume.options]
    assert offered() == [''] and shown.layout.display is None               # its place is kept: nothing jumps
    drawn_until(lab, lambda: offered() == ['', made.run.id])
    assert shown.layout.display is None and lab.picker.menus['task'].trends['softmax'] == [1.0]
    assert lab.store.path == own and lab.store is lab.store


def test_a_page_without_earlier_runs_shows_no_menu_of_them(own):
    lab = Lab('softmax', 'small', seeds=1)
    assert lab.picker.resume.layout.display == 'none' and not own.exists()
    lab.control.button.click()
    lab.control.wait()
    assert own.exists() and lab.store.load_run(lab.loop.run.id).steps


def test_a_store_of_your_own_that_cannot_be_opened_is_said_on_the_page(own):
    own.parent.mkdir()
    own.write_bytes(b'these are my notes\n' * 200)
    lab = Lab('softmax', 'small', seeds=1)
    drawn_until(lab, lambda: 'cannot be read' in lab.compile_log.text)
    assert 'lab.sqlite3 is not a store' in lab.compile_log.text and own.read_bytes() == b'these are my notes\n' * 200
    lab.control.button.click()
    lab.control.wait()
    assert 'lab.sqlite3 is not a store' in lab.compile_log.text + lab.control.message and lab.loop is None


def test_a_page_is_there_before_what_opens_a_database(own):
    code = ("import sys; from kernel_lab.panels import Lab; lab = Lab('softmax', 'small'); "
            "print('sqlalchemy' in sys.modules, 'kernel_lab.evaluate.pipeline' in sys.modules)")
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ['False', 'False']


def test_values_of_an_animation_are_stopped_with_their_tab(lab):
    lab.control.button.click()
    lab.control.wait()
    played = lab.details.look_at('Animation')
    work = played.work
    lab.details.look_at('Memory')
    assert played.work is None and (work.wait(30) or work.is_left)
    assert lab.details.look_at('Animation').work.wait(60) and played.animation.values is not None
    lab.picker.pick(task='matmul')
    assert lab.handout.layout.display == 'none' and played.work is None


def test_what_has_no_room_in_a_row_goes_below():
    from kernel_lab.panels.style import card, row
    assert row(card(), card()).layout.grid_template_columns == 'repeat(auto-fit, minmax(min(100%, 320px), 1fr))'
    assert row(card(), card(), widths=['1fr', '2fr']).layout.grid_template_columns == '1fr 2fr'


def test_an_implausible_kernel_is_called_so_once():
    from kernel_lab.evaluate.records.evaluation import GuardReport
    first = recorded_run('beam-masked_softmax').run.steps[0].evaluation
    found = GuardReport('reads', 'structural', True, 'it reads none of its inputs', 'implausible')
    log = CompileLog(replace(first, status='implausible', profile=None, guards=(found,)))
    assert log.text.splitlines()[0].endswith(' implausible: it reads none of its inputs')


def test_words_in_the_strip_of_numbers_stay_whole():
    strip = CostPanel(recorded_run('model-layer_norm').run).strip.value
    assert '<b class="kl-words">unknown price</b>' in strip and '<b>150 µs</b>' in strip
    assert re.search(r'is busiest, \d+\xa0%', strip)


def test_the_ring_of_a_compared_step_lies_on_no_word():
    from kernel_lab.figures.run_tree import run_tree_svg
    run = recorded_run('beam-masked_softmax').run
    for second in range(7):
        node = re.search(f'<g class="kl-node[^>]*data-step="{second}".*?</g>', run_tree_svg(run, 0, second))[0]
        y, radius = (float(re.search(f'class="kl-second"[^>]*{name}="([^"]+)"', node)[1]) for name in ('cy', 'r'))
        over, under = (float(re.search(f'class="kl-{name}"[^>]*y="([^"]+)"', node)[1]) for name in ('index', 'under'))
        assert over < y - radius - 1 and under - 9 > y + radius                  # baselines; a letter is 9 pixels high


def test_nothing_stays_of_the_run_before_when_one_is_gone(lab):
    lab.control.button.click()
    lab.control.wait()
    lab.restart('nosuchrun')
    assert "There is no run 'nosuchrun'" in lab.compile_log.text and lab.loop is None and lab.shown is None
    assert lab.speedup.title == 'No step yet' and not lab.timeline.timelines and not lab.control.chips.options
    assert lab.handout.layout.display == 'none' and 'step 0' not in lab.about.value


def test_a_run_whose_agent_is_not_here_is_shown_and_edited_and_no_other_agent_takes_its_turn(lab, store):
    "As one of a model where there is no key: the built-in agent would work under the name of the other."
    begun = AgentLoop('softmax', ReactAgent(ScriptedModel([])), 'small', store=store, seeds=1)
    begun.step()
    lab.restart(begun.run.id)
    lab.control.button.click()
    lab.control.wait()
    assert 'no agent' in lab.control.message and 'react' in lab.control.message and len(store.load_run(begun.run.id).steps) == 1
    lab.control.evaluate(lab.editor.value.replace('affine_range', 'static_range'))
    kept = store.load_run(begun.run.id)
    assert (kept.agent, [s.move for s in kept.steps]) == ('react', ['first kernel', EDITED_BY_HAND])
