"""What a student may hand in for each puzzle, in bad faith or by accident: an answer in the end, a sentence and no
traceback, in bounded time, and never a passed check. A tenth of the pairs in every run, all of them in the long one."""
import base64
import re
import time

import numpy as np
import pytest

from kernel_lab.puzzles.kernel_text import kernel_of, own_text
from kernel_lab.puzzles.ladder import PUZZLES, get_puzzle
from kernel_lab.puzzles.progress import read_progress
from kernel_lab.puzzles.puzzle import SECONDS, Puzzle

IMPORTS = "import numpy as np\nimport nki, nki.isa as nisa, nki.language as nl\n"
# wall time of one answer: what the Python of a kernel may take, then what tells of it, twice, for a busy machine
MOST_SECONDS = 2 * (SECONDS + 2.0)


# --- texts ---

def head(p: Puzzle) -> str:
    "The line with `def` of a puzzle's solution."
    return re.search(r"^def .*:$", own_text(kernel_of(p.answer)), re.M)[0]


def with_line(p: Puzzle, line: str, last: bool = True) -> str:
    "The solution with a statement more: before its last `return`, or as its first one."
    text = own_text(kernel_of(p.answer))
    if not last: return text.replace(head(p), f"{head(p)}\n    {line}", 1)
    before, after = text.rsplit("    return out", 1)
    return f"{before}    {line}\n    return out{after}"


def alone(p: Puzzle, body: str) -> str:
    "A kernel with the puzzle's parameters and another body."
    name = re.sub(r"^def \w+", "def kernel", head(p))
    return f"{IMPORTS}{name}\n" + "".join(f"    {line}\n" for line in body.splitlines())


def expected(p: Puzzle, seed: int = 0) -> np.ndarray:
    "What the reference gives for the inputs that the puzzle shows."
    return np.asarray(p.task.expected(p.task.draw(seed=seed))[0], np.float32)


def written(p: Puzzle, constant: str) -> str:
    "A kernel that writes an array, which the text makes, through SBUF."
    rows, cols = expected(p).shape
    return alone(p, f"""found = {constant}
out = nl.ndarray({(rows, cols)}, dtype=nl.{p.dtype}, buffer=nl.shared_hbm)
given = nl.shared_constant(found)
for i in range(0, {rows}, 128):
    n = min(128, {rows} - i)
    tile = nl.ndarray((n, {cols}), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=given[i:i + n, :])
    nisa.dma_copy(dst=out[i:i + n, :], src=tile)
return out""")


def by_heart(p: Puzzle) -> str:
    "The right numbers for one draw of inputs, in the text of the kernel."
    y = expected(p)
    text = base64.b64encode(y.tobytes()).decode()
    return "import base64\n" + written(p, f"np.frombuffer(base64.b64decode({text!r}), np.float32).reshape({y.shape})")


def zeros(p: Puzzle) -> str:
    "Fast and wrong."
    rows, cols = expected(p).shape
    return alone(p, f"""out = nl.ndarray({(rows, cols)}, dtype=nl.{p.dtype}, buffer=nl.shared_hbm)
tile = nl.ndarray(({min(rows, 128)}, {cols}), dtype=nl.{p.dtype}, buffer=nl.sbuf)
nisa.memset(dst=tile, value=0.0)
for i in range(0, {rows}, 128):
    n = min(128, {rows} - i)
    nisa.dma_copy(dst=out[i:i + n, :], src=tile[0:n, :])
return out""")


SLOW = "for _turn in nl.sequential_range(2000): nisa.memset(dst=_idle, value=0.0)"
IDLE = "_idle = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)"
EARLIER = "for _turn in nl.sequential_range(2000): nisa.memset((128, 512), 0.0, nl.float32)"


def slow(p: Puzzle) -> str:
    "The solution, and work that nobody asked for."
    text = own_text(kernel_of(p.answer))
    if "neuronxcc" in text: return with_line(p, EARLIER)
    return with_line(p, f"{IDLE}\n    {SLOW}")


NOT_IMPORTED = "from kernel_lab.puzzles import PUZZLES\n"

ANSWERS = {
    "endless": lambda p: with_line(p, "while True: pass"),
    "endless before anything": lambda p: with_line(p, "while True: pass", last=False),
    "a gigabyte": lambda p: with_line(p, "for _k in range(1024): print('x' * 2**20)\n    missing"),
    "the solution, imported": lambda p: NOT_IMPORTED + own_text(kernel_of(p.answer)),
    "the solution, called": lambda p: alone(p, f"from kernel_lab.puzzles import PUZZLES\nreturn PUZZLES[{p.name!r}].answer"),
    "the solution, run": lambda p: alone(p, f"g = {{}}\nexec(__import__('kernel_lab.puzzles').puzzles.PUZZLES[{p.name!r}].answer, g)\n"
                                            "return g['kernel'](1)"),
    "by heart": by_heart,
    "the mean by heart": lambda p: written(p, f"np.full({expected(p).shape}, {float(expected(p).mean())}, np.float32)"),
    "right and slow": slow,
    "fast and wrong": zeros,
    "nothing written": lambda p: alone(p, f"return nl.ndarray({expected(p).shape}, dtype=nl.{p.dtype}, buffer=nl.shared_hbm)"),
    "raises": lambda p: with_line(p, "raise ValueError('no ' * 100_000)"),
    "raises a stranger": lambda p: with_line(p, "raise type('Odd', (BaseException,), {'__str__': lambda s: 1 / 0})()"),
    "presses Ctrl-C": lambda p: with_line(p, "raise KeyboardInterrupt"),
    "leaves": lambda p: with_line(p, "raise SystemExit(0)"),
    "returns nothing": lambda p: own_text(kernel_of(p.answer)).replace("    return out", "    out"),
    "returns a word": lambda p: own_text(kernel_of(p.answer)).replace("    return out", "    return 'right'"),
    "returns its input": lambda p: alone(p, "return " + re.search(r"[(](\w+)", head(p))[1]),
    "returns an array": lambda p: alone(p, f"return np.zeros({expected(p).shape}, np.float32)"),
    "no parameters": lambda p: re.sub(r"^(def \w+)\(.*\):", r"\1():", own_text(kernel_of(p.answer)), count=1, flags=re.M),
    "one parameter more": lambda p: own_text(kernel_of(p.answer)).replace(head(p), head(p).replace("):", ", more):"), 1),
    "keywords only": lambda p: own_text(kernel_of(p.answer)).replace(head(p), head(p).replace("(", "(*, "), 1),
    "a generator": lambda p: with_line(p, "yield out"),
    "a coroutine": lambda p: own_text(kernel_of(p.answer)).replace(head(p), "async " + head(p), 1),
    "a class": lambda p: "class kernel:\n    pass\n",
    "half a text": lambda p: own_text(kernel_of(p.answer))[:-len("return out\n") - 20],
}
ALMOST = {"right and slow"}                 # right, and still not passed


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch): monkeypatch.setenv("KERNEL_LAB_HOME", str(tmp_path))


def pairs():
    "(kind, puzzle): a tenth in every run, so that each kind and each puzzle is in it; the rest in the long one."
    for k, kind in enumerate(ANSWERS):
        for n, name in enumerate(PUZZLES):
            often = (n - 7 * k) % len(PUZZLES) < (1 if kind.startswith("endless") else 3)
            yield pytest.param(kind, name, id=f"{kind}-{name}".replace(" ", "_"), marks=[] if often else pytest.mark.slow)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind, name", pairs())
def test_an_answer_in_bad_faith_is_answered_and_does_not_pass(kind, name):
    puzzle = get_puzzle(name).opened()
    text = ANSWERS[kind](puzzle)
    began = time.monotonic(), time.process_time()
    answer = puzzle.check(text)
    taken = time.monotonic() - began[0]
    said = str(answer) + answer._repr_html_()
    assert not answer.met and answer.right == (kind in ALMOST), said[:2000]
    assert not re.search(r"Traceback|site-packages|File \"", said) and len(said) < 100_000, said[:2000]
    assert str(answer).splitlines()[0].strip() and taken < MOST_SECONDS, (taken, str(answer)[:500])
    kept = read_progress()[name]
    assert kept["tries"] == 1 and not kept.get("met")
