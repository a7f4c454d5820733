"""The target `neuron` against imitations of the vendor's packages and profiler, made in a temporary folder: the whole
way, and each way to fail."""
import json
import shutil
import socket
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from kernel_lab.cli.app import run
from kernel_lab.core.durations import compare_times, latency_of
from kernel_lab.core.errors import KernelError, UsageError
from kernel_lab.targets.registry import TARGETS
from kernel_lab.targets.registry import CANARY_KERNELS, CANARY_TASK, run_canary, run_canary_on
from kernel_lab.targets.neuron import Neuron
from kernel_lab.targets.neuron_profile import ToolError
from kernel_lab.tasks.model.workload import Kernel
from vendor_tools import add_profiler

SHARED = """
import os, pathlib, sys
MODE = pathlib.Path(__file__).parent.parent.joinpath("mode").read_text()
def compiled(where, f, args):
    print("compiler: hello")
    if MODE == "refuse": raise ValueError("[NCC_X] tile has 130 partitions")
    if MODE == "exit": sys.exit(70)
    if MODE == "die": os._exit(9)
    if MODE.startswith("say "): os.write(2, MODE[4:].encode()); os._exit(9)
    if MODE == "hang": __import__("time").sleep(600)
    if MODE != "no neff": pathlib.Path(where).write_bytes(b"NEFF")
    import numpy as np
    x, y = args
    return x.T @ y + (2 if MODE == "wrong" else 1)
"""
CURRENT = (
    SHARED
    + """
class Jitted:
    def __init__(self, f): self.f = f
    def __call__(self, *args):
        assert os.environ["NEURON_FRAMEWORK_DEBUG"] == "1" and os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] in ("trn1", "trn2")
        return compiled("graph.neff", self.f, args)
def jit(f): return Jitted(f)
"""
)
EARLIER_NKI = SHARED + """
from types import SimpleNamespace as NS
def jit(f): return f
def baremetal(save_neff_name=None, artifacts_dir=None, additional_compile_opt=None):
    pathlib.Path(artifacts_dir).mkdir()
    return lambda f: lambda *args: compiled(save_neff_name, f, args)
def benchmark(warmup, iters, save_neff_name=None, additional_compile_opt=None):
    def wrap(f):
        def call(*args): return compiled(save_neff_name, f, args)
        call.benchmark_result = NS(nc_latency=NS(get_latency_percentile=lambda q: 50.0 + q / 100))
        return call
    return wrap
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine('mode')` → the target on an imitated machine with both packages, one device and a profiler that behave
    as the mode says."""
    def package(name, text):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text(text)
    package("nki", CURRENT); package("neuronxcc", ""); package("neuronxcc/nki", EARLIER_NKI)
    for name in ("nki", "neuronxcc/nki"):
        for part in ("isa", "language"): (tmp_path / "site" / name / f"{part}.py").write_text("")
    (tmp_path / "neuron0").touch()
    add_profiler(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{':'.join(sys.path)}")
    monkeypatch.setenv("PATH", str(tmp_path / "site"), prepend=":")

    def ready(mode="", captures=1, **kw):
        for folder in ("site", "site/neuronxcc"): (tmp_path / folder / "mode").write_text(mode)
        return Neuron(home=tmp_path / "builds", devices=str(tmp_path / "neuron[0-9]*"), captures=captures, **kw)
    yield ready
    for name in [n for n in sys.modules if n.split(".")[0] in ("nki", "neuronxcc")]: del sys.modules[name]


def compiled(target, dialect="nki"):
    return target.compile(CANARY_KERNELS[dialect], CANARY_TASK, CANARY_TASK.workload(), "trn1")


@pytest.fixture(scope="module")
def kept(tmp_path_factory): return SimpleNamespace(folder=tmp_path_factory.mktemp("kept") / "build", done=None)


@pytest.fixture
def build(machine, kept, tmp_path):
    "A compiled kernel with a folder of its own, a copy of what was compiled once for all tests that only profile."
    if not kept.done:
        kept.done = compiled(machine())
        shutil.copytree(kept.done.artifact.folder, kept.folder)
    folder, first = shutil.copytree(kept.folder, tmp_path / "build"), kept.done.artifact
    return replace(kept.done, artifact=replace(first, folder=folder, neff=folder / first.neff.relative_to(first.folder)))


# --- the whole way ---

@pytest.mark.parametrize("dialect", CANARY_KERNELS)
def test_compile_run_profile(machine, dialect):
    target, inputs = machine(), CANARY_TASK.draw(seed=5)
    assert target.available() is None
    done = compiled(target, dialect)
    np.testing.assert_array_equal(target.run(done, inputs)[0], inputs["x"].T @ inputs["y"] + 1)
    profile = target.profile(done)
    assert (profile.kind, profile.timeline.kind, profile.latency_us, profile.bound) == ("measured", "measured",
                                                                                        pytest.approx(52.0), "DMA")
    assert profile.engines == {
        "Tensor": pytest.approx(.25), "Vector": pytest.approx(.5), "Scalar": 0, "GpSimd": 0, "DMA": pytest.approx(.75)}
    assert (profile.flops, profile.transpose_flops, profile.sbuf_peak_bytes) == (60, 40, None)
    assert profile.lines[17] == {"Tensor": pytest.approx(3 * .213)} and len(profile.timeline) == 4
    assert "simulated" not in str(profile) + repr(profile.timeline)


def test_everything_is_kept(machine):
    done = compiled(target := machine())
    target.profile(done)
    folder = done.artifact.folder
    names = {p.relative_to(folder).parts[-1] for p in folder.rglob("*") if p.is_file()}
    assert names >= {
        "kernel.py", "compiler.log", "graph.neff", "profile_exec_2.ntff", "summary.json", "instructions.json",
        "profiler.log"}
    assert "compiler: hello" in (
        folder / "compiler.log").read_text() and "compiler: hello" in done.log and str(folder) in done.log


def test_measured_profile_is_drawn_like_a_simulated_one(machine, build):
    from kernel_lab.figures.timeline import timeline_figure
    from kernel_lab.cli.render import profile_lines
    profile = machine().profile(build)
    assert "measured" in timeline_figure(profile.timeline).layout.title.text and "memory not measured" in "\n".join(
        profile_lines(profile))


def test_benchmark_names_its_clock(machine):
    target, inputs = machine(), CANARY_TASK.draw()
    old = target.benchmark(compiled(target, "neuronxcc.nki"), inputs)
    new = target.benchmark(compiled(target), inputs, iters=2)
    assert (old.us, old.kind, old.interval, old.count) == (50.5, "measured", (50.25, 50.9), 100) and "host" in old.clock
    assert (new.us, new.kind, new.interval, new.count) == (pytest.approx(52.0), "measured", None,
                                                           2) and "total_time" in new.clock
    with pytest.raises(UsageError, match="mixes measured kernel time .*total_time.* and measured kernel time .*host"):
        compare_times(new, old)


def test_a_latency_that_differs_from_run_to_run_has_an_interval(machine, build):
    "Seven captures of 52 to 58 µs: the profile is that of the median one; a simulated time is not held against it."
    target = machine("jitter", captures=7)
    profile = target.profile(build)
    assert (profile.latency_us, profile.low_us, profile.high_us,
            profile.count) == tuple(map(pytest.approx, (55, 52, 58, 7)))
    assert profile.timeline.latency_us == pytest.approx(55) and profile.latency.interval == (profile.low_us,
                                                                                             profile.high_us)
    again = target.profile(build)
    assert not (c := compare_times(profile.latency,
                                   again.latency)).distinguishable and str(c).startswith("not distinguishable")
    simulated = run_canary_on(TARGETS["nki_sim"], "nki", "trn1")
    with pytest.raises(UsageError, match="mixes simulated device time .trn1. and measured kernel time"):
        compare_times(latency_of(simulated), profile.latency)


# --- what can be missing ---

def test_each_missing_part_is_named(machine, tmp_path, monkeypatch):
    target = machine()
    (tmp_path / "neuron0").unlink()
    assert target.available() == f"missing: a Neuron device ({tmp_path}/neuron0)"
    (tmp_path / "site" / "neuron-profile").unlink()
    assert "neuron-explorer or neuron-profile" in target.available()
    with pytest.raises(UsageError, match="not available.*profiler.*device"): compiled(target)


def test_the_other_package_does_not_help(machine, tmp_path):
    import importlib
    import shutil
    target = machine()
    shutil.rmtree(tmp_path / "site" / "neuronxcc")
    importlib.invalidate_caches()
    assert target.available() is None
    with pytest.raises(UsageError, match="package neuronxcc"): compiled(target, "neuronxcc.nki")


# --- what can go wrong ---

@pytest.mark.parametrize("mode, kind, said", [
    ("refuse", "trace", r"\[NCC_X\] tile has 130 partitions.*compiler.log"),
    ("exit", "trace", "SystemExit: 70"),
    ("die", "crash", r"exit code 9.*compiler: hello|exit code 9"),
])
@pytest.mark.parametrize("dialect", CANARY_KERNELS)
def test_a_refused_kernel(machine, mode, kind, said, dialect):
    with pytest.raises(KernelError, match=said) as caught: compiled(machine(mode), dialect)
    assert caught.value.kind == kind and "Traceback" not in str(caught.value)


def test_an_error_has_no_key_that_the_compiler_says(machine, monkeypatch):
    monkeypatch.setenv("A_SECRET_KEY", "abracadabra-sesame")
    with pytest.raises(KernelError, match=r"exit code 9.* refused \[A_SECRET_KEY\] today") as caught:
        compiled(machine("say the license server refused abracadabra-sesame today"))
    assert "sesame" not in str(caught.value)


def test_a_mistake_in_the_kernel_has_its_line(machine):
    kernel = Kernel("import nki\nprint('loading')\n\ndef kernel(x, y):\n    return undefined\n\nundefined()\n")
    with pytest.raises(KernelError, match="NameError") as caught:
        machine().compile(kernel, CANARY_TASK, CANARY_TASK.workload(), "trn1")
    assert caught.value.line == 7
    with pytest.raises(KernelError, match="line 1"):
        machine().compile(Kernel("import nki; def"), CANARY_TASK, CANARY_TASK.workload(), "trn1")


def test_a_compiler_that_hangs_is_ended(machine):
    began = time.monotonic()
    with pytest.raises(KernelError, match="took too long") as caught: compiled(machine("hang", seconds=4))
    assert caught.value.kind == "timeout" and time.monotonic() - began < 30


def test_no_neff(machine):
    with pytest.raises(ToolError, match="left no NEFF"): compiled(machine("no neff"))


@pytest.mark.parametrize(
    "mode, said",
    [
        ("capture fails", "could not capture.*device busy"),
        ("no ntff", "left no NTFF"),
        ("half a summary", "cannot be read.*stopped"),
        ("no summary", "summary is empty"),
        ("no time", "no total_time"),
        ("zero time", "took no time"),
        ("junk number", "no quantity"),
        ("simulated", "no measurement"),
    ],
)
def test_a_profiler_that_fails(machine, build, mode, said):
    with pytest.raises(ToolError, match=said): machine(mode).profile(build)


def test_a_profiler_that_hangs(machine, build):
    with pytest.raises(ToolError, match="more than 1 s"): machine("capture hangs", seconds=1).profile(build)


@pytest.mark.parametrize("mode", ["no table", "half a table"])
def test_without_the_table_there_is_no_timeline(machine, build, mode):
    profile = machine(mode, captures=2).profile(build)
    assert (profile.latency_us, profile.timeline, profile.lines) == (pytest.approx(52.0), None, {})
    # of the median capture
    assert any("no timeline" in p.read_text() for p in build.artifact.folder.rglob("profiler.log"))


# --- the canary ---

def test_canary_on_a_device(machine):
    songs = run_canary("trn1", machine())
    assert [(s.target, s.right, s.kind)
            for s in songs] == [("nki_sim", True, "simulated")] * 2 + [("neuron", True, "measured")] * 2


def test_canary_hears_a_wrong_number(machine):
    song = run_canary_on(machine("wrong"), "nki", "trn1")
    assert not song.right and "16,384 of 16,384 numbers are wrong" in song.note
    assert not run_canary_on(machine("refuse"), "neuronxcc.nki", "trn1").right


def test_doctor_canary_exit_codes(machine, monkeypatch, capsys):
    from kernel_lab.targets import registry as base
    monkeypatch.setitem(base.TARGETS, "neuron", machine("wrong"))
    assert run(["doctor", "--canary"]) == 1 and "WRONG" in capsys.readouterr().out
    monkeypatch.setitem(base.TARGETS, "neuron", machine())
    assert run(["doctor", "--canary", "--json"]) == 0
    assert [s["kind"] for s in json.loads(capsys.readouterr().out)["songs"]] == ["simulated"] * 2 + ["measured"] * 2


# --- what the kernel's process may do ---

NOSY = """
import os, resource, socket, tempfile
try: socket.create_connection(("127.0.0.1", {port}), 2).close(); way = "open"
except OSError: way = "shut"
print("\\x1b[31mfound", os.environ.get("A_SECRET_KEY"), way, resource.getrlimit(resource.RLIMIT_CORE)[0], tempfile.gettempdir())
"""

@pytest.mark.parametrize("network", [False, True])
def test_the_kernels_process_is_held_back(machine, monkeypatch, network):
    "It runs the kernel's Python: no keys, no network, temporary files of its own."
    monkeypatch.setenv("A_SECRET_KEY", "abracadabra")
    target = machine(network=network)
    with socket.create_server(("127.0.0.1", 0)) as door:
        done = target.compile(
            replace(CANARY_KERNELS["nki"],
                    source=CANARY_KERNELS["nki"].source + NOSY.format(port=door.getsockname()[1])), CANARY_TASK,
            CANARY_TASK.workload(), "trn1")
    shut = not network and "without network: not here" not in done.log
    assert (
        f"found None {'shut' if shut else 'open'} 0 {done.artifact.folder / 'tmp'}" in done.log
        and "abracadabra" not in done.log
        and "\x1b" not in done.log
    )
