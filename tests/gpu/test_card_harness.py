"""The harness of the card's attacks, without a card: all texts are examined at once, none is timed before it is told to be, and one
that dies says so."""
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / 'card'))
import attacks_on_card
import card_texts
from attacks_on_card import ATTACKS, Fork
from kernel_lab.agents.tune.card_bars import ATTACKS as NAMES


@pytest.fixture
def forks(tmp_path, monkeypatch):
    "Forks of three texts, of which one raises and one ends its process; `tmp_path` gets a file for each that is timed."
    def examined(source, task, how):
        if source == 'raises': raise ValueError('a text that fails')
        if source == 'ends': attacks_on_card.os._exit(3)
        return True, source, ()
    def timed(call):
        (tmp_path / call).touch()
        return 5.0
    monkeypatch.setattr(attacks_on_card, 'examined', examined)
    monkeypatch.setattr(attacks_on_card, 'timed', timed)
    return [Fork({'name': s, 'source': s, 'task': 'product', 'how': 'events'}) for s in ('good', 'raises', 'ends', 'other')]


def test_nothing_is_timed_before_it_is_told(forks, tmp_path):
    for f in forks: f.wait()
    time.sleep(0.2)
    assert not [*tmp_path.iterdir()]
    good, raises, ends, other = (f.answer() for f in forks)
    assert good == {'name': 'good', 'passed': True, 'us': 5.0} and other['us'] == 5.0
    assert raises == {'name': 'raises', 'passed': False, 'died': 'ValueError: a text that fails'}
    assert ends == {'name': 'ends', 'passed': False, 'died': 'no word'}
    assert {p.name for p in tmp_path.iterdir()} == {'good', 'other'}


def test_every_attack_of_the_table_is_tried_and_every_text_is_named_once():
    assert {a.name for a in ATTACKS} == set(NAMES)
    names = card_texts.texts()
    assert len(names) == 3 + len(ATTACKS) + 2 + len(card_texts.PARITY) + len(card_texts.BAD) + len(card_texts.WORK) + len(card_texts.KERNELS) + 2
