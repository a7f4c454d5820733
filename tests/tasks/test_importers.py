"""Other people's suites: small imitations of every form, files that misbehave, the command, and real checkouts where
somebody has them.

    KERNELBENCH=checkout NKIBENCH=checkout NKIGEN_BENCH=checkout FLASHINFER_BENCH=folder-with-the-package python -m
    pytest tests/tasks/test_importers.py"""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernel_lab.cli.app import run
from kernel_lab.core.errors import UsageError
from kernel_lab.evaluate.pipeline import evaluate
from kernel_lab.evaluate.sandbox.run import Limits
from kernel_lab.tasks.codegen.graph import capture
from kernel_lab.tasks.importers.import_suite import import_suite, load_import, find_imported_task, save_import

MODEL = """import os, sys, time
import torch
from torch import nn
width = 512
{top}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        {body}
def get_inputs(): return [{inputs}]
"""


def model(body="return x.exp()", init="pass", inputs="torch.rand(256, width)", top=""):
    return MODEL.format(body=body, init=init, inputs=inputs, top=top)


def checkout(root, files):
    "The files (text, or bytes) below a folder."
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def at(name):
    path = os.environ.get(name)
    if not path: pytest.skip(f"{name} names no checkout")
    return path


def reasons(imported): return {x.name.rpartition("/")[2]: x.reason for x in imported.left}


# --- a file that misbehaves costs only itself ---

BAD = {
    "1_raises": (model("return x.no_such_thing()"),
                 "no_such_thing"), "2_hangs": (model("time.sleep(999)"),
                                               "longer than"), "3_exits": (model("sys.exit(5)"), "exit code 5"),
    "4_dies": (model("os._exit(3)"), "exit code 3"), "5_killed": (model("os.kill(os.getpid(), 9)"), "signal 9"),
    "6_memory": (model("return x + len(bytearray(int(float('1e12'))))"),
                 "memory"), "7_number": (model("return 3.0"), "no tensor"), "8_wrong_inputs": (model(
                     inputs="torch.rand(3), torch.rand(4)"), "TypeError"),
    "9_no_inputs": (model().replace("get_inputs", "get_stuff"),
                    "does not define"), "10_syntax": ("def (", "not Python"), "11_junk": (b"\x00\xff\x80\n" * 50,
                                                                                          "UTF-8|not Python"),
    "12_random": (model("return x + torch.rand(())"),
                  "random"), "13_constant": (model("return (x - 9).relu()"),
                                             "same whatever"), "14_nan": (model("return (x - 9).log()"), "finite"),
    "15_at_import": (model(top="raise ValueError('not today')"), "not today"), "16_package": (model(
        top="import no_such_package_xyz"), "no_such_package_xyz, which is not installed"), "17_hub": (model(
            init="self.m = AutoModel.from_pretrained('x')"), "hub"), "18_hangs_at_import": (model(
                top="while True: time.sleep(0.001)"), "longer than"), "19_half_an_answer": (
                    model("os.write(1, b'x' * 10000); os.closerange(3, 99); os._exit(0)"), "ended the process|junk"),}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    "A level with good files among the bad."
    root = tmp_path_factory.mktemp("bench")
    files = {f"KernelBench/level1/{name}.py": text for name, (text, _) in BAD.items()}
    files |= {
        "KernelBench/level1/0_first.py": model(),
        "KernelBench/level1/99_last.py": model("print('x' * 100000); return x.sin()"),
        "KernelBench/level1/98_ünïcode.py": model("return x.cos()"), "KernelBench/level1/README.md": "hello"}
    checkout(root, files)
    (root / "KernelBench" / "level1" / "circle.py").symlink_to(root / "KernelBench" / "level1" / "circle.py")
    (root / "KernelBench" / "loop").symlink_to(root)
    return import_suite(root, seconds=10, workers=2)


def test_the_good_are_taken(mixed):
    assert list(mixed.tasks) == ["kernelbench/1/0_first", "kernelbench/1/98_ünïcode", "kernelbench/1/99_last"]
    assert mixed.rows()[0]["taken"] == 3 and mixed.rows()[0]["left"] == len(BAD) + 1


@pytest.mark.parametrize("name", BAD)
def test_the_bad_are_named_with_their_reason(mixed, name):
    assert re.search(BAD[name][1], reasons(mixed)[name]), reasons(mixed)[name]


def test_a_link_to_itself_is_named(mixed): assert "cannot be read" in reasons(mixed)["circle"]


@pytest.mark.slow
def test_a_file_that_keeps_the_processor_busy_is_ended(tmp_path):
    checkout(tmp_path, {"level1/1_busy.py": model(top="while True: pass"), "level1/2_after.py": model()})
    imported = import_suite(tmp_path, seconds=10, workers=1)
    assert "longer than" in reasons(imported)["1_busy"] and len(imported.tasks) == 1


# --- those that behave: one import serves all tests, and its checkout is gone afterwards ---

LINEAR = model("return self.fc(x).relu()", "self.fc = nn.Linear(width, width)")
ARGS = """import torch
class Model(torch.nn.Module):
    def forward(self, x, s, k=2): return x * s + k
def get_inputs(): return [torch.rand(4, 8), 3.0, 5]
"""
GOOD = {
    "level1/1_leaves.py": model(top="torch.manual_seed(1); os.environ['LEFT_BEHIND'] = '1'; "
                                    "open('left_behind', 'w').write('x')"),
    "level1/2_key.py": model(top="raise ValueError(os.environ.get('ANTHROPIC_API_KEY', 'nothing'))"),
    "level1/3_bn.py": model("return self.bn(x)", "self.bn = nn.BatchNorm2d(8)", "torch.rand(4, 8, 6, 6)"),
    "level1/4_drop.py": model("return self.drop(self.bn(x))", "self.bn = nn.BatchNorm2d(8); self.drop = nn.Dropout(.5)",
                              "torch.rand(4, 8, 6, 6)"),
    "level2/7_linear.py": LINEAR,
    "level3/1_lstm.py": model("y, (h, c) = self.rnn(x); return y, h, c", "self.rnn = nn.LSTM(16, 16, batch_first=True)",
                              "torch.rand(2, 5, 16)"),
    "level3/2_args.py": ARGS}


def what_is_here(root):
    "What an import must not change: the state of both random generators, the environment, files."
    import torch
    left = [p for p in (Path("left_behind"), root / "left_behind") if p.exists()]
    return torch.random.get_rng_state().tolist(), np.random.get_state()[1].tolist(), dict(os.environ), left


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    "(the import of `GOOD` while there is a key, what was here before it, what was here after it)."
    import torch
    root = checkout(tmp_path_factory.mktemp("good"), GOOD)
    with pytest.MonkeyPatch.context() as m:
        m.setenv("ANTHROPIC_API_KEY", "not-a-key-991")
        torch.manual_seed(7)
        before = what_is_here(root)
        imported = import_suite(root, seconds=20, workers=1)
        after = what_is_here(root)
    shutil.rmtree(root)
    return imported, before, after


@pytest.fixture(scope="module")
def tasks(good): return good[0].tasks


@pytest.fixture(scope="module")
def linear(tasks): return tasks["kernelbench/2/7_linear"]


@pytest.mark.slow
def test_importing_changes_nothing_here(good):
    imported, before, after = good
    assert before == after and "LEFT_BEHIND" not in after[2] and not after[3]
    assert "same whatever the inputs" in reasons(imported)["1_leaves"]        # it ran, and drew from its one seed


def test_keys_do_not_reach_a_file(good): assert "nothing" in reasons(good[0])["2_key"]


# --- paths ---


@pytest.mark.parametrize(
    "files, path",
    [
        ({"notes.txt": "hi"}, "."),
        ({"x.py": "x = 1"}, "x.py"),
        ({}, "none"),
        ({"photo.json": b"\xff\xd8"}, "photo.json.gz"),
    ],
)
def test_nothing_is_recognised(tmp_path, files, path):
    with pytest.raises(UsageError, match="no file or folder|a suite that the lab "
                                         "knows.*KernelBench.*NKIBench.*FlashInfer"):
        import_suite(checkout(tmp_path, files) / path)


def test_broken_json_is_named(tmp_path):
    checkout(tmp_path, {"definitions/gemm/a.json": "{", "definitions/gemm/b.json": "[" * 100000})
    with open(tmp_path / "definitions" / "gemm" / "huge.json", "wb") as f: f.truncate(1 << 30)
    imported = import_suite(tmp_path)
    assert not imported.tasks and ["not JSON" in x.reason or "MiB" in x.reason for x in imported.left] == [True] * 3


# --- the contract of an imported task ---

def test_weights_are_inputs(linear):
    x, w, b = linear.draw("small", 1).values()
    np.testing.assert_allclose(
        linear.expected(linear.draw("small", 1))[0], np.maximum(x @ w.T + b, 0), rtol=1e-4, atol=1e-5)
    assert list(linear.workload("full").shapes) == ["x", "fc_weight", "fc_bias"
                                                    ] and linear.workload("full").shapes["x"] == (256, 512)


def test_seeds_decide(linear):
    a, b, c = (linear.draw("small", seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a[k], b[k]) and not np.array_equal(a[k], c[k]) for k in a)


def test_its_written_kernel_is_correct_and_an_impostor_is_not(linear):
    first = linear.first("small")
    assert evaluate(first, linear, "small", seeds=2).status == "correct"
    forgets = first.source.replace("fc_bias[", "fc_weight[0:1][").replace("fc_bias.", "fc_weight[0:1].")
    zeros = re.sub(r"op=nl\.maximum", "op=nl.minimum", first.source)
    assert {evaluate(s, linear, "small", seeds=1).status == "correct"
            for s in (forgets, zeros)
            if s != first.source} <= {False}


def test_modes_of_a_normalisation(tasks):
    train, calm = (tasks[f"kernelbench/1/{name}"] for name in ("3_bn", "4_drop"))
    x, w, b = train.draw("small").values()
    mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    want = (x - mean) / np.sqrt(var + 1e-5) * w[:, None, None] + b[:, None, None]
    np.testing.assert_allclose(train.expected(train.draw("small"))[0], want, rtol=1e-3, atol=1e-4)
    assert list(calm.workload().shapes) == ["x", "bn_weight", "bn_bias", "bn_running_mean", "bn_running_var"
                                            ] and "evaluation mode" in calm.doc


def test_states_and_numbers_among_the_arguments(tasks):
    lstm, scaled = (tasks[f"kernelbench/3/{name}"] for name in ("1_lstm", "2_args"))
    assert [o.shape for o in lstm.expected(lstm.draw("small"))] == [(2, 5, 16), (1, 2, 16), (1, 2, 16)]
    arrays = scaled.draw()
    np.testing.assert_allclose(scaled.expected(arrays)[0], arrays["x"] * 3 + 5, rtol=1e-6)
    assert [n.op for n in capture(scaled).nodes] == ["mul", "add"]


def test_a_kept_import_needs_no_checkout(tmp_path, good, linear):
    kept = save_import(good[0], tmp_path / "kept" / "a.json")
    again = find_imported_task(tmp_path / "kept", "kernelbench/2/7_linear")
    for k, v in linear.draw("small", 3).items(): np.testing.assert_array_equal(again.draw("small", 3)[k], v)
    kept.write_text(kept.read_text()[:-20])
    with pytest.raises(UsageError, match="not an import"): load_import(kept)


# --- the command ---

@pytest.fixture
def lab(tmp_path):
    env = {**os.environ, "KERNEL_LAB_HOME": str(tmp_path / "home"), "COLUMNS": "140", "NO_COLOR": "1", "TERM": "dumb"}
    def call(*words):
        return subprocess.run([str(Path(sys.executable).with_name("kernel-lab")), *map(str, words)],
                              capture_output=True, text=True, cwd=tmp_path, env=env, timeout=300)
    return call


@pytest.mark.slow
def test_the_command_and_the_names_afterwards(lab, tmp_path):
    checkout(tmp_path / "co", {"KernelBench/level2/7_linear.py": LINEAR, "KernelBench/level2/8_bad.py": "def ("})
    done = lab("tasks", "import", "co")
    assert done.returncode == 0 and re.search(r"KernelBench +2 +1 +1",
                                              done.stdout) and "not Python" in done.stdout, done.stdout + done.stderr
    (tmp_path / "k.py").write_text(lab("tasks", "kernelbench/2/7_linear", "--kernel").stdout)
    done = lab("evaluate", "kernelbench/2/7_linear", "k.py", "-w", "small", "--json", "--seeds", 1)
    assert done.returncode == 0 and json.loads(done.stdout)["status"] == "correct", done.stdout + done.stderr


@pytest.mark.parametrize(
    "words, said",
    [
        (("tasks", "import"), "needs one path"),
        (("tasks", "import", "none"), "no file or folder"),
        (("tasks", "import", "."), "It looked for"),
        (("tasks", "softmax", "co"), "One task can be shown"),
        (("tasks", "kernelbench/1/none"), "no task"),
    ],
)
def test_wrong_commands(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNEL_LAB_HOME", str(tmp_path / "home"))
    code, (out, err) = run(list(words)), capsys.readouterr()
    assert code == 2 and said in err and "Traceback" not in err, out + err


# --- written for FlashInfer-Bench ---

@pytest.fixture(scope="module")
def written(tmp_path_factory, linear):
    "A dataset of the lab's softmax and an imported task, with a correct and a broken kernel."
    from dataclasses import replace
    from kernel_lab.tasks.importers.flashinfer_export import dataset_of, write_dataset
    from kernel_lab.tasks.suite.registry import TASKS
    softmax = replace(TASKS["softmax"], workloads=(TASKS["softmax"].workload("small"),))
    results = [evaluate(softmax.first("small"), softmax, "small", seeds=1), evaluate("def (", softmax, "small")]
    data, left = dataset_of([softmax, linear], results)
    assert not left
    root = tmp_path_factory.mktemp("dataset")
    write_dataset(data, root)
    return data, root


@pytest.mark.slow
def test_what_is_written_reads_back_and_imports(written):
    from kernel_lab.tasks.importers.flashinfer_bench import read_dataset
    data, root = written
    again = read_dataset(root)
    assert (again.definitions, again.workloads, again.solutions, list(again.traces),
            again.left) == (data.definitions, data.workloads, data.solutions, list(data.traces), ())
    assert [t["evaluation"]["status"] for t in again.traces] == ["PASSED", "COMPILE_ERROR"]
    imported = import_suite(root)
    assert len(imported.tasks) == 2 and not imported.left


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        "gelu",
        "add",
        "power",
        "matmul",
        "max_rows",
        "layer_norm",
        "cross_entropy",
        "int8_weight_linear",
        "vit_layer",
        "lora_attention",
    ],
)
def test_a_reference_of_every_kind_stands_alone(name):
    from kernel_lab.tasks.importers.flashinfer_export import definition_of
    from kernel_lab.tasks.suite.registry import TASKS
    from kernel_lab.tasks.model.task import to_torch
    task = TASKS[name]
    definition, workloads = definition_of(task, ["small"])
    space = {}
    exec(definition["reference"], space)
    arrays = task.draw("small")
    got = space["run"](*map(to_torch, arrays.values()))
    for one, want in zip(got if isinstance(got, (tuple, list)) else (got,), task.expected(arrays)):
        np.testing.assert_allclose(one.numpy(), want, 1e-3, 1e-3)
    assert len(workloads) == 1 and list(definition["inputs"]) == list(arrays)


def test_no_trace_without_a_time_to_compare_with(tmp_path):
    from dataclasses import replace
    from kernel_lab.tasks.importers.flashinfer_export import dataset_of, write_dataset
    from kernel_lab.tasks.suite.registry import TASKS
    softmax = replace(TASKS["softmax"], workloads=(TASKS["softmax"].workload("small"),))
    good = evaluate(softmax.first("small"), softmax, "small", seeds=1)
    assert good.profile.kind == "simulated" and good.speedup
    measured = replace(good, id="measured", profile=replace(good.profile, kind="measured"))
    data, left = dataset_of([softmax], [good, measured, replace(good, id="alone", baseline_us=None)])
    assert [name for name, _ in left] == ["measured", "alone"
                                          ] and "was measured" in left[0][1] and "not compared" in left[1][1]
    assert [t["evaluation"]["performance"]["speedup_factor"] for t in data.traces] == [good.speedup]
    write_dataset(data, tmp_path)
    written = [
        json.loads(line)["evaluation"]
        for p in tmp_path.glob("traces/*/*.jsonl")
        for line in p.read_text().splitlines()]
    assert [e["performance"]["reference_latency_ms"] * 1e3 for e in written] == pytest.approx([good.baseline_us])


LOADER = """
import sys, types
package = types.ModuleType('flashinfer_bench')      # its own __init__ wants a GPU's libraries; the records need none
package.__path__ = [sys.argv[1] + '/flashinfer_bench']
sys.modules['flashinfer_bench'] = package
from flashinfer_bench.data.trace_set import TraceSet
found = TraceSet.from_path(sys.argv[2])
print(len(found.definitions), sum(map(len, found.solutions.values())), sum(map(len, found.workloads.values())), sum(map(len, found.traces.values())))
"""


def test_their_own_loader_accepts_it(written):
    theirs = at("FLASHINFER_BENCH")
    done = subprocess.run([sys.executable, "-c", LOADER, theirs, str(written[1])], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": theirs})
    assert done.returncode == 0 and done.stdout.split() == ["2", "2", "2", "2"], done.stdout + done.stderr[-2000:]


# --- real checkouts, where somebody has them ---

def test_kernelbench(tmp_path):
    from kernel_lab.tasks.importers.benchmarks import read_kernelbench
    found, left = read_kernelbench(at("KERNELBENCH"))
    assert len(found) + len(left) >= 270 and {x.level for x in left} == {4} and len(left) >= 20
    some = {f"level1/{f.name.rpartition('/')[2]}.py": f.text for f in found if f.level == 1}
    imported = import_suite(checkout(tmp_path, dict(list(some.items())[:12])))
    assert len(imported.tasks) == 12
    assert all(capture(t, "small").nodes for t in imported.tasks.values())


def test_nkibench_of_accelopt():
    imported = import_suite(at("NKIBENCH"), seconds=300)
    assert len(imported.tasks) == 14 and {t.family for t in imported.tasks.values()} == {"NKIBench (AccelOpt)"}
    task = imported.tasks["nkibench/silu_M4096_N7168"]
    assert evaluate(task.first("full"), task, "full", seeds=1, limits=Limits(instructions=50_000_000,
                                                                             memory_mb=8192)).status == "correct"


def test_nkigen_bench_of_aws_samples():
    from kernel_lab.tasks.importers.benchmarks import read_nkigen
    found, left = read_nkigen(at("NKIGEN_BENCH"))
    assert len(found) == 250 and not left
