"""Tables of prices that cannot be meant: a sentence names the file, the model, the value and the limit, before anything is evaluated."""
import pytest
from loopback import Say, Server

from kernel_lab.agents.models.openai import OpenAIModel
from kernel_lab.agents.models.prices import PRICES_VARIABLE, Usage, picodollars, price_file
from kernel_lab.agents.systems.react import ReactAgent
from kernel_lab.cli.app import run
from kernel_lab.core.errors import UsageError


def table(*prices):
    "A file with a row for each price, all of one model."
    return '{' + ', '.join(f'"m": {{"input": {x}, "output": 1}}' for x in prices) + '}'


WRONG = {'too deep': ('[' * 200_000, 'nested too deep'),
         '400 digits': (table('7' * 400), "input of 'm' is 7777777777", '1,000,000'),
         'too dear': (table('1e305'), "input of 'm' is 1e+305", 'from 0.000001 to 1,000,000'),
         'rounds to nothing': (table('4e-7'), "input of 'm' is 4e-07", 'from 0.000001 to 1,000,000'),
         'two rows': (table(1, 2), "'m' is there twice"),
         'two rates': ('{"m": {"input": 1, "input": 2, "output": 1}}', "'input' is there twice")}


@pytest.mark.parametrize('case', WRONG)
def test_a_price_that_cannot_be_meant_is_refused(tmp_path, case):
    text, *says = WRONG[case]
    (tmp_path / 'prices.json').write_text(text)
    with pytest.raises(UsageError) as caught: price_file(tmp_path / 'prices.json')
    assert all(part in str(caught.value) for part in ('prices.json is no table of prices', *says))
    assert len(str(caught.value)) < 400


def test_the_limits_themselves_are_prices(tmp_path, monkeypatch):
    (tmp_path / 'prices.json').write_text('{"m": {"input": 0.000001, "output": 1000000, "cache_read": 0}}')
    monkeypatch.setenv(PRICES_VARIABLE, str(tmp_path / 'prices.json'))
    assert picodollars(Usage(1, 1, 1), 'm') == 1 + 10**12


@pytest.mark.parametrize('words', [('optimize', 'softmax', '-w', 'small'), ('bench', '--task', 'softmax', '-w', 'small')])
def test_a_missing_table_is_said_before_anything_is_evaluated(tmp_path, monkeypatch, capsys, words):
    for name, value in {PRICES_VARIABLE: '/nonexistent', 'NO_PROXY': '127.0.0.1', 'COLUMNS': '200'}.items(): monkeypatch.setenv(name, value)
    with Server([Say('x')]) as server:
        code = run([*words, '--agent', 'react', '--model', 'openai:m', '--base-url', f'{server.url}/v1', '--store', str(tmp_path / 's.db')])
    said = capsys.readouterr()
    assert code == 2 and '/nonexistent is no table of prices' in said.err and 'step' not in said.out and not server.asked
    with pytest.raises(UsageError, match='/nonexistent'): ReactAgent(OpenAIModel('m', server.url))
