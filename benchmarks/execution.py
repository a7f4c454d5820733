"""How long does executing a traced kernel take beside its own numpy reference?

    NKIBENCH=checkout/of/NKIBench python benchmarks/execution.py [--threads=1] [--rounds=3] [kernel …]

Each kernel runs in a process of its own, at full shape: in every round a cold execution, which plans first, a warm one
by the same plan, and the reference, one after the other. The least of all rounds counts, in seconds of processor time:
others on the machine slow a process, nobody makes it faster. Execution and reference have the same number of threads,
and the ratios are seconds of one over seconds of the other. The last column is the most memory that executing held
beyond inputs and outputs."""
import argparse, importlib.util, os, resource, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
import numpy as np
from threadpoolctl import threadpool_limits
from kernel_lab.nki import assert_ok, execute, installed, trace

ROOT = Path(os.environ.get("NKIBENCH", "NKIBench"))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(f):
    "(result, seconds of this process's own work)."
    start = time.process_time()
    out = f()
    return out, time.process_time() - start


def resident(peak=False):
    "Bytes this process holds now, or held at its peak."
    if peak: return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def one(path, threads, rounds):
    "Print what `main` shows of one kernel."
    with installed(): kernel = load(path).kernel
    reference = load(next((ROOT / "reference").glob(f"{path.stem[:-2]}_numpy*.py")))
    np.random.seed(0)
    inputs = reference.get_inputs()
    arrays = reference.transform_to_nki_inputs(inputs)
    program, tracing = timed(lambda: assert_ok(trace(kernel, *arrays)))
    arrays, rows = [x for x in arrays if isinstance(x, np.ndarray)], []       # numbers are part of the program
    before, held = resident(), None
    with threadpool_limits(threads):
        for _ in range(rounds):
            fresh = replace(program)                                # a program that nobody has planned yet
            out, cold = timed(lambda: execute(fresh, *arrays, threads=threads))
            held = held or (resident(peak=True) - before - sum(o.nbytes for o in out)) / 2**20
            out, warm = timed(lambda: execute(fresh, *arrays, threads=threads))
            want, plain = timed(lambda: reference.forward(*inputs))
            rows.append((cold, warm, plain))
    got = reference.transform_nki_outputs(out if len(out) > 1 else out[0], want)
    pairs = zip(got, want) if isinstance(want, tuple) else [(got[0] if isinstance(got, (tuple, list)) else got, want)]
    error = max(np.linalg.norm(g - w) / np.linalg.norm(w) for g, w in pairs)
    print(program.count, tracing, *map(min, zip(*rows)), error, held, flush=True)


def main(names, threads, rounds):
    head = (f"{'kernel':44} {'instructions':>12} {'trace s':>8} {'cold s':>7} {'warm s':>7} {'numpy s':>8} "
            f"{'cold':>6} {'warm':>6} {'rel. L2':>9} {'extra MiB':>9}")
    print(head, "-" * len(head), sep="\n")
    ratios = []
    for path in sorted((ROOT / "kernels").glob("*.py")):
        if names and not any(path.name.startswith(n) for n in names): continue
        done = subprocess.run([sys.executable, __file__, f"--threads={threads}", f"--rounds={rounds}", "--one", path],
                              capture_output=True, text=True)
        if done.returncode:
            print(f"{path.stem[:-2]:44} failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        count, tracing, cold, warm, plain, error, held = map(float, done.stdout.split()[-7:])
        ratios.append((cold / plain, warm / plain))
        print(f"{path.stem[:-2]:44} {int(count):12,} {tracing:8.3f} {cold:7.2f} {warm:7.2f} {plain:8.2f} "
              f"{ratios[-1][0]:6.2f} {ratios[-1][1]:6.2f} {error:9.1e} {held:9.0f}", flush=True)
    if ratios:
        mean, worst = np.exp(np.mean(np.log(ratios), axis=0)), np.max(ratios, axis=0)
        for name, x in (("geometric mean", mean), ("worst", worst)): print(f"{name:84} {x[0]:13.2f} {x[1]:6.2f}")


if __name__ == "__main__":
    ask = argparse.ArgumentParser()
    ask.add_argument("--threads", type=int, default=1)
    ask.add_argument("--rounds", type=int, default=3)
    ask.add_argument("--one", type=Path)
    ask.add_argument("kernels", nargs="*")
    given = ask.parse_args()
    if given.one: one(given.one, given.threads, given.rounds)
    else: main(given.kernels, given.threads, given.rounds)
