"""assets/animation.gif: the README's second picture, a small kernel in the animation that `kernel-lab profile
--animation` writes, and what the page says of it as assets/animation.txt.

A Chromium opens the exported page, the time is moved by the mouse from frame to frame, and pillow joins the frames.
Nothing is played, so no frame depends on how fast this machine is: the same Chromium with the same fonts gives the same
bytes again (`--check` draws and compares). Another Chromium or other fonts draw other letters; a test compares the
text."""
import argparse
import io
import itertools
import linecache
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
MOST_BYTES = 1_500_000
WIDTH, HEIGHT, CUT = 1120, 708, 12              # of the page in CSS pixels; what is cut off at its edges
FRAMES, FRAME_MS, LAST_MS = 72, 110, 2600
COLOURS = 96
LEFT, RIGHT = 74, 8                             # of the lanes, in CSS pixels: where time begins and ends
DRAWN = "new Promise(r => { let n = 6; const next = () => n-- ? requestAnimationFrame(next) : r(); next() })"
STOPPED = """window.moment = 0
performance.now = () => window.moment
const request = window.requestAnimationFrame.bind(window)
window.requestAnimationFrame = draw => request(() => draw(window.moment))"""    # the page's own clock, which moves dots
NAME = "product.py"
KERNEL = '''\
def half_exp_of_product(a, b):          # (256, 512), (256, 512)
    out = nl.ndarray((512, 512), dtype=a.dtype, buffer=nl.shared_hbm)
    right = nl.ndarray((128, 2, 512), dtype=b.dtype, buffer=nl.sbuf)
    for k in range(2):
        nisa.dma_copy(dst=right[:, k], src=b[k * 128:k * 128 + 128])
    for m in range(4):
        sums = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for k in range(2):
            left = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=left, src=a[k * 128:k * 128 + 128,
                                          m * 128:m * 128 + 128])
            nisa.nc_matmul(dst=sums, stationary=left, moving=right[:, k])
        tile = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
        nisa.activation(dst=tile, op=nl.exp, data=sums, scale=0.5)
        nisa.dma_copy(dst=out[m * 128:m * 128 + 128], src=tile)
    return out
'''


def animated():
    "The kernel on a simulated trn2, with the numbers that it computes."
    import numpy as np
    from kernel_lab.figures.animation.animate import animate
    from kernel_lab.nki import isa, language, profile
    linecache.cache[NAME] = len(KERNEL), None, KERNEL.splitlines(True), NAME
    names = {"nisa": isa, "nl": language}
    exec(compile(KERNEL, NAME, "exec"), names)
    draw = np.random.default_rng(0).standard_normal
    inputs = [draw((256, 512), np.float32) / 16 for _ in range(2)]
    return animate(profile(names["half_exp_of_product"], *inputs).timeline, *inputs)


def said(animation) -> str:
    "What the picture shows, as plain text: whether the stored one is still true."
    t = animation.timeline
    return f"{float(t.latency_us):.1f} µs simulated on {t.chip.name}\n{len(t)} instructions\n"


def moments(animation) -> list[float]:
    "The times of the frames, in µs: from shortly before the first instruction to the end."
    t = animation.timeline
    first, last = max(float(t.start_us.min()) - 0.5, 0), float(t.end_us.max())
    return [first + (last - first) * k / (FRAMES - 1) for k in range(FRAMES)]


def frames(animation) -> list:
    "The frames as pictures of the exported page."
    from PIL import Image
    from chromium import launched
    from kernel_lab.figures.animation.animate import write_animation
    shots = []
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        write_animation(animation, [], Path(folder) / "page.html")
        page = browser.new_page(viewport=dict(width=WIDTH, height=HEIGHT + 400), color_scheme="light",
                                reduced_motion="reduce")
        page.add_init_script(STOPPED)
        page.goto((Path(folder) / "page.html").as_uri())
        page.wait_for_function("window.player && window.player.clock")
        page.evaluate("document.querySelector('.kl-an-source')?.scrollTo(0, 0)")
        box = page.locator(".kl-an-lanes").bounding_box()
        for k, us in enumerate(moments(animation)):
            share = page.evaluate("us => window.player.clock.at(us) / window.player.clock.length", us)
            page.mouse.move(box["x"] + LEFT + (box["width"] - LEFT - RIGHT) * share, box["y"] + box["height"] / 2)
            if k == 0: page.mouse.down()
            page.evaluate("ms => { window.moment = ms }", k * FRAME_MS)
            page.evaluate(DRAWN)
            shots.append(Image.open(io.BytesIO(page.screenshot(clip=dict(
                x=CUT, y=CUT, width=WIDTH - 2 * CUT, height=HEIGHT)))).convert("RGB"))
        page.mouse.up()
    return shots


def gif(shots: list) -> bytes:
    """An animated GIF with one palette for all frames, without dithering; a frame holds what changed, and the last one
    stays for a while."""
    import numpy as np
    from PIL import Image
    sheet = Image.new("RGB", (shots[0].width, shots[0].height * 4))
    for k in range(4): sheet.paste(shots[(len(shots) - 1) * k // 3], (0, k * shots[0].height))
    palette = sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    plain = [np.asarray(s.quantize(palette=palette, dither=Image.Dither.NONE)) for s in shots]
    parts = [Image.fromarray(plain[0])]
    for old, new in itertools.pairwise(plain):
        parts.append(Image.fromarray(np.where(old == new, np.uint8(COLOURS), new)))
    for p in parts: p.putpalette(palette.getpalette()[:3 * COLOURS] + [255, 0, 255])
    out = io.BytesIO()
    parts[0].save(out, "GIF", save_all=True, append_images=parts[1:], loop=0, optimize=False, disposal=1,
                  transparency=COLOURS, duration=[FRAME_MS] * (len(parts) - 1) + [LAST_MS])
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the bytes are others")
    path, animation = ROOT / "assets" / "animation.gif", animated()
    is_check = parser.parse_args().check
    data = gif(frames(animation))
    if len(data) > MOST_BYTES: sys.exit(f"{len(data):,} bytes are more than {MOST_BYTES:,}")
    if is_check: sys.exit(0 if path.read_bytes() == data else f"{path.name} is not what this machine draws")
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(said(animation), encoding="utf-8")
    print(path.relative_to(ROOT), len(data) // 1024, "KiB")


if __name__ == "__main__": main()
