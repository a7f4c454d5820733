"""The gallery's table: each attack, its row, what the naive harness said, how it ended in the lab and by which rule.

`python tests/attacks/table.py [row or family or name …]`"""
import sys
from collections import Counter

import naive
from arena import in_lab, lost, verdict
from gallery import ATTACKS, FAMILIES


def fooled(a, report):
    "What the naive harness said, in a few words."
    if not a.won(report): return 'not fooled'
    if report.get('died'): return report['died'][:40].replace('\n', ' ')
    return f'correct, {report["speedup"]:,.0f}× faster' if report.get('passed') and report.get(
        'speedup', 0) < 1e8 else 'correct' if report.get('passed') else 'fooled'


def main(*asked):
    chosen = [a for a in ATTACKS if not asked or {a.row, a.row[0], a.name} & set(asked)]
    reports, counts = naive.judged([a.job for a in chosen]), Counter()
    print('| row | attack | what it does | naive harness | lab | by |\n|---|---|---|---|---|---|')
    for a in chosen:
        e = in_lab(a)
        said = verdict(a, e) + ('' if lost(a, e) else ' (!)')
        counts[FAMILIES[a.row[0]], said.split(' (')[0]] += 1
        print(f'| {a.row} | {a.name} | {a.says} | {fooled(a, reports[a.name])} | {said} | {a.by} |', flush=True)
    for (family, said), n in sorted(counts.items()): print(f'{family}: {n} {said}')


if __name__ == '__main__': main(*sys.argv[1:])
