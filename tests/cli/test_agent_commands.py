"`bench`, `ablate`, `optimize` and `runs` as a person meets them who has a model of their own: what is refused, and what is said at the end."
import re
import shlex
import signal
from types import SimpleNamespace

import pytest
from loopback import Say, Server

from kernel_lab.cli.agents import bench, optimize
from kernel_lab.cli.app import run
from kernel_lab.tasks.suite.registry import get_task

PROSE = Say("Nothing to gain.")


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    "`here('runs', …)` → exit code and what was printed, with a store of its own."
    env = dict(KERNEL_LAB_HOME=str(tmp_path / "home"), COLUMNS="200", TERM="dumb", NO_COLOR="1", OPENAI_API_KEY="sk-test-0123456789",
               NO_PROXY="127.0.0.1")
    for name, value in env.items(): monkeypatch.setenv(name, value)
    monkeypatch.setenv("KERNEL_LAB_PRICES", "")         # --prices changes it: it is put back
    def call(*words):
        capsys.readouterr()
        code = run(list(map(str, words)))
        return SimpleNamespace(code=code, **dict(zip(("out", "err"), capsys.readouterr())))
    return call


@pytest.fixture
def server():
    with Server([PROSE]) as made: yield made


@pytest.fixture
def model(server): return "--model", "openai:x", "--base-url", f"{server.url}/v1"


def refused(done, *said):
    text = done.out + done.err
    assert done.code == 2 and "Traceback" not in text, text
    for word in said: assert word in text, f"{word!r} is not in: {text}"


# --- prices ---

@pytest.fixture
def prices(tmp_path):
    path = tmp_path / "my prices.json"
    path.write_text('{"openai:x": {"input": 1, "output": 5}}')
    return path


def go_on(done):
    "The words of the command that was said to go on."
    return shlex.split(re.search(r"[Gg]o on with: kernel-lab (.*)", done.err)[1])


def test_the_command_to_go_on_with_a_suite_names_the_prices(here, model, prices, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(bench, "with_progress", lambda runs, *a: (next(runs), signal.raise_signal(signal.SIGINT)))
        cut = here("bench", "--agent", "react", "--alone", "--task", "relu", "-w", "small", *model, "--turns", "1", "--prices", prices,
                   "--max-dollars", "1")
    words = go_on(cut)
    assert cut.code == 130 and str(prices) in words, cut.err
    monkeypatch.setenv("KERNEL_LAB_PRICES", "")
    done = here(*words)
    assert done.code == 0 and "1 run: 1 failed" in done.out, done.err
    refused(here(*words, "--steps", "3"), "--prices")


def test_the_command_to_go_on_with_a_run_names_the_prices(here, model, prices, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(optimize, "step_until_done", lambda loop, source=None: (loop.step(), KeyboardInterrupt())[1])
        cut = here("optimize", "relu", "-w", "small", "--agent", "react", *model, "--turns", "1", "--prices", prices, "--max-dollars", "1")
    words = go_on(cut)
    assert cut.code == 130 and str(prices) in words, cut.err
    monkeypatch.setenv("KERNEL_LAB_PRICES", "")
    assert here(*words).code == 0


def test_dollars_without_a_price_are_refused_before_a_suite_is_announced(here, model, server):
    done = here("bench", "--agent", "react", "--task", "relu", "-w", "small", *model, "--max-dollars", "1")
    refused(done, "price of openai:x is unknown")
    assert "suite" not in done.out and not server.asked
    assert "No runs yet" in here("runs").out


# --- settings that cannot be ---

@pytest.mark.parametrize("words, said", [
    ("--agent react --alone --set model=5", "model=5 is no setting of react"), ("--set moves=5", "moves=5: rewrite takes a list"),
    ("--set families=5", "families=5: rewrite takes a list"), ("--set seconds=-1", "seconds=-1: rewrite takes a number of at least 0."),
    ("--agent react --set turns=-3", "turns=-3: react takes a number of at least 1."),
    ("--agent react --set max_tokens=-1", "max_tokens=-1: react takes a number of at least 0."),
    ("--agent react --set turns=1e400", "turns='1e400'"), ("--agent react --set max_dollars=NaN", "max_dollars='NaN'"),
    ("--agent react --set turns=1 --set turns=2", "--set turns is given twice"),
    ("--agent react --turns 5 --set turns=1", "--turns and --set turns say the same"),
    ("--agent react --task-dollars 5 --set max_dollars=1", "--task-dollars and --set max_dollars say the same"),
    ("--base-url http://x/v1 --task-dollars 1", "rewrite asks no model: --base-url, --task-dollars cannot")])
def test_a_suite_refuses_settings_before_a_run_is_begun(here, model, monkeypatch, words, said):
    monkeypatch.setenv("KERNEL_LAB_MODEL", "openai:x")
    asks = () if "react" not in words else model if "--set model" not in words else model[2:]
    refused(here("bench", "--task", "relu", "-w", "small", *words.split(), *asks), said)
    assert "No runs yet" in here("runs").out


def test_an_option_is_not_overridden_by_a_setting(here, model):
    refused(here("bench", "--task", "relu", "--agent", "react", *model, "--set", "model=null"), "--model and --set model say the same")


def test_what_is_not_there_is_said_in_this_order(here):
    refused(here("optimize", "softmax", "-w", "nope"), "softmax has no workload 'nope'. There are: ")
    refused(here("ablate", "--agent", "rewrite", "--switch", "nope", "--task", "relu"), "rewrite has no switch 'nope'. There are: search")
    refused(here("optimize", "softmax", "--turns", "3"), "rewrite asks no model: --turns cannot be kept. Add --agent react.")


# --- runs ---

def test_the_list_of_runs_takes_a_limit_that_a_store_can(here):
    refused(here("runs", "--limit", "9" * 20), "1000000")


def test_the_columns_of_runs_stand_under_each_other(here):
    here("bench", "--task", "relu", "-w", "small", "--steps", "1")
    here("optimize", "relu", "-w", "small", "--steps", "1")
    lines = here("runs").out.splitlines()
    assert len(lines) == 3 and len({line.index(word) for line, word in zip(lines, ("task", "relu", "relu"))}) == 1, lines


# --- why a run of a model ended ---

RELU = get_task("relu")
FIRST = RELU.first(RELU.workload("small")).source


def ended(here, model, *more, says=PROSE, server):
    server.script[:] = [says]
    return here("optimize", "relu", "-w", "small", "--agent", "react", *model, "--turns", "2", *more)


@pytest.mark.parametrize("says, notes", [
    (PROSE, ["The model stopped without a new correct kernel."]),
    (Say("I will not.", stop="refusal"), ["The model refused and stopped without a new correct kernel."]),
    (Say(f"One:\n```python\n{FIRST}```\nTwo:\n```python\n{FIRST}```"),
     [r"Not accepted: step 0 .*", "The reply holds 2 kernels; the last one was read, the others were not.", "The model stopped without .*"]),
    (Say(calls=(("submit", dict(source="# mine\n" + FIRST, move="m", why="w", expected="e")),)),
     ["Not accepted: step 0 is the same Program.*", "All 2 turns are used up."])])
def test_the_terminal_says_why_a_model_ended(here, model, server, says, notes):
    done = ended(here, model, says=says, server=server)
    found = re.findall(r"^note: (.*)$", done.out, re.M)
    assert done.code == 0 and len(found) == len(notes), done.out
    for note, line in zip(notes, found): assert re.fullmatch(note, line), done.out


def test_a_finished_run_that_is_resumed_says_so(here, model, server):
    first = ended(here, model, server=server)
    asked = len(server.asked)
    again = here("optimize", "--resume", "latest")
    assert again.code == 0 and "is finished" in again.out and "is finished" not in first.out and len(server.asked) == asked, again.out


def test_a_run_without_a_budget_for_one_request_did_not_go_well(here, model, server):
    done = ended(here, model, "--max-tokens", "5", server=server)
    assert done.code == 3 and "The budget is too small" in done.out and not server.asked, done.out
