"""Instructions scheduled a second, from a thousand to ten million: `python benchmarks/scheduling.py [--ten-million]`.

A tiled matrix product of growing size, in program order (as the current dialect's) and looking ahead (as the earlier
dialect's compiler does). The first call compiles and is not counted; the rest is the best of three, once for ten
million. With NKIBENCH=checkout/of/NKIBench, also the time from source to profile of each of its kernels."""
import gc, os, resource, sys, time
from kernel_lab.nki import ArraySpec, isa as nisa, language as nl, profile_of, schedule, trace
from kernel_lab.nki.timing import scheduler
from kernel_lab.nki.chip.chips import CHIPS


def product(a, b):
    out = nl.ndarray((a.shape[1], b.shape[1]), nl.float32, buffer=nl.shared_hbm)
    for m in nl.affine_range(a.shape[1] // 128):
        for n in nl.affine_range(b.shape[1] // 512):
            acc = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(a.shape[0] // 128):
                nisa.nc_matmul(acc, nl.load(a[nl.ds(k * 128, 128), nl.ds(m * 128, 128)]),
                               nl.load(b[nl.ds(k * 128, 128), nl.ds(n * 512, 512)]))
            nl.store(out[nl.ds(m * 128, 128), nl.ds(n * 512, 512)], nl.copy(acc))
    return out


def timed(f, times=3):
    """Seconds of this process's own work, the least of a few times: others on the machine slow it, nobody makes it
    faster."""
    found = []
    for _ in range(times):
        gc.collect()
        start = time.process_time()
        f()
        found.append(time.process_time() - start)
    return min(found)


def sizes(most):
    "A table: instructions, seconds and instructions a second for each way."
    chip = CHIPS["trn2"]
    scheduler.warm()
    print(f"{'instructions':>14}{'in order':>12}{'M/s':>8}{'looking ahead':>16}{'M/s':>8}")
    for m, n, k in ((512, 2048, 2048), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 12800),
                    (16384, 16384, 32768), (32768, 32768, 26624)):
        program = trace(product, ArraySpec((k, m)), ArraySpec((k, n)))
        if program.count > most: break
        times, window, buffers = 3 if program.count < 5e6 else 1, int(chip.compiler_window), int(chip.compiler_buffers)
        plain, ahead = (timed(lambda: scheduler.run(program, chip, w, copies=c), times)
                        for w, c in ((0, 0), (window, buffers)))
        print(
            f"{program.count:14,}{plain:11.2f}s{program.count / plain / 1e6:8.2f}{ahead:15.2f}s"
            f"{program.count / ahead / 1e6:8.2f}",
            flush=True,
        )
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


def nkibench():
    "Seconds from the text of each kernel to its profile, tracing, passes and schedule included."
    from execution import ROOT, load
    from kernel_lab.nki import installed
    import numpy as np
    for path in sorted((ROOT / "kernels").glob("*.py")):
        with installed(): kernel = load(path).kernel
        reference = load(next((ROOT / "reference").glob(f"{path.stem[:-2]}_numpy*.py")))
        arrays = [
            ArraySpec(x.shape, x.dtype.name) if isinstance(x, np.ndarray) else x
            for x in reference.transform_to_nki_inputs(reference.get_inputs())]
        profile = []
        seconds = timed(lambda: profile.append(profile_of(schedule(trace(kernel, *arrays, chip="trn1")))))
        print(
            f"{path.stem[:-2]:44}{profile[0].instructions:12,} instructions{seconds:8.2f} s from source to profile,"
            f" {profile[0].latency_us:10,.0f} µs simulated",
            flush=True,
        )


if __name__ == "__main__":
    sizes(2e7 if "--ten-million" in sys.argv else 4e6)
    if "NKIBENCH" in os.environ: nkibench()
