"`kernel-lab ablate` that is killed in the middle, and one whose store may not be written."
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine, event
from loopback import Say, Server

from kernel_lab.cli.app import run
from kernel_lab.evaluate.records.journal import spent_in
from kernel_lab.evaluate.store.store import Store
from kernel_lab.tasks.suite.registry import get_task

START = "from kernel_lab.cli.entry import start; start()"
MORE = """    more = nl.ndarray((1, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=more, value=0.0)
"""


class Conversation(Server):
    "A model that first tries a kernel and then hands it in, whatever was asked before; `hold`: the request that waits."
    hold = None

    def note(self, body, headers, path):
        super().note(body, headers, path)
        if len(self.asked) == self.hold: self.closing.wait(60)
        source = get_task("softmax").first_kernel.source.replace("    for i in", f"{MORE}    for i in", 1)
        if any(m["role"] == "assistant" for m in body["messages"]):
            return Say(calls=(("submit", dict(source=source, move="m", why="w", expected="e")),))
        names = {t["function"]["name"] for t in body["tools"]}
        return Say(calls=(("profile" if "profile" in names else "verify", {"source": source}),))


@pytest.fixture
def model(tmp_path, monkeypatch):
    "A running server, with the environment that the lab needs to ask it at a known price."
    (tmp_path / "prices.json").write_text('{"openai:m": {"input": 1, "output": 5}}')
    env = dict(KERNEL_LAB_HOME=str(tmp_path / "home"), KERNEL_LAB_PRICES=str(tmp_path / "prices.json"), COLUMNS="200", TERM="dumb",
               OPENAI_API_KEY="sk-test-0123456789", NO_PROXY="127.0.0.1", NO_COLOR="1")
    for name, value in env.items(): monkeypatch.setenv(name, value)
    with Conversation([Say("x")]) as server: yield server


@pytest.fixture
def here(capsys):
    def call(*words):
        capsys.readouterr()
        code = run(list(map(str, words)))
        return SimpleNamespace(code=code, **dict(zip(("out", "err"), capsys.readouterr())))
    return call


def words(server, store):
    return ("ablate", "--agent", "react", "--switch", "profiling", "--task", "softmax", "-w", "small", "--steps", "3",
            "--model", "openai:m", "--base-url", server.url + "/v1", "--store", str(store))


def table(out): return out[out.index("\n\n"):]


@pytest.mark.slow
@pytest.mark.parametrize("moment", [2, 3])
def test_a_killed_ablation_comes_to_the_same_table_and_no_paid_reply_is_lost(model, here, tmp_path, moment):
    whole = here(*words(model, tmp_path / "whole.db"))
    assert whole.code == 0, whole.err
    needed = len(model.asked)
    assert needed == 4                                      # two rows that ask, of two requests each
    model.asked.clear()
    model.hold = moment
    child = subprocess.Popen([sys.executable, "-c", START, *words(model, tmp_path / "cut.db")], stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    until = time.monotonic() + 200
    while len(model.asked) < moment and time.monotonic() < until: time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    said, _ = child.communicate(timeout=60)
    model.hold, suite = None, re.search(r"suite (\w+): 3 runs", said)[1]
    resumed = here("bench", "--resume", suite, "--store", tmp_path / "cut.db")
    assert resumed.code == 0 and len(model.asked) == needed + 1              # the one in flight is asked again, and no other
    assert re.search(r"cut off cost at most \$0\.\d+ more", resumed.out)    # and what it may have cost is said
    assert table(re.sub(r" *requests that were cut off.*\n", "", resumed.out)) == table(whole.out)
    store = Store(tmp_path / "cut.db")
    spent = [spent_in(store.journal(r)) for r in store.run_ids(suite, 9)]
    store.close()
    assert sum(s.requests for s in spent) == needed and sum(s.open_requests for s in spent) == 1


@pytest.fixture
def read_only():
    "Every SQLite database that is opened from now on refuses to be written, whoever runs the tests."
    def opened(connection, record): connection.execute("pragma query_only = 1")
    event.listen(Engine, "connect", opened)
    yield
    event.remove(Engine, "connect", opened)


@pytest.mark.parametrize("command", ["ablate", "optimize"])
def test_a_store_that_may_not_be_written_is_a_sentence(model, here, tmp_path, request, command):
    path = tmp_path / "runs.db"
    Store(path).close()
    request.getfixturevalue("read_only")
    done = here(*words(model, path)) if command == "ablate" else here("optimize", "softmax", "-w", "small", "--steps", 1, "--store", path)
    text = done.out + done.err
    assert done.code == 2 and "may not be written" in text and "KERNEL_LAB_HOME" in text and "Traceback" not in text, text
    assert not model.asked                                  # nothing is paid for that cannot be kept


def test_a_resumed_run_keeps_its_agent(here, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_LAB_HOME", str(tmp_path))
    for agent in ("beam", "rewrite"):
        done = here("optimize", "--resume", "latest", "--agent", agent)
        assert done.code == 2 and "keeps its agent" in done.err and "Leave --agent out" in done.err
