"""Long tests take turns, and every one has its turn."""
import json
import subprocess
from types import SimpleNamespace

import pytest
import turns


class Config:
    "A configuration of pytest as far as turns ask it."
    def __init__(self, turn, *args): self.turn, self.args, self.left_out, self.hook = turn, args, [], self
    def getoption(self, name): return self.turn
    def pytest_deselected(self, items): self.left_out += items


def named(*names): return [SimpleNamespace(nodeid=n) for n in names]


def test_every_long_test_has_one_turn_and_turns_take_alike():
    seconds = json.loads(turns.FILE.read_text())
    parts = turns.parts_of(seconds)
    totals = [sum(s for n, s in seconds.items() if parts[n] == k) for k in range(turns.PARTS)]
    assert len(seconds) > 500 and parts.keys() == seconds.keys() and max(totals) <= min(totals) + 2
    assert all(s >= turns.LONG_S for s in seconds.values())


def test_files_of_the_list_exist():
    files = {n.partition("::")[0] for n in json.loads(turns.FILE.read_text())}
    assert not [f for f in files if not (turns.TESTS / f).exists()]


def test_a_run_leaves_out_the_long_tests_of_other_turns_only():
    long = [f"tests/{n}" for n in json.loads(turns.FILE.read_text())]
    ran = []
    for turn in range(turns.PARTS):
        config, items = Config(str(turn)), named(*long, "tests/core/test_new.py::test_short")
        turns.leave_out_other_turns(config, items)
        assert items[-1].nodeid.endswith("test_short") and len(items) + len(config.left_out) == len(long) + 1
        ran += [i.nodeid for i in items[:-1]]
    assert sorted(ran) == sorted(long)


def test_what_the_command_line_names_is_never_left_out():
    name = f"tests/{next(iter(json.loads(turns.FILE.read_text())))}"
    for turn in range(turns.PARTS):
        config, items = Config(str(turn), "tests/agents", name), named(name)
        turns.leave_out_other_turns(config, items)
        assert [i.nodeid for i in items] == [name] and not config.left_out


def test_what_a_commit_must_not_break_runs_every_time():
    assert not [n for n in json.loads(turns.FILE.read_text()) if n.startswith(turns.EVERY_RUN)]
    assert all((turns.TESTS / n).exists() for n in turns.EVERY_RUN)


def test_all_is_all():
    config, items = Config("all"), named("tests/panels/test_page.py::test_a_reload_and_a_second_tab_show_the_same")
    turns.leave_out_other_turns(config, items)
    assert len(items) == 1 and not config.left_out and turns.FILE.exists()


def test_the_turn_is_that_of_the_commit(tmp_path, monkeypatch):
    for who in ("AUTHOR", "COMMITTER"): monkeypatch.setenv(f"GIT_{who}_DATE", "2026-01-01T00:00:00Z")
    assert turns.turn_of("commit", tmp_path) == 0                       # no repository: the first part
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    found = set()
    for n in range(60):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", str(n)], check=True)
        found.add(turns.turn_of("commit", tmp_path))
    assert found == set(range(turns.PARTS))
    assert turns.turn_of("7") == 7 % turns.PARTS and turns.turn_of("all") is None
    with pytest.raises(ValueError): turns.turn_of("a turn")


def test_a_file_whose_tests_share_a_setup_has_one_turn(monkeypatch, tmp_path):
    monkeypatch.setattr(turns, "FILE", tmp_path / "long.json")
    turns.FILE.write_text(json.dumps({"a/test_b.py": 9.0, "c/test_d.py::long": 8.0}))
    ran = []
    for turn in range(turns.PARTS):
        config, items = Config(str(turn)), named("tests/a/test_b.py::x", "tests/a/test_b.py::y", "tests/c/test_d.py::long",
                                                 "tests/c/test_d.py::short")
        turns.leave_out_other_turns(config, items)
        ran.append([i.nodeid.rpartition("::")[2] for i in items])
    assert sorted(ran) == [["long", "short"], *[["short"]] * (turns.PARTS - 2), ["x", "y", "short"]]


def test_what_took_long_is_written(tmp_path):
    kept = turns.Durations(tmp_path / "long.json")
    took = (("tests/a.py::b", "setup", 0.6), ("tests/a.py::b", "call", 0.7), ("tests/a.py::c", "call", 0.2),
            ("tests/project/test_house.py::d", "call", 9.0), ("tests/e.py::f", "setup", 6.0), ("tests/e.py::g", "call", 0.1))
    for name, when, seconds in took:
        kept.pytest_runtest_logreport(SimpleNamespace(nodeid=name, when=when, duration=seconds))
    kept.pytest_sessionfinish()
    assert json.loads((tmp_path / "long.json").read_text()) == {"a.py::b": 1.3, "e.py": 6.1}
