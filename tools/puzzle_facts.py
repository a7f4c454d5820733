"""Write kernel_lab/puzzles/facts.jsonl: what is known of the puzzles' tasks whatever the kernel, a line a puzzle.

python tools/puzzle_facts.py   (a minute; again whenever a puzzle's reference or inputs, or the changes of inputs
change)"""
import json

from kernel_lab.puzzles.ladder import PUZZLES
from kernel_lab.puzzles.puzzle import FACTS_FILE, work_out_puzzle_facts

if __name__ == "__main__":
    rows = [work_out_puzzle_facts(puzzle.task) for puzzle in PUZZLES.values()]
    FACTS_FILE.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} puzzles to {FACTS_FILE}")
