"What a person sees while an agent is at work: the stages of an evaluation among the events, and one line for page and terminal."
from types import SimpleNamespace

from kernel_lab.agents.engine.loop import AgentLoop
from kernel_lab.agents.engine.session import Event, LiveLine
from kernel_lab.agents.models.messages import Reply
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.cli.agents.optimize import live_on
from kernel_lab.tasks.suite.registry import get_task

SOURCE = get_task('softmax').first('small').source.replace('affine_range', 'static_range')


def test_the_stages_of_an_evaluation_are_events_between_the_call_and_its_answer():
    asks = Reply(({'type': 'thinking', 'thinking': 'Where?'}, {'type': 'text', 'text': 'Let me see.'},
                  {'type': 'tool_use', 'id': 'c', 'name': 'profile', 'input': {'source': SOURCE}}), 'tool_use')
    events, stages = [], []
    agent = ReactAgent(ScriptedModel([asks, 'Nothing more.', 'Nothing more.']))
    loop = AgentLoop('softmax', agent, 'small', store=False, seeds=1, on_event=events.append,
                     on_stage=lambda name, seconds: stages.append((name, seconds)))
    for _ in loop: pass
    kinds = [e.kind for e in events]
    assert {'request', 'thinking', 'text', 'reply', 'stage', 'tool', 'step', 'note'} == set(kinds)
    turn = kinds[kinds.index('request'):kinds.index('tool') + 1]
    assert turn[:4] == ['request', 'thinking', 'text', 'reply'] and turn[-2:] == ['step', 'tool'] and 'stage' in turn[4:-2]
    assert [e.data for e in events if e.kind == 'stage'] == stages          # who gave a function of stages hears them too
    assert ('compile', None) in stages and any(name == 'verify' and seconds for name, seconds in stages)


def test_one_line_for_page_and_terminal():
    live, spent = LiveLine(), lambda: '2 requests, $0.01'
    said = [live.hear(Event(kind, text, data), spent) for kind, text, data in (
        ('request', 'asking m', None), ('text', 'Use ', None), ('stage', 'compile', None), ('text', 'the\n idle', None),
        ('reply', 'Use the idle', None), ('text', 'Then', None), ('tool', 'correct:\n 3 us', dict(name='profile', ok=True)), ('step', 's', None))]
    assert said == ['asking m', 'Use', '', 'Use the idle', '2 requests, $0.01', 'Then', 'profile: correct: 3 us', '']


def test_a_terminal_shows_it_and_what_a_model_says_is_no_markup():
    shown, bar = [], SimpleNamespace(update=lambda bar, description: shown.append(description))
    hear = live_on(bar, 1, SimpleNamespace(spent='nothing'))
    for kind, text in (('request', 'asking m'), ('text', 'x[/red]' * 40), ('step', 'a step')): hear(Event(kind, text))
    assert shown[0] == 'asking m' and '\\[/red]' in shown[1] and len(shown) == 2
