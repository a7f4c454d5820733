"""Long tests take turns in `make test`: of those in `long_tests.json`, which says how long they took, each run does one
part of several, drawn by the commit that is checked out. A test without an entry is short and always runs; a file
whose tests share something that takes long to make has one entry, and one turn, for all of them.

`pytest` alone runs them all; `make test TURN=all` too. `make durations` writes the list anew."""
import json
import subprocess
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILE = TESTS / "long_tests.json"
LONG_S = 1.0                        # of one test, with what it sets up, in a run of all on two cores
SHARED_S = 5.0                      # of the setups of a file
PARTS = 6
EVERY_RUN = ("project/test_house.py", "project/test_project.py")       # what a commit must never break; not in the list


def key(nodeid):
    "A test as the list names it, relative to the folder of tests."
    return nodeid.removeprefix(f"{TESTS.name}/")


def parts_of(seconds, parts=PARTS):
    "{name: part}: the longest first, each into the part that has least so far."
    found, total = {}, [0.0] * parts
    for name, s in sorted(seconds.items(), key=lambda x: (-x[1], x[0])):
        found[name] = total.index(min(total))
        total[found[name]] += s
    return found


def turn_of(asked, root=TESTS.parent):
    "The part to run: a number as it is, 'commit' by the commit that is checked out, None for all."
    if asked == "all": return None
    if asked != "commit": return int(asked) % PARTS
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
    return int(said.stdout[:8], 16) % PARTS if said.returncode == 0 else 0


def pytest_addoption(parser):
    parser.addoption("--turn", default="all", metavar="PART",
                     help=f"of the long tests run one part of {PARTS} (0, 1, …), or that of the commit (commit)")
    parser.addoption("--durations-file", metavar="FILE", help="write the names of the long tests with their seconds")


def pytest_report_header(config):
    turn = turn_of(config.getoption("turn"))
    if turn is not None: return f"long tests: part {turn} of {PARTS} (make test TURN=all runs them all)"


def leave_out_other_turns(config, items):
    "Deselect the long tests of other parts, but for those that the command line names."
    turn = turn_of(config.getoption("turn"))
    if turn is None: return
    parts, mine, others = parts_of(json.loads(FILE.read_text())), [], []
    asked_for = {a for a in config.args if "::" in a}
    for item in items:
        name = key(item.nodeid)
        of_file = parts.get(name.partition("::")[0], turn)
        is_mine = parts.get(name, of_file) == turn or item.nodeid in asked_for
        (mine if is_mine else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = mine


class Durations:
    "Adds up what each test took, and the setups of each file, in the process that hears of all."
    def __init__(self, file): self.file, self.seconds, self.setups = Path(file), defaultdict(float), defaultdict(float)

    def pytest_runtest_logreport(self, report):
        name = key(report.nodeid)
        self.seconds[name] += report.duration
        if report.when == "setup": self.setups[name.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self):
        found = defaultdict(float)
        for name, s in self.seconds.items():
            file = name.partition("::")[0]
            if self.setups[file] >= SHARED_S: found[file] += s
            elif s >= LONG_S: found[name] = s
        found = {n: round(s, 1) for n, s in sorted(found.items()) if not n.startswith(EVERY_RUN)}
        self.file.write_text(json.dumps(found, indent=0, ensure_ascii=True) + "\n")


def pytest_configure(config):
    file = config.getoption("durations_file")
    if file and not hasattr(config, "workerinput"): config.pluginmanager.register(Durations(file))
