"""What a figure's file costs: seconds of the processor for each figure of a set in each format, browser included.

    python benchmarks/figures.py [FIGURES.toml] [--times 3] [--only NAME] [--json FILE]

A row is a figure. *data* reads what it is drawn from and traces a kernel again, *figure* makes the plotly figure;
then each format as if it were the only one, with the figure made and drawn by plotly.js for it anew; *all four* is
what `kernel-lab figures build` needs for the files of this figure. The browser is started, and one figure drawn,
before: that is the first line. Each number is the median of some repetitions: seconds of this process and of the
browser's, which the load of other programs hardly changes; `!` marks a format above one second. The last line has the
wall time and the load."""
import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from kernel_lab.cli.figures.build import FIGURE_FORMATS, entry_bytes, read_set
from kernel_lab.cli.figures.material import material
from kernel_lab.cli.figures.recipes import figure_of
from kernel_lab.core.errors import LabError
from kernel_lab.figures.files import drawn
from kernel_lab.figures.files.browser import drawing_browser

WANTED_S = 1.0
TICK = os.sysconf("SC_CLK_TCK")


def of_processes() -> dict[int, tuple[int, float]]:
    "{process: (its parent, seconds of the processor with those of children that it has waited for)} of all processes."
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit(): continue
        try: fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError: continue
        found[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15])) / TICK
    return found


def spent() -> float:
    "Seconds of the processor that this process and all below it have used."
    known, mine = of_processes(), {os.getpid()}
    while more := {p for p, (parent, _) in known.items() if parent in mine} - mine: mine |= more
    return sum(known[p][1] for p in mine) - known[os.getpid()][1] + time.process_time()


def cost(work: Callable[[], object], times: int) -> float:
    "The median seconds of the processor of some repetitions; what was kept of a drawing is forgotten before each."
    def once():
        drawn._svg.cache_clear()
        before = spent()
        work()
        return spent() - before
    return median(once() for _ in range(times))


def row(entry, home: Path, times: int) -> dict[str, float]:
    "{what: seconds} of a figure."
    source = lambda: material(entry.source, home, None)
    m = source()
    figure = lambda: figure_of(entry.draw, m, entry.theme, entry.parameters)
    began = spent()
    figure()                                    # a kernel traced again is kept in the material: it belongs to the data
    first, drawing = spent() - began, cost(figure, times)
    found = {"data": cost(source, times) + max(0.0, first - drawing), "figure": drawing}
    for kind in FIGURE_FORMATS: found[kind] = cost(lambda: entry_bytes(entry, m, (kind,)), times)
    return found | {"all four": cost(lambda: entry_bytes(entry, m, FIGURE_FORMATS), times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", default=str(Path(__file__).parents[1] / "paper" / "FIGURES.toml"))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    given, began, before = read_set(args.path), time.time(), spent()
    entries = [(n, e) for n, e in given.entries if not isinstance(e, LabError) and not e.is_table]
    first = entries[0][1]
    drawing_browser()
    started = spent() - before
    entry_bytes(first, material(first.source, given.home, None), FIGURE_FORMATS)
    print(f"to start the browser {started:.2f} s, the first figure in four formats {spent() - before - started:.2f} s")
    names = ["data", "figure", *FIGURE_FORMATS, "all four"]
    print(f"{'s of the processor':<22}" + "".join(f"{n:>10}" for n in names))
    table = {}
    for name, entry in entries:
        if args.only and name not in args.only: continue
        table[name] = row(entry, given.home, args.times)
        shown = (f"{v:.2f}{'!' if k in FIGURE_FORMATS and v > WANTED_S else ' '}" for k, v in table[name].items())
        print(f"{name:<22}" + "".join(f"{s:>10}" for s in shown), flush=True)
    late = sum(v > WANTED_S for found in table.values() for k, v in found.items() if k in FIGURE_FORMATS)
    print(f"{late} of {len(table) * len(FIGURE_FORMATS)} above {WANTED_S:g} s; "
          f"{time.time() - began:.0f} s of wall time, load {os.getloadavg()[0]:.1f}")
    if args.json: Path(args.json).write_text(json.dumps(table, indent=1), encoding="utf-8")


if __name__ == "__main__": main()
