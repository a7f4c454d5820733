// What the canvases over simulated time share: words, a window of time with wheel, drag and keys, the axis and the tip. A panel's own script follows.
const LEFT = 118, RIGHT = 10
const HUES = ['#4268CD', '#6BB28D', '#D8911E', '#9A4773', '#8286AD', '#9C744A', '#2A9DA8', '#7A9A3B', '#B96AC9', '#5A7FA8', '#C07F5C', '#5B8C5A']
const clamp = (x, lo, hi) => Math.min(Math.max(x, lo), hi)
const node = (tag, cls, text) => { const n = document.createElement(tag); if (cls) n.className = cls; if (text != null) n.textContent = text; return n }
const three = v => Math.abs(v) >= 99.95 ? (v - 1e-9).toFixed(0)     // a half goes down, as in Python's even ones
   : Math.abs(v) >= 9.995 ? v.toFixed(1) : v.toFixed(2)
const time = us => { const [v, u] = Math.abs(us) >= 1000 ? [us / 1000, 'ms'] : Math.abs(us) < 0.1 && us ? [us * 1000, 'ns'] : [us, 'µs']; return `${three(v)} ${u}` }
const themed = root => { const s = getComputedStyle(root); return { font: s.fontFamily, ink: (s.getPropertyValue('--kl-ink') || '#22262d').trim(), soft: (s.getPropertyValue('--kl-soft') || '#69707b').trim() } }

// One typed array after another out of the bytes that Python sent, `n` entries each.
function columns(view, n) {
  const aligned = view.byteOffset % 8 === 0, all = aligned ? view.buffer : view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength)      // a copy where it must be aligned
  let at = aligned ? view.byteOffset : 0
  return kind => { const a = new kind(all, at, n); at += n * kind.BYTES_PER_ELEMENT; return a }
}

// A canvas of this height in CSS pixels, cleared, ready to draw in them.
function cleared(canvas, height) {
  const ratio = devicePixelRatio || 1, w = canvas.clientWidth, g = canvas.getContext('2d')
  canvas.style.height = height + 'px'
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(w * ratio); canvas.height = Math.round(height * ratio) }
  g.setTransform(ratio, 0, 0, ratio, 0, 0); g.clearRect(0, 0, w, height)
  return g
}

// `draw` in the next frame, once: after `soon()`, after the panel has another size, after the page has another theme; at once, and not again, after `now()`.
function redrawing(root, draw) {
  let frame = 0
  const soon = () => { frame ||= requestAnimationFrame(() => { frame = 0; draw() }) }
  const grown = new ResizeObserver(soon), dressed = new MutationObserver(soon)
  grown.observe(root); dressed.observe(document.body, { attributes: true })
  const now = () => { cancelAnimationFrame(frame); frame = 0; draw() }
  return { soon, now, stop() { grown.disconnect(); dressed.disconnect(); cancelAnimationFrame(frame) } }
}

// The part of the time axis that a canvas shows, in µs.
class TimeWindow {
  constructor(canvas, soon) { Object.assign(this, { canvas, soon, lo: 0, hi: 1, end: 1 }) }
  get width() { return this.canvas.clientWidth - LEFT - RIGHT }
  get said() { return this.hi - this.lo < 0.999 * this.end ? ` · ${time(this.lo)} to ${time(this.hi)}` : '' }
  x(us) { return LEFT + (us - this.lo) / (this.hi - this.lo) * this.width }
  us(px) { return this.lo + (px - LEFT) / this.width * (this.hi - this.lo) }
  whole(end = this.end) { Object.assign(this, { end, lo: 0, hi: end }); this.soon() }
  view(a, b) { const span = clamp(b - a, Math.max(this.end * 1e-7, 1e-4), this.end); this.lo = clamp(a, 0, this.end - span); this.hi = this.lo + span; this.soon() }
  zoom(factor, around = (this.lo + this.hi) / 2) { this.view(around - (around - this.lo) * factor, around + (this.hi - around) * factor) }
  pan(share) { const way = share * (this.hi - this.lo); this.view(this.lo + way, this.hi + way) }
  centre(us) { const half = (this.hi - this.lo) / 2; this.view(us - half, us + half) }
  axis(g, { font, soft }, bottom, rule) {
    const raw = (this.hi - this.lo) / Math.max(3, this.width / 110), unit = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map(m => m * unit).find(s => s >= raw)
    g.font = '11px ' + font; g.textAlign = 'center'; g.textBaseline = 'top'
    for (let n = Math.ceil(this.lo / step); n * step <= this.hi; n++) {
      if (rule) { g.fillStyle = rule; g.fillRect(this.x(n * step), 2, 1, bottom - 2) }
      g.fillStyle = soft; g.fillText(step >= 1000 ? `${+(n * step / 1000).toPrecision(9)} ms` : `${+(n * step).toPrecision(9)}`, this.x(n * step), bottom + 6)
    }
    g.fillStyle = soft; g.textAlign = 'right'; if (step < 1000) g.fillText('µs', LEFT - 12, bottom + 6)
  }
}

// Wheel, drag, click, tip and keys of a canvas. `hit(e)`: what is under the pointer, or null; `describe(found)`: its text; `click(e)`; `keys`: {key: what it does};
// `around()`: where keys zoom.
function interactive(w, root, { hit, describe, click, keys, around = () => undefined }) {
  const canvas = w.canvas, tip = root.appendChild(node('div', 'kl-tip')), px = e => e.clientX - canvas.getBoundingClientRect().left
  let drag = null
  canvas.addEventListener('wheel', e => {
    if (document.activeElement !== canvas && !e.ctrlKey && !e.metaKey && !e.shiftKey) return     // the page scrolls until a person clicks into the canvas
    e.preventDefault()
    const flat = e.deltaX || (e.shiftKey ? e.deltaY : 0)
    flat ? w.pan(flat / w.width) : w.zoom(Math.exp(clamp(e.deltaY, -240, 240) * 0.0022), w.us(px(e)))
  }, { passive: false })
  canvas.addEventListener('pointerdown', e => { canvas.focus(); drag = { x: e.clientX, lo: w.lo, hi: w.hi, moved: false, zoom: e.shiftKey }; canvas.setPointerCapture(e.pointerId) })
  canvas.addEventListener('pointermove', e => {
    if (drag) {
      const way = (e.clientX - drag.x) / w.width * (drag.hi - drag.lo)
      drag.moved ||= Math.abs(e.clientX - drag.x) > 3
      if (drag.moved && !drag.zoom) w.view(drag.lo - way, drag.hi - way)
      return
    }
    const found = hit(e)
    tip.style.display = found ? 'block' : 'none'
    if (!found) return
    tip.textContent = describe(found)
    const box = root.getBoundingClientRect()
    tip.style.left = clamp(e.clientX - box.left + 12, 0, Math.max(0, box.width - tip.offsetWidth - 4)) + 'px'
    tip.style.top = e.clientY - box.top + 16 + 'px'
  })
  canvas.addEventListener('pointerup', e => {
    const was = drag
    drag = null
    if (!was) return
    if (!was.moved) return click(e)
    if (was.zoom) w.view(...[w.us(px(e)), w.us(was.x - canvas.getBoundingClientRect().left)].sort((a, b) => a - b))
  })
  canvas.addEventListener('pointercancel', () => { drag = null })
  canvas.addEventListener('pointerleave', () => { tip.style.display = 'none' })
  canvas.addEventListener('dblclick', () => w.whole())
  const moves = { w: () => w.zoom(0.7, around()), ArrowUp: () => w.zoom(0.7, around()), s: () => w.zoom(1 / 0.7, around()), ArrowDown: () => w.zoom(1 / 0.7, around()),
    a: () => w.pan(-0.15), d: () => w.pan(0.15), ...keys }
  canvas.addEventListener('keydown', e => {
    const act = !e.ctrlKey && !e.metaKey && !e.altKey && moves[e.key]
    if (act) { act(); e.preventDefault() }
    if (act || (e.key.length === 1 && !e.ctrlKey && !e.metaKey && !e.altKey)) e.stopPropagation()    // in JupyterLab B would make a cell, X cut one
  })
}
