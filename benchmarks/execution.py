"""How long does executing a traced kernel take beside its own numpy reference?

    NKIBENCH=checkout/of/NKIBench python benchmarks/execution.py [kernel …]

Each kernel runs in a process of its own, at full shape: trace, execute, reference, execute, reference; the better of
each pair counts. An execution includes its planning, which a second execution of the same program would not repeat.
The last column is the most memory that the execution held beyond inputs and outputs."""
import importlib.util, os, resource, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
import numpy as np
from kernel_lab.nki import assert_ok, execute, installed, trace

ROOT = Path(os.environ.get("NKIBENCH", "NKIBench"))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(f):
    start = time.perf_counter()
    out = f()
    return out, time.perf_counter() - start


def resident(peak=False):
    "Bytes this process holds now, or held at its peak."
    if peak: return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def one(path):
    with installed(): kernel = load(path).kernel
    reference = load(next((ROOT / "reference").glob(f"{path.stem[:-2]}_numpy*.py")))
    np.random.seed(0)
    inputs = reference.get_inputs()
    arrays = reference.transform_to_nki_inputs(inputs)
    program, tracing = timed(lambda: assert_ok(trace(kernel, *arrays)))
    arrays = [x for x in arrays if isinstance(x, np.ndarray)]       # numbers are part of the program
    before = resident()
    out, first = timed(lambda: execute(program, *arrays))
    held = (resident(peak=True) - before - sum(o.nbytes for o in out)) / 2**20
    want, second = timed(lambda: reference.forward(*inputs))
    again = replace(program)                                # a program that nobody has planned yet
    executing = min(first, timed(lambda: execute(again, *arrays))[1])
    plain = min(second, timed(lambda: reference.forward(*inputs))[1])
    got = reference.transform_nki_outputs(out if len(out) > 1 else out[0], want)
    pairs = zip(got, want) if isinstance(want, tuple) else [(got[0] if isinstance(got, (tuple, list)) else got, want)]
    error = max(np.linalg.norm(g - w) / np.linalg.norm(w) for g, w in pairs)
    print(path.stem[:-2], program.count, tracing, len(program.to_json()), executing, plain, error, held, flush=True)


def main(names):
    head = (f"{'kernel':44} {'instructions':>12} {'trace s':>8} {'file kB':>8} {'execute s':>9} {'numpy s':>8} "
            f"{'ratio':>6} {'rel. L2':>9} {'extra MiB':>9}")
    print(head, "-" * len(head), sep="\n")
    ratios = []
    for path in sorted((ROOT / "kernels").glob("*.py")):
        if names and not any(path.name.startswith(n) for n in names): continue
        done = subprocess.run([sys.executable, __file__, "--one", path], capture_output=True, text=True)
        if done.returncode:
            print(f"{path.stem[:-2]:44} failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        name, count, tracing, size, executing, plain, error, held = done.stdout.split()[-8:]
        ratios.append(float(executing) / float(plain))
        row = (
            f"{name:44} {int(count):12,} {float(tracing):8.3f} {int(size) / 1e3:8.0f} {float(executing):9.2f} "
            f"{float(plain):8.2f}"
        )
        print(f"{row} {ratios[-1]:6.2f} {float(error):9.1e} {float(held):9.0f}", flush=True)
    if ratios:
        print(f"{'geometric mean':44} {'':12} {'':8} {'':8} {'':9} {'':8} {np.exp(np.mean(np.log(ratios))):6.2f}   "
              f"worst {max(ratios):.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]: one(Path(sys.argv[2]))
    else: main(sys.argv[1:])
