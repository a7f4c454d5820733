"""Budgets: never over, whatever is asked, in whatever order it ends, from however many threads."""
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest

from kernel_lab.agents.models import prices
from kernel_lab.agents.models.budget import Budget, BudgetOver, most_prompt_tokens
from kernel_lab.agents.models.messages import Request
from kernel_lab.agents.models.prices import PRICES, Usage, picodollars, price
from kernel_lab.agents.models.scripted import ScriptedModel
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.core.errors import SimulatorError, UsageError


@pytest.fixture(autouse=True)
def odd_prices(monkeypatch):
    "Prices of the table, and some whose sums are no floats."
    odd = {'odd': price(0.1, 0.3), 'thirds': price(0.333333, 1.111111), 'free': price(0, 0.000001),
           'long': price(0.1, 0.7, long_from=3_000, long=price(9.9, 33.3)), 'dear read': price(1, 2, read=3)}
    monkeypatch.setattr(prices, 'PRICES', PRICES | odd)
    return list(PRICES) + list(odd) + ['odd+long', 'thirds+claude-haiku-5-5']


def a_request(draw):
    "A request of any size."
    text = draw.choice('aé€') * draw.randrange(0, 4_000)
    return Request('s', ({'role': 'user', 'content': text},), (), draw.choice([1, 900, 1_000, 16_000]), None, draw.randint(1, 4))


def spent_by(draw, reservation):
    "What a server may charge for a reservation: up to all of it, at any of the rates, or nothing."
    if draw.random() < 0.2: return Usage()
    used, worst = Usage(), draw.random() < 0.5
    prompt, output = most_prompt_tokens(reservation.request), reservation.request.max_tokens
    for _ in range(reservation.request.attempts if worst else draw.randint(1, reservation.request.attempts)):
        n = prompt if worst else draw.randrange(prompt + 1)
        parts = [n, 0, 0] if worst and draw.random() < 0.5 else [draw.randrange(n + 1), 0, 0]
        parts[2] = n - parts[0]
        used += Usage(parts[0], output if worst else draw.randrange(output + 1), 0, parts[2])
    return used


def costs(usage, reservation, draw):
    "(the usage, who answered)."
    return usage, draw.choice(reservation.model.split('+'))


def play(seed, names, threads):
    "A random sequence of requests and endings on one budget → the budget, and what was settled, exactly."
    draw = random.Random(seed)
    limit, tokens = draw.choice([None, 10**draw.uniform(-4, 1)]), draw.choice([None, draw.randrange(1, 400_000)])
    budget = Budget(limit, tokens)

    def work(n):
        mine, waiting, settled = random.Random(f'{seed}:{n}'), [], []
        for _ in range(12):
            try: waiting.append(budget.reserve(a_request(mine), mine.choice(names)))
            except BudgetOver: pass
            check(budget)
            while waiting and mine.random() < 0.6:
                one = waiting.pop(mine.randrange(len(waiting)))
                if mine.random() < 0.2: budget.forget(one)
                else:
                    usage, who = costs(spent_by(mine, one), one, mine)
                    budget.settle(one, usage, who)
                    settled.append((usage, who))
                check(budget)
        return settled

    if threads == 1: return budget, work(0)
    with ThreadPoolExecutor(threads) as pool: return budget, [s for part in pool.map(work, range(threads)) for s in part]


def check(budget):
    "Neither what is spent nor that with what is put aside is over."
    if budget.max_dollars is not None: assert budget.spent <= budget.max_dollars and budget.left()[0] >= 0
    if budget.max_tokens is not None: assert budget.tokens <= budget.max_tokens and budget.left()[1] >= 0


@pytest.mark.parametrize('block', range(10))
def test_a_thousand_random_sequences_are_never_over(odd_prices, block):
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        settled = 0
        for seed in range(100*block, 100*block + 100):
            budget, ended = play(seed, odd_prices, threads=4 if seed % 4 == 0 else 1)
            check(budget)
            assert budget.tokens == sum(usage.total for usage, _ in ended)
            one = [picodollars(usage, who) for usage, who in ended]
            assert Fraction(budget.spent) == Fraction(sum(one)/10**12)
            settled += len(ended)
        assert settled > 100
    finally: sys.setswitchinterval(switch)


def test_a_budget_is_used_to_its_end():
    "The bound is not so loose that nothing fits: a reservation of all that is left is granted."
    request = Request('s', ({'role': 'user', 'content': 'x' * 100},), max_tokens=10_000, attempts=1)
    whole = Budget().reserve(request, 'claude-opus-5')
    exact = Budget(max_dollars=whole.dollars, max_tokens=whole.tokens)
    assert exact.reserve(request, 'claude-opus-5').request == request and exact.left() == (0, 0)
    short = Budget(max_dollars=whole.dollars*0.9).reserve(request, 'claude-opus-5').request
    assert 1_000 <= short.max_tokens < 10_000


def test_a_resumed_budget_goes_on():
    budget = Budget(max_dollars=1, spent=0.999, tokens=5)
    with pytest.raises(BudgetOver, match=r'\$0.0010 of \$1'): budget.reserve(Request('s' * 1_000), 'claude-opus-5')
    assert budget.tokens == 5 and Budget(spent=0.1).spent == pytest.approx(0.1, abs=1e-12)


@pytest.mark.parametrize('bad', [dict(max_dollars=-1), dict(max_tokens=float('nan')), dict(spent=float('inf')),
                                 dict(tokens='5'), dict(max_tokens=True), dict(spent=-0.1)])
def test_amounts_that_are_none_are_refused(bad):
    with pytest.raises(UsageError, match='is no amount'): Budget(**bad)


def test_a_reservation_ends_once_and_only_with_its_own_budget():
    one, other = Budget(max_dollars=1), Budget(max_dollars=1)
    made = one.reserve(Request('s'), 'odd')
    with pytest.raises(SimulatorError, match='ends once'): other.forget(made)
    one.forget(made)
    for again in (lambda: one.forget(made), lambda: one.settle(made, Usage(1))):
        with pytest.raises(SimulatorError, match='ends once'): again()
    assert one.spent == 0


def test_what_is_missing_is_said_and_nothing_else():
    request = Request('s' * 1_000, max_tokens=2_000)
    def said(**given):
        with pytest.raises(BudgetOver) as caught: Budget(**given).reserve(request, 'claude-opus-5')
        return caught.value.message
    poor = said(max_dollars=1e-6, max_tokens=10**6)
    assert re.fullmatch(r'The budget is too small: the next request to claude-opus-5 may cost \$0\.0\d{3}, '
                        r'and \$0\.0000010 of \$0\.0000010 is left\.', poor), poor
    aside = said(max_dollars=0.2, spent=0.7643, aside=0.7643)
    assert 'used up' in aside and '$0.0000 of $0.2000 is left, as $0.7643 is put aside' in aside
    both = said(max_dollars=0.01, max_tokens=2_500, spent=0.001, tokens=20)
    assert '$0.0090 of $0.0100 is left; it may take ' in both and '2,480 of 2,500 are left' in both
    least = int(re.search('may take ([0-9,]+)', both)[1].replace(',', ''))
    assert Budget(max_tokens=least).reserve(request, 'claude-opus-5').request.max_tokens == 1_000
    with pytest.raises(BudgetOver): Budget(max_tokens=least - 1).reserve(request, 'claude-opus-5')


@pytest.mark.parametrize('absurd', [dict(max_dollars=1e300), dict(max_tokens=10**400)])
def test_an_absurd_budget_is_refused_before_anything_is_evaluated(absurd):
    for make in (Budget, lambda **limit: ReactAgent(ScriptedModel(['x'], 'claude-opus-5'), **limit)):
        with pytest.raises(UsageError, match='is more than a budget may be: 1,000,000,000'): make(**absurd)
