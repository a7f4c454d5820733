"""Build the figures of FIGURES.toml and set paper.typ as paper.pdf: `python paper/make.py`.

Needs a Chromium for the figures and `pip install "kernel-lab[images,paper]"` (the typesetter is a wheel; no LaTeX)."""
import sys
from pathlib import Path

HERE = Path(__file__).parent


def figures() -> bool:
    "Build the set; print what could not be built."
    from kernel_lab.cli.figures.command import build_lines
    good = True
    for line, is_good in build_lines(HERE / "FIGURES.toml"):
        print(line)
        good = good and is_good
    return good


def pdf(target: Path = HERE / "paper.pdf") -> Path:
    "Set the paper; only the fonts that come with the typesetter are used, so that it looks the same everywhere."
    import typst
    typst.compile(str(HERE / "paper.typ"), output=str(target), root=str(HERE), ignore_system_fonts=True)
    return target


if __name__ == "__main__":
    from kernel_lab.core.errors import LabError
    try: good = figures()
    except LabError as e: sys.exit(f"paper/make.py: {e}")
    try: print(pdf())
    except ImportError: sys.exit('paper/make.py: the typesetter is missing: pip install "kernel-lab[paper]" brings it.')
    sys.exit(not good)
