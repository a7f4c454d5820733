"""Published pairs of kernels, before and after one change, by today's clock: `python benchmarks/pairs.py ROWS.csv
CHECKOUTS [--write]`.

ROWS.csv holds the published latencies that `kernel-lab calibrate` reads, CHECKOUTS the repositories of their kernels,
whose code is run. Prints a line for each pair; with --write, the table that the lab keeps is written anew."""
import argparse
from pathlib import Path
import kernel_lab.nki.validate as validate
from kernel_lab.nki.validate.published import read_rows
from kernel_lab.nki.validate.published_pairs import published_pairs, simulated_again, write_pairs

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("rows")
parser.add_argument("checkouts")
parser.add_argument("--write", action="store_true")
given = parser.parse_args()

pairs = simulated_again(list(published_pairs()), read_rows(given.rows), [given.checkouts])
print(f"{'family':26} {'measured':>9} {'simulated':>9}  × as fast")
for p in pairs:
    print(f"{p.family:26} {p.measured_gain:9.2f} {p.simulated_gain:9.2f}  {p.verdict:17}  {p.change}")
if given.write: write_pairs(pairs, Path(validate.__path__[0], "published_pairs.csv"))
