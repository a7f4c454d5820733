// A NeuronCore at work: HBM, SBUF, PSUM and the engines over simulated time, with the line of source that is at work. One file for the
// stand-alone page (`play`) and for the panel in a notebook (the default export). Everything that is drawn is in the packed animation
// (kernel_lab/figures/animation.py: `pack`); nothing is asked of a network or a kernel.
const clamp = (x, lo, hi) => Math.min(Math.max(x, lo), hi)
const ease = x => x < 0.5 ? 4 * x * x * x : 1 - (-2 * x + 2) ** 3 / 2
const node = (tag, cls, text, more = {}) => {
  const n = document.createElement(tag)
  if (cls) n.className = cls
  if (text != null) n.textContent = text
  for (const [k, v] of Object.entries(more)) n.setAttribute(k, v)
  return n
}
const digits = x => Math.abs(x) >= 99.95 || x === 0 ? x.toFixed(0) : Math.abs(x) >= 9.995 ? x.toFixed(1) : x.toFixed(2)
const time = us => us >= 1000 ? `${digits(us / 1000)} ms` : us > 0 && us < 0.1 ? `${digits(us * 1000)} ns` : `${digits(us)} µs`
const size = n => n < 1024 ? `${n} B` : n < 2 ** 20 ? `${+(n / 1024).toPrecision(3)} KiB` : `${+(n / 2 ** 20).toPrecision(3)} MiB`
const count = n => n.toLocaleString('en')
const number = x => Number.isNaN(x) ? 'NaN' : !Number.isFinite(x) ? (x > 0 ? '∞' : '−∞') : (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5) ? x.toExponential(2) : String(+x.toPrecision(4))).replace('-', '−')
// Buttons carry drawings of their own: fonts differ in what they have.
const ICONS = { start: 'M3 2h2v12H3zM14 2v12L6 8z', back: 'M3 2h2v12H3zM13 2v12L6 8z', play: 'M4 2v12l9-6z', pause: 'M4 2h3v12H4zM9 2h3v12H9z', forth: 'M11 2h2v12h-2zM3 2v12l7-6z', theme: 'M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1zm0 2v10A5 5 0 0 1 8 3z' }
function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg'), path = document.createElementNS('http://www.w3.org/2000/svg', 'path')
  for (const [k, v] of Object.entries({ viewBox: '0 0 16 16', width: 14, height: 14, 'aria-hidden': 'true' })) svg.setAttribute(k, v)
  path.setAttribute('d', ICONS[name]); path.setAttribute('fill', 'currentColor'); svg.append(path)
  return svg
}
const UNWRITTEN = 0xFFC0DEAD
const OWN = 'kl-an'

// --- reading -------------------------------------------------------------------------------------------------------------------------

async function inflated(bytes) {
  if (typeof DecompressionStream === 'undefined') throw new Error('This browser is too old for the animation: it cannot decompress (all of 2023 and later can).')
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).arrayBuffer()
}

const KINDS = { '<i4': Int32Array, 'u1': Uint8Array, 'i1': Int8Array, '<f4': Float32Array, '<u4': Uint32Array }

function parsed(buffer) {
  const text = (from, to) => new TextDecoder().decode(new Uint8Array(buffer, from, to - from))
  const length = parseInt(text(0, 8), 16), head = JSON.parse(text(8, 8 + length)), columns = {}
  const body = buffer.slice(8 + length)
  let at = 0
  for (const [name, kind, n] of head.columns) {
    columns[name] = new KINDS[kind](body, at, n)
    at += Math.ceil(columns[name].byteLength / 4) * 4
  }
  return [head, columns]
}

const summed = x => { const y = new Float64Array(x.length); let s = 0; for (let k = 0; k < x.length; k++) y[k] = s += x[k]; return y }
function summedBy(x, group) {                   // differences to the entry before in the same group
  const y = new Float64Array(x.length), last = new Map()
  for (let k = 0; k < x.length; k++) { y[k] = x[k] + (last.get(group[k]) ?? 0); last.set(group[k], y[k]) }
  return y
}

// The animation as arrays: rows (instructions as they ran), entries (their operands), values (lives of tiles), clocks.
function opened(buffer) {
  const [head, c] = parsed(buffer), n = head.rows, instr = summed(c.instr), turn = summedBy(c.turn, instr)
  const first = new Int32Array(n + 1)
  for (let r = 0; r < n; r++) first[r + 1] = first[r] + head.instructions[instr[r]].operands.length
  const count = first[n], group = new Float64Array(count), row = new Int32Array(count), write = new Int32Array(count).fill(-1)
  let writes = 0
  for (let r = 0; r < n; r++) head.instructions[instr[r]].operands.forEach((o, k) => {
    const e = first[r] + k
    group[e] = instr[r] * 64 + k; row[e] = r
    if (o.writes) write[e] = writes++
  })
  const a = { head, n, instr, turn, lane: c.lane, core: c.rowcore, first, row, write, side: head.side, least: c.least, greatest: c.greatest, nans: c.nans, samples: c.samples,
    floats: c.samples && new Float32Array(c.samples.buffer, c.samples.byteOffset, c.samples.length) }
  let map = null
  a.clocks = head.clocks.map((k, i) => {
    if (k.tensors) map = readMap(a, k, summedBy(c[`value${i}`], group), summedBy(c[`offset${i}`], group), summed(c[`tensor${i}`]), c[`partition${i}`], c[`core${i}`])
    else map = a.base
    a.base ??= map
    return readClock(a, k, map, i, c)
  })
  a.nan = a.nans ? [...Array(count).keys()].find(e => write[e] >= 0 && a.nans[write[e]] > 0) : undefined
  a.nan = a.nan === undefined ? -1 : row[a.nan]
  return a
}

function readMap(a, k, value, offset, tensor, partition, core) {
  const m = { tensors: k.tensors, operands: k.operands, value, offset, tensor, partition, core, entries: Array.from(tensor, () => []) }
  for (let e = 0; e < value.length; e++) m.entries[value[e]].push(e)
  return m
}

function readClock(a, k, map, i, c) {
  const start = summedBy(c[`start${i}`], a.instr), end = summedBy(c[`dur${i}`], a.instr), n = a.n
  for (let r = 0; r < n; r++) { start[r] /= k.ticks; end[r] = start[r] + end[r] / k.ticks }
  const values = map.tensor.length, begin = new Float64Array(values).fill(Infinity), last = new Float64Array(values).fill(-Infinity)
  for (let e = 0; e < map.value.length; e++) {
    const v = map.value[e], r = a.row[e]
    if (start[r] < begin[v]) begin[v] = start[r]
    if (end[r] > last[v]) last[v] = end[r]
  }
  const address = summed(c[`address${i}`]), bytes = summed(c[`bytes${i}`])
  let at = 0
  const pieces = Array.from(c[`pieces${i}`], m => { const p = []; for (let j = 0; j < m; j++, at++) p.push([address[at], bytes[at]]); return p })
  const clock = { ...k, map, start, end, begin, last, pieces, after: c[`after${i}`], cause: c[`cause${i}`], high: 0 }
  pieces.forEach((p, v) => { if (map.tensors[map.tensor[v]].buffer === 'sbuf') for (const [at, b] of p) clock.high = Math.max(clock.high, at + b) })
  clock.order = Int32Array.from({ length: n }, (_, r) => r).sort((x, y) => end[x] - end[y] || x - y)
  clock.begins = start.reduce((x, y) => Math.min(x, y), k.latency); clock.ends = end.reduce((x, y) => Math.max(x, y), 0)
  clock.place = new Int32Array(n)
  clock.order.forEach((r, p) => { clock.place[r] = p })
  addScale(clock)
  clock.rows = buckets(start, end, clock.latency)
  clock.alive = buckets(begin, last, clock.latency)
  return clock
}

// What is folded takes little room: `at` is time as it is drawn, `when` its inverse; `length` of the whole.
function addScale(clock) {
  const spans = clock.folded, kept = clock.latency - spans.reduce((s, [a, b]) => s + b - a, 0), room = spans.length ? Math.max(kept * 0.12 / spans.length, kept * 0.004) : 0
  const from = [0], to = [0]
  for (const [a, b] of spans) {
    const before = to[to.length - 1] + a - from[from.length - 1]
    from.push(a, b); to.push(before, before + room)
  }
  from.push(clock.latency); to.push(to[to.length - 1] + clock.latency - from[from.length - 2])
  const turned = (x, y) => v => {
    let lo = 0, hi = x.length - 2
    while (lo < hi) { const m = (lo + hi + 1) >> 1; if (x[m] <= v) lo = m; else hi = m - 1 }
    const w = x[lo + 1] - x[lo]
    return w > 0 ? y[lo] + (v - x[lo]) / w * (y[lo + 1] - y[lo]) : y[lo]
  }
  clock.at = turned(from, to); clock.when = turned(to, from); clock.length = to[to.length - 1]
}

// For each of some windows of time what overlaps it, so that a moment is found without a walk over everything.
function buckets(start, end, latency) {
  const m = clamp(Math.ceil(start.length / 4), 1, 2048), lists = Array.from({ length: m + 1 }, () => []), step = latency / m || 1
  for (let k = 0; k < start.length; k++) for (let b = Math.floor(start[k] / step), z = Math.floor(Math.min(end[k] + FADE * latency, latency) / step); b <= z; b++) lists[b]?.push(k)
  return t => lists[clamp(Math.floor(t / step), 0, m)]
}
const FADE = 0.006                              // of the latency: how long a tile that is free again stays visible, paler and paler

// --- what an instruction touches -------------------------------------------------------------------------------------------------------

// The part of a tile that an entry touches, as a box of rows and bytes: [first row, last row, first byte, last byte].
function boxOf(a, map, e) {
  const r = a.row[e], k = e - a.first[r], o = a.head.instructions[a.instr[r]].operands[k], t = map.tensors[map.operands[a.instr[r]][k]]
  const base = map.tensors[map.tensor[map.value[e]]], w = t.columns, at = map.offset[e]
  let lo = 0, hi = 0, r0 = Math.floor(at / w), r1 = r0, c0 = at - r0 * w, c1 = c0
  for (const [s, n] of o.ap) {
    const d = s * (n - 1), rows = Math.abs(d) >= w ? Math.round(s / w) * (n - 1) : 0, cols = d - rows * w
    lo += Math.min(0, d); hi += Math.max(0, d); r0 += Math.min(0, rows); r1 += Math.max(0, rows); c0 += Math.min(0, cols); c1 += Math.max(0, cols)
  }
  if (o.indexed) return [0, base.rows - 1, 0, base.columns * base.item - 1]
  if (c1 >= w) { r1 += Math.floor(c1 / w); c0 = 0; c1 = w - 1 }
  if (t !== base && (t.columns * t.item !== base.columns * base.item)) {       // another shape of the same memory
    const row = base.columns * base.item
    return [clamp(Math.floor((at + lo) * t.item / row), 0, base.rows - 1), clamp(Math.floor((at + hi) * t.item / row), 0, base.rows - 1), 0, row - 1]
  }
  return [clamp(r0, 0, base.rows - 1), clamp(r1, 0, base.rows - 1), Math.max(0, c0) * t.item, Math.min((Math.min(c1, w - 1) + 1) * t.item, base.columns * base.item) - 1]
}

// Whether an access pattern reaches an element, `rel` after its first.
function reaches(ap, rel) {
  const axes = [...ap].filter(([s, n]) => s && n > 1).sort((x, y) => Math.abs(y[0]) - Math.abs(x[0]))
  const low = Array(axes.length + 1).fill(0), high = Array(axes.length + 1).fill(0)
  for (let k = axes.length - 1; k >= 0; k--) {
    const d = axes[k][0] * (axes[k][1] - 1)
    low[k] = low[k + 1] + Math.min(0, d); high[k] = high[k + 1] + Math.max(0, d)
  }
  const from = (k, left) => {
    if (k === axes.length) return left === 0
    const [s, n] = axes[k], ends = [(left - high[k + 1]) / s, (left - low[k + 1]) / s].sort((x, y) => x - y)
    for (let j = Math.max(0, Math.ceil(ends[0])), z = Math.min(n - 1, Math.floor(ends[1])); j <= z; j++) if (from(k + 1, left - j * s)) return true
    return false
  }
  return from(0, rel)
}

function touches(a, map, e, byte) {
  const r = a.row[e], k = e - a.first[r], o = a.head.instructions[a.instr[r]].operands[k]
  if (o.indexed) return true
  return reaches(o.ap, Math.floor(byte / map.tensors[map.operands[a.instr[r]][k]].item) - map.offset[e])
}

// Who wrote a byte of a value last before a moment (and before row `until`), and who reads it next: rows, or -1. `sure` is false where a mask or an index decides.
function provenance(a, clock, v, byte, t, until = Infinity) {
  const { map } = clock, found = { writer: -1, reader: -1, readers: 0, sure: true }
  for (const e of map.entries[v]) {
    const r = a.row[e]
    if (a.write[e] < 0 || r >= until || clock.start[r] > t || !touches(a, map, e, byte)) continue
    found.writer = r
    found.sure = !a.head.instructions[a.instr[r]].masked && !a.head.instructions[a.instr[r]].operands[e - a.first[r]].indexed
  }
  for (const e of map.entries[v]) {
    const r = a.row[e]
    if (r <= found.writer && found.writer >= 0 || !touches(a, map, e, byte)) continue
    if (a.write[e] >= 0) break
    found.readers++
    if (found.reader < 0 && clock.end[r] > t) found.reader = r
  }
  return found
}

// The samples of a value at a moment: {bits, floats, from, side} or null. Those of the last write that has ended.
function samplesAt(a, clock, v, t) {
  const { map } = clock, k = map.tensor[v]
  let last = -1
  for (const e of map.entries[v]) if (a.write[e] >= 0 && clock.end[a.row[e]] <= t) last = e
  if (last >= 0 && a.side) { const n = a.side * a.side; return { bits: a.samples, floats: a.floats, from: a.write[last] * n, side: a.side, entry: last } }
  const given = last < 0 && map.tensors[k].samples
  if (!given) return null
  const bits = Uint32Array.from(given)
  return { bits, floats: new Float32Array(bits.buffer), from: 0, side: 8, entry: -1 }
}

function turnText(a, r) {
  let turn = a.turn[r]
  const out = []
  for (const [name, trips] of [...a.head.instructions[a.instr[r]].loops].reverse()) { if (trips > 1) out.unshift(`${name}=${turn % trips}`); turn = Math.floor(turn / trips) }
  return out.join(' ')
}

// --- colours ---------------------------------------------------------------------------------------------------------------------------

const rgb = text => (text.match(/[\d.]+/g) ?? [0, 0, 0]).slice(0, 4).map(Number)
const hex = text => [1, 3, 5].map(k => parseInt(text.slice(k, k + 2), 16))
const mix = (x, y, share) => `rgb(${[0, 1, 2].map(k => Math.round(x[k] * share + y[k] * (1 - share))).join(',')})`
const faint = (x, alpha) => `rgba(${x[0]},${x[1]},${x[2]},${alpha})`

function paletteOf(root, lanes) {
  const style = getComputedStyle(root), paper = rgb(style.backgroundColor), ink = rgb(style.color), soft = rgb(getComputedStyle(root.querySelector('.kl-an-quiet')).color)
  return { paper, ink, soft, lanes: lanes.map(l => hex(l.colour)), font: style.fontFamily, mono: getComputedStyle(root.querySelector('.kl-an-code')).fontFamily }
}

// --- the stage -------------------------------------------------------------------------------------------------------------------------

function geometryOf(width, height) {
  const top = 46, foot = 122, hbm = clamp(width * 0.19, 70, 176), gap = clamp(width * 0.1, 36, 104), psum = clamp(width * 0.2, 64, 184), between = clamp(width * 0.05, 14, 26)
  return { width, height, top, mem: height - top - foot, hbm, psum: { x: width - psum - 1, w: psum }, sbuf: { x: hbm + gap, w: width - hbm - gap - between - psum - 1 }, pills: height - 46, pill: 44 }
}

// HBM tensors as blocks under each other: inputs, what lies between, outputs; as high as the logarithm of their bytes. Small room: the rest as one.
function blocksOf(a, map, g) {
  const used = new Set(map.tensor), rank = t => t.role === 'input' ? 0 : t.role === 'output' ? 2 : 1
  const moved = new Float64Array(map.tensors.length)
  for (let e = 0; e < map.value.length; e++) { const k = map.tensor[map.value[e]]; if (map.tensors[k].buffer === 'hbm') moved[k] += map.tensors[k].item * a.head.instructions[a.instr[a.row[e]]].operands[e - a.first[a.row[e]]].ap.reduce((n, x) => n * x[1], 1) }
  let all = map.tensors.map((t, k) => ({ t, k })).filter(({ t, k }) => t.buffer === 'hbm' && used.has(k)), rest = []
  const most = Math.max(3, Math.floor(g.mem / 23))
  if (all.length > most) { all.sort((x, y) => moved[y.k] - moved[x.k]); rest = all.splice(most - 1) }
  all.sort((x, y) => rank(x.t) - rank(y.t) || x.k - y.k)
  const n = all.length + (rest.length ? 1 : 0), room = g.mem - 6 * (n - 1), weight = all.map(({ t }) => 1 + Math.log2(1 + t.rows * t.columns * t.item / 1024))
  let heights = weight.map(w => w * Math.min(room / weight.reduce((x, y) => x + y, 0), 26))
  if (rest.length || Math.min(...heights) < 17) heights = heights.map(() => Math.min(room / n, 96))
  const blocks = new Map()
  let y = g.top
  all.forEach(({ t, k }, i) => { blocks.set(k, { t, x: 1, y, w: g.hbm - 2, h: heights[i] }); y += heights[i] + 6 })
  for (const { t, k } of rest) blocks.set(k, { t, x: 1, y, w: g.hbm - 2, h: heights[0], rest: rest.length })
  return blocks
}

export function mount(root, { heading = true } = {}) {
  root.classList.add(OWN)
  let a = null, clock = null, g = null, blocks = null, cells = null, pal = null, t = 0, playing = false, speed = 1, chosen = -1, pinned = null, hover = null, core = 0, frame = 0, before = 0
  let move = null, morph = null, view = null, cached = '', image = null, lastLines = '', lastInfo = '', lineNodes = [], high = 1, closed = false
  const still = matchMedia('(prefers-reduced-motion: reduce)')

  // the parts of the page
  const button = (face, name, cls = '') => { const b = node('button', cls, null, { type: 'button', 'aria-label': name, title: name }); b.append(ICONS[face] ? icon(face) : face); return b }
  const head = node('header', 'kl-an-head'), titles = node('div', 'kl-an-titles'), title = node('h1', 'kl-an-title'), quiet = node('div', 'kl-an-quiet'), whatif = node('div', 'kl-an-whatif', null, { role: 'group', 'aria-label': 'What if' })
  const stage = node('canvas', 'kl-an-stage', null, { role: 'img', tabindex: -1 }), lanes = node('canvas', 'kl-an-lanes', null, { role: 'slider', tabindex: 0, 'aria-label': 'Simulated time', 'aria-valuemin': 0 })
  const bar = node('div', 'kl-an-bar', null, { role: 'group', 'aria-label': 'Playback' }), clockText = node('span', 'kl-an-clock'), source = node('div', 'kl-an-code', null, { tabindex: 0, role: 'region', 'aria-label': 'Source of the kernel' })
  const info = node('div', 'kl-an-info', null, { tabindex: 0, role: 'region', 'aria-label': 'The instruction and the byte that are looked at' }), tip = node('div', 'kl-an-tip'), notes = node('details', 'kl-an-notes'), left = node('div', 'kl-an-left'), right = node('div', 'kl-an-right')
  const toStart = button('start', 'To the start (Home)'), back = button('back', 'One instruction back (←)'), run = button('play', 'Play (Space)', 'kl-an-run'), forth = button('forth', 'One instruction forward (→)'), toNan = button('First NaN', 'Go to the first NaN (N)')
  const rate = node('select', '', null, { 'aria-label': 'Speed' }), which = node('select', '', null, { 'aria-label': 'Core' }), theme = button('theme', 'Light or dark')
  for (const x of [0.1, 0.25, 0.5, 1, 2, 4]) { const o = node('option', '', `${x}×`, { value: x }); if (x === 1) o.selected = true; rate.append(o) }
  titles.append(title, quiet); head.append(titles, whatif); bar.append(toStart, back, run, forth, clockText, node('span', 'kl-an-space'), which, toNan, rate)
  if (heading) bar.append(theme)
  left.append(stage, lanes, bar); right.append(source, info)
  const body = node('div', 'kl-an-body'); body.append(left, right); root.replaceChildren(head, body, notes, tip)

  const soon = () => { if (!frame && !closed) frame = requestAnimationFrame(tick) }
  const end = () => clock.length, shown = () => clock.at(t)

  // ----- time
  function tick(now) {
    frame = 0
    if (closed || !a) return
    const passed = Math.min(now - before, 100)
    before = now
    if (move) {
      const x = still.matches ? 1 : clamp((now - move.began) / move.ms, 0, 1)
      t = move.from + (move.to - move.from) * ease(x)
      if (x >= 1) { t = move.to; move = null }
    } else if (playing) {
      const calm = t < clock.begins || t >= clock.ends ? 5 : 1          // what the launch and the end take passes quickly
      const s = shown() + passed / 1000 * speed * calm * end() / seconds()
      t = clock.when(Math.min(s, end()))
      if (s >= end()) { t = clock.latency; pause() }
    }
    if (morph && now - morph.began > morph.ms) morph = null
    draw(now)
    if (move || playing || morph || high !== wanted()) soon()
  }
  const seconds = () => clamp(6 + a.n * 0.05, 8, 26)
  function go(to, ms = 240) {
    pauseQuietly()
    move = { from: t, to: clamp(to, 0, clock.latency), began: performance.now(), ms }
    soon()
  }
  function pauseQuietly() { playing = false; sayRun() }
  function pause() { pauseQuietly(); soon() }
  function start() {
    if (t >= clock.latency) t = 0
    chosen = -1; playing = true; move = null; before = performance.now(); sayRun(); soon()
  }
  function sayRun() {
    run.replaceChildren(icon(playing ? 'pause' : 'play'))
    for (const k of ['aria-label', 'title']) run.setAttribute(k, playing ? 'Pause (Space)' : 'Play (Space)')
  }
  const momentOf = r => clock.end[r] - (clock.end[r] - clock.start[r]) * 1e-4      // it has just done its work, and is still shown at work
  function look(r) { chosen = r; info.setAttribute('aria-live', 'polite'); go(momentOf(r)) }
  const now = () => move ? move.to : t
  function step(by) {
    let p
    if (chosen >= 0) p = clock.place[chosen] + by
    else {                                                            // the first that ends after now, or the last that has ended
      let lo = 0, hi = a.n
      while (lo < hi) { const m = (lo + hi) >> 1; if (clock.end[clock.order[m]] > now()) hi = m; else lo = m + 1 }
      p = by > 0 ? lo : lo - 1
    }
    if (p < 0) { chosen = -1; return go(0) }
    if (p >= a.n) { chosen = -1; return go(clock.latency) }
    look(clock.order[p])
  }
  function change(k) {                                                // another clock: the same instruction, as far as it was
    if (a.clocks[k] === clock) return
    const old = clock, place = a.clocks[k], r = chosen >= 0 ? chosen : mainRow()
    const share = r >= 0 ? clamp((t - old.start[r]) / (old.end[r] - old.start[r] || 1), 0, 1) : t / old.latency
    morph = { from: old, began: performance.now(), ms: still.matches ? 0 : 620 }
    clock = place; move = null; pinned = null
    t = r >= 0 ? clock.start[r] + share * (clock.end[r] - clock.start[r]) : share * clock.latency
    view = null; layout(); saySpeed(k); soon()
  }
  function saySpeed(k) {
    [...whatif.querySelectorAll('button')].forEach((b, i) => b.setAttribute('aria-pressed', i === k))
    const base = a.clocks[0].latency, gain = base / clock.latency
    quiet.textContent = k ? `${time(clock.latency)} simulated on ${clock.chip}: ${gain >= 1 ? `${gain.toFixed(2)}× as fast` : `${(1 / gain).toFixed(2)}× as long`} · ${clock.says}` : `${count(a.head.count)} instructions${a.n < a.head.count ? `, ${count(a.n)} of them shown` : ''} · every time here is simulated`
  }

  // ----- what is at work
  function activeRows(at) { return clock.rows(at).filter(r => clock.start[r] <= at && at < clock.end[r]) }
  function mainRow() { let best = -1; for (const r of activeRows(t)) if (best < 0 || clock.start[r] > clock.start[best]) best = r; return best }

  // ----- layout
  function fit(canvas, height) {
    const ratio = devicePixelRatio || 1, w = canvas.clientWidth
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(w * ratio); canvas.height = Math.round(height * ratio) }
    const ctx = canvas.getContext('2d')
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
    ctx.clearRect(0, 0, w, height)
    return ctx
  }
  const wanted = () => Math.max(1024, clock.high)
  function layout() {
    if (!a || !stage.clientWidth) return
    g = geometryOf(stage.clientWidth, stage.clientHeight)
    if (g.sbuf.w < 40 || g.mem < 40) { g = null; return }                 // no room for a picture
    blocks = blocksOf(a, clock.map, g)
    pal = paletteOf(root, a.head.lanes)
    cells = hbmCells()
    cached = ''
  }
  // When each part of an HBM tensor is first written: a grid over its block, so that a moment is drawn without a walk over all writes.
  function hbmCells() {
    const { map } = clock, found = new Map(), columns = 24
    map.tensor.forEach((k, v) => {
      const block = blocks.get(k)
      if (!block || block.t.role === 'input' || block.rest) return
      const rows = Math.max(1, Math.round(block.h / 2)), when = new Float64Array(rows * columns).fill(Infinity), width = block.t.columns * block.t.item
      for (const e of map.entries[v]) {
        if (a.write[e] < 0) continue
        const [r0, r1, b0, b1] = boxOf(a, map, e), done = clock.end[a.row[e]], start = clock.start[a.row[e]]
        const y0 = Math.floor(r0 / block.t.rows * rows), y1 = Math.max(y0 + 1, Math.floor((r1 + 1) / block.t.rows * rows)), x0 = Math.floor(b0 / width * columns), x1 = Math.max(x0 + 1, Math.floor((b1 + 1) / width * columns))
        for (let y = y0; y < y1; y++) for (let x = x0; x < x1; x++) when[y * columns + x] = Math.min(when[y * columns + x], start + (done - start) * (y1 - y0 > 1 ? (y - y0 + 1) / (y1 - y0) : 1))
      }
      found.set(k, { when, rows, columns })
    })
    return found
  }

  // The rectangles of a part of a value on the stage; several where it lies in pieces or in several banks.
  function rectsOf(v, [r0, r1, b0, b1]) {
    const tensor = clock.map.tensors[clock.map.tensor[v]], tall = g.mem / a.head.partitions
    if (tensor.buffer === 'hbm') {
      const b = blocks.get(clock.map.tensor[v])
      if (!b) return []
      if (b.rest) return [{ x: b.x, y: b.y, w: b.w, h: b.h, kind: 'hbm' }]
      const w = tensor.columns * tensor.item, y0 = b.y + r0 / tensor.rows * b.h, y1 = b.y + (r1 + 1) / tensor.rows * b.h
      return [{ x: b.x + b0 / w * b.w, y: y0, w: Math.max(1.5, (b1 + 1 - b0) / w * b.w), h: Math.max(1.5, y1 - y0), kind: 'hbm' }]
    }
    const y = g.top + (clock.map.partition[v] + r0) * tall, h = Math.max(1.5, (r1 + 1 - r0) * tall), out = []
    let at = 0
    for (const [address, bytes] of clock.pieces[v]) {
      const lo = Math.max(b0, at), hi = Math.min(b1 + 1, at + bytes)
      if (hi > lo) {
        if (tensor.buffer === 'sbuf') { const k = g.sbuf.w / high; out.push({ x: g.sbuf.x + (address + lo - at) * k, y, w: Math.max(1.5, (hi - lo) * k), h, kind: 'sbuf' }) }
        else for (let p = address + lo - at; p < address + hi - at;) {
          const bank = Math.floor(p / a.head.bank), stop = Math.min((bank + 1) * a.head.bank, address + hi - at), x = bankX(bank), k = x.w / a.head.bank
          out.push({ x: x.x + (p - bank * a.head.bank) * k, y, w: Math.max(1.5, (stop - p) * k), h, kind: 'psum' })
          p = stop
        }
      }
      at += bytes
    }
    return out
  }
  function bankX(bank) { const n = a.head.banks, w = (g.psum.w - 4 * (n - 1)) / n; return { x: g.psum.x + bank * (w + 4), w } }
  const whole = v => { const x = clock.map.tensors[clock.map.tensor[v]]; return [0, x.rows - 1, 0, x.columns * x.item - 1] }
  const joined = rects => rects.length ? rects.reduce((p, q) => ({ x: Math.min(p.x, q.x), y: Math.min(p.y, q.y), w: Math.max(p.x + p.w, q.x + q.w) - Math.min(p.x, q.x), h: Math.max(p.y + p.h, q.y + q.h) - Math.min(p.y, q.y), kind: p.kind })) : null

  // ----- drawing
  function text(ctx, s, x, y, colour, font, align = 'left', most = Infinity) {
    ctx.font = font; ctx.fillStyle = colour; ctx.textAlign = align; ctx.textBaseline = 'middle'
    if (most < Infinity && ctx.measureText(s).width > most) { while (s.length > 1 && ctx.measureText(s + '…').width > most) s = s.slice(0, -1); s += '…' }
    ctx.fillText(s, x, y)
  }
  const fitting = (ctx, says, font, most) => { ctx.font = font; return says.find(s => ctx.measureText(s).width <= most) ?? says.at(-1) }      // the first that has room
  const ui = (px, weight = '') => `${weight} ${px}px ${pal.font}`
  function box(ctx, x, y, w, h, r, fill, stroke) {
    ctx.beginPath(); ctx.roundRect(x, y, w, h, Math.min(r, w / 2, h / 2))
    if (fill) { ctx.fillStyle = fill; ctx.fill() }
    if (stroke) { ctx.strokeStyle = stroke; ctx.lineWidth = 1; ctx.stroke() }
  }
  function draw(nowMs) {
    if (!g || !pal) layout()
    if (!g) return
    high = still.matches || Math.abs(high - wanted()) < 8 ? wanted() : high + (wanted() - high) * 0.18
    const rows = activeRows(t)
    drawStage(rows, nowMs)
    drawLanes()
    sayLines(rows)
    sayInfo()
    const full = a.clocks[0] === clock ? clock.latency : Math.max(clock.latency, t)
    clockText.textContent = `${t >= 1000 ? (t / 1000).toFixed(3) + ' ms' : t.toFixed(2) + ' µs'} of ${time(full)}`
    lanes.setAttribute('aria-valuemax', clock.latency.toFixed(3)); lanes.setAttribute('aria-valuenow', t.toFixed(3)); lanes.setAttribute('aria-valuetext', `${clockText.textContent}, simulated`)
    root.dataset.t = t; root.dataset.row = chosen
  }
  function drawStage(rows, nowMs) {
    const ctx = fit(stage, g.height), ink = faint(pal.ink, 1), soft = faint(pal.soft, 1), line = faint(pal.soft, 0.28), well = faint(pal.soft, 0.07)
    // memories
    text(ctx, 'HBM', 1, 14, ink, ui(13, 600)); text(ctx, `${blocks.size} ${blocks.size === 1 ? 'tensor' : 'tensors'}`, 1, 32, soft, ui(12)); text(ctx, 'SBUF', g.sbuf.x, 14, ink, ui(13, 600)); text(ctx, 'PSUM', g.psum.x, 14, ink, ui(13, 600))
    const alive = clock.alive(t).filter(v => clock.begin[v] <= t && t < clock.last[v] + FADE * clock.latency && clock.pieces[v].length && (clock.map.core[v] === core))
    let held = 0
    for (const v of alive) if (t < clock.last[v] && clock.map.tensors[clock.map.tensor[v]].buffer === 'sbuf') held += clock.pieces[v].reduce((s, p) => s + p[1], 0)
    const used = held ? size(held) : 'nothing', ofAll = `${used} of ${size(clock.sbuf)}`
    stage.dataset.sbuf = fitting(ctx, [`${a.head.partitions} partitions of ${size(clock.sbuf)}, ${used} of each in use`, `${ofAll} a partition in use`, `${ofAll} in use`, `${used} in use`, used], ui(12), g.sbuf.w)
    text(ctx, stage.dataset.sbuf, g.sbuf.x, 32, soft, ui(12), 'left', g.sbuf.w)
    text(ctx, fitting(ctx, [`${a.head.banks} banks of ${size(a.head.bank)}`, `${a.head.banks} banks`], ui(12), g.psum.w), g.psum.x, 32, soft, ui(12), 'left', g.psum.w)
    box(ctx, g.sbuf.x - 0.5, g.top - 0.5, g.sbuf.w + 1, g.mem + 1, 3, well, line)
    for (let k = 0; k < a.head.banks; k++) { const b = bankX(k); box(ctx, b.x - 0.5, g.top - 0.5, b.w + 1, g.mem + 1, 3, well, line); }
    for (const p of [32, 64, 96]) { const y = Math.round(g.top + p * g.mem / a.head.partitions) + 0.5; ctx.strokeStyle = faint(pal.soft, 0.14); ctx.lineWidth = 1; ctx.beginPath(); ctx.moveTo(g.sbuf.x, y); ctx.lineTo(g.sbuf.x + g.sbuf.w, y); ctx.stroke() }
    for (const p of [0, 32, 64, 96, 127]) text(ctx, String(p), g.sbuf.x - 5, clamp(g.top + (p + 0.5) * g.mem / a.head.partitions, g.top + 5, g.top + g.mem - 5), soft, ui(10.5), 'right')
    text(ctx, fitting(ctx, [`${size(Math.round(wanted()))} shown`, ''], ui(12), g.sbuf.w - 42), g.sbuf.x + g.sbuf.w, 14.5, soft, ui(12), 'right')
    drawHbm(ctx, soft, line, well)
    // tiles
    const labels = []
    for (const v of alive) drawValue(ctx, v, labels)
    // at work
    const mine = rows.filter(r => a.core[r] < 0 || a.core[r] === core || a.head.cores === 1)
    drawPills(ctx, mine, soft, line)
    mine.forEach((r, n) => { if (n < 40) drawWork(ctx, r, nowMs) })
    drawLabels(ctx, labels)
    if (pinned) drawPin(ctx)
    stage.setAttribute('aria-label', `At ${time(t)}: ${mine.map(r => `${a.head.lanes[a.lane[r]].name} ${a.head.instructions[a.instr[r]].op}`).join(', ') || 'nothing is at work'}`)
  }
  function drawHbm(ctx, soft, line, well) {
    const seen = new Set()
    for (const [k, b] of blocks) {
      if (b.rest && seen.has('rest')) continue
      if (b.rest) seen.add('rest')
      const given = b.t.role === 'input' || b.t.role === 'constant'
      box(ctx, b.x + 0.5, b.y + 0.5, b.w - 1, b.h - 1, 3, given ? mix(pal.lanes[4], pal.paper, 0.2) : well, given ? mix(pal.lanes[4], pal.paper, 0.45) : line)
      const c = cells.get(k)
      if (c) {
        const w = b.w / c.columns, h = b.h / c.rows
        ctx.fillStyle = mix(pal.lanes[5], pal.paper, 0.42)
        for (let y = 0; y < c.rows; y++) for (let x = 0; x < c.columns;) {
          let z = x
          while (z < c.columns && c.when[y * c.columns + z] <= t) z++
          if (z > x) ctx.fillRect(b.x + x * w, b.y + y * h, (z - x) * w, h + 0.4)
          x = z + 1
        }
      }
      const name = b.rest ? `${b.rest} more tensors` : b.t.name, shape = b.rest ? '' : b.t.shape.join(' × ')
      const wide = b.h >= 34
      text(ctx, name, b.x + 8, wide ? b.y + 13 : b.y + b.h / 2, faint(pal.ink, 1), ui(12, 600), 'left', b.w - 16)
      if (wide) text(ctx, fitting(ctx, [`${shape} ${b.t.dtype}`, shape, shape.replaceAll(' ', '')], ui(11), b.w - 16), b.x + 8, b.y + 28, faint(pal.ink, 0.72), ui(11), 'left', b.w - 16)
    }
  }
  function drawValue(ctx, v, labels) {
    const { map } = clock, gone = t >= clock.last[v] ? (t - clock.last[v]) / (FADE * clock.latency) : 0, all = rectsOf(v, whole(v))
    ctx.globalAlpha = 1 - gone
    for (const q of all) { ctx.fillStyle = mix(pal.soft, pal.paper, 0.13); ctx.fillRect(q.x, q.y, q.w, q.h) }
    let colour = pal.soft
    const entries = map.entries[v].filter(e => a.write[e] >= 0 && clock.start[a.row[e]] <= t)
    for (const e of entries.slice(-300)) {
      const r = a.row[e], x = clamp((t - clock.start[r]) / (clock.end[r] - clock.start[r] || 1), 0, 1), share = x * x * (3 - 2 * x)
      colour = pal.lanes[a.lane[r]]
      const isHot = x < 1, isNan = a.nans && a.nans[a.write[e]] > 0
      for (const q of rectsOf(v, boxOf(a, map, e))) {
        ctx.fillStyle = isNan ? mix([200, 69, 59], pal.paper, 0.75) : mix(colour, pal.paper, isHot ? 0.72 : 0.4)
        ctx.fillRect(q.x, q.y, q.w * share, q.h)
        if (isHot && q.w > 4) { ctx.fillStyle = mix(colour, pal.paper, 1); ctx.fillRect(q.x + q.w * share - 1, q.y, 1.5, q.h) }
      }
    }
    for (const q of all) { ctx.strokeStyle = mix(colour, pal.paper, 0.75); ctx.lineWidth = 1; if (q.w > 3) ctx.strokeRect(q.x + 0.5, q.y + 0.5, q.w - 1, q.h - 1) }
    ctx.globalAlpha = 1
    const q = all[0]
    if (q && !gone) labels.push({ q, name: map.tensors[map.tensor[v]].name })
  }
  function drawLabels(ctx, labels) {
    for (const { q, name } of labels) {
      ctx.font = ui(11.5, 500)
      const wide = ctx.measureText(name).width
      if (q.h < 12) continue
      if (q.w >= Math.min(wide + 10, 64)) text(ctx, name, q.x + q.w / 2, q.y + q.h / 2, faint(pal.ink, 0.95), ui(11.5, 500), 'center', q.w - 8)
      else if (q.w >= 13 && q.h >= 44) {
        ctx.save(); ctx.translate(q.x + q.w / 2, q.y + q.h / 2); ctx.rotate(-Math.PI / 2)
        text(ctx, name, 0, 0.5, faint(pal.ink, 0.95), ui(11.5, 500), 'center', q.h - 8); ctx.restore()
      }
    }
  }
  const PILLS = [3, 2, 1, 0]                    // GpSimd, Scalar, Vector, Tensor from left to right: lanes
  function pillOf(lane) {
    if (lane >= 4) return { x: 1, y: g.pills, w: g.hbm - 2, h: g.pill }
    const from = g.sbuf.x, to = g.psum.x + g.psum.w, space = to - from < 300 ? 5 : 12, w = (to - from - 3 * space) / 4, k = PILLS.indexOf(lane)
    return { x: from + k * (w + space), y: g.pills, w, h: g.pill }
  }
  // A name in one row, in smaller letters where it is long, or in two that part at an underscore or a space.
  function inRows(ctx, says, most) {
    const wide = (s, px) => { ctx.font = ui(px); return ctx.measureText(s).width }, px = [11.5, 10.5].find(px => wide(says, px) <= most)
    if (px) return { rows: [says], px }
    const parts = says.split(/(?<=[_ ])/), cuts = parts.map((_, k) => [parts.slice(0, k).join(''), parts.slice(k).join('')]).slice(1)
    const best = cuts.sort((p, q) => Math.max(...p.map(s => wide(s, 10))) - Math.max(...q.map(s => wide(s, 10))))[0]
    return { rows: best ?? [says], px: 10 }
  }
  function drawPills(ctx, rows, soft, line) {
    for (const lane of [4, ...PILLS]) {
      const p = pillOf(lane), mine = rows.filter(r => lane >= 4 ? a.lane[r] >= 4 : a.lane[r] === lane), r = mine[mine.length - 1], on = r !== undefined, colour = pal.lanes[on ? a.lane[r] : lane]
      box(ctx, p.x + 0.5, p.y + 0.5, p.w - 1, p.h - 1, 8, on ? mix(colour, pal.paper, 0.22) : null, on ? mix(colour, pal.paper, 0.9) : line)
      const edge = p.w < 76 ? 6 : 10
      text(ctx, lane >= 4 ? 'DMA' : a.head.lanes[lane].name, p.x + edge, p.y + 14, on ? faint(pal.ink, 1) : soft, ui(p.w < 64 ? 11 : 12, 600), 'left', p.w - edge)
      let says = 'idle'
      if (on && lane >= 4) {
        const moved = way => mine.filter(q => a.lane[q] === way).reduce((s, q) => s + a.head.instructions[a.instr[q]].bytes / (clock.end[q] - clock.start[q]), 0) / 1000
        says = [[4, 'in'], [5, 'out']].filter(([way]) => mine.some(q => a.lane[q] === way)).map(([way, word]) => `${word} ${digits(moved(way))}`).join(', ') + ' GB/s'
      } else if (on) says = a.head.instructions[a.instr[r]].op
      const words = inRows(ctx, says, p.w - 2 * edge + 2)
      words.rows.forEach((s, k) => text(ctx, s, p.x + edge, p.y + (words.rows.length > 1 ? 25.5 + 9.5 * k : 29.5), on ? faint(pal.ink, 0.85) : soft, ui(words.px), 'left', p.w - 2 * edge + 2))
      if (on && lane < 4) { const x = clamp((t - clock.start[r]) / (clock.end[r] - clock.start[r]), 0, 1); ctx.fillStyle = mix(colour, pal.paper, 1); ctx.fillRect(p.x + 9, p.y + p.h - 4, (p.w - 18) * x, 2) }
    }
  }
  function drawWork(ctx, r, nowMs) {
    const o = a.head.instructions[a.instr[r]], colour = pal.lanes[a.lane[r]], ins = [], outs = []
    o.operands.forEach((x, k) => {
      const e = a.first[r] + k, q = joined(rectsOf(clock.map.value[e], boxOf(a, clock.map, e)))
      if (q) (x.writes ? outs : ins).push(q)
    })
    for (const q of ins) { ctx.strokeStyle = mix(colour, pal.paper, 1); ctx.lineWidth = r === chosen ? 2.5 : 1.5; ctx.strokeRect(q.x + 0.75, q.y + 0.75, Math.max(1, q.w - 1.5), Math.max(1, q.h - 1.5)) }
    if (r === chosen) for (const q of outs) { ctx.strokeStyle = mix(colour, pal.paper, 1); ctx.lineWidth = 2.5; ctx.strokeRect(q.x + 0.75, q.y + 0.75, Math.max(1, q.w - 1.5), Math.max(1, q.h - 1.5)) }
    if (a.lane[r] >= 4) for (const from of ins) for (const to of outs) stream(ctx, from, to, colour, nowMs)
    else {
      const p = pillOf(a.lane[r])
      ins.forEach((q, k) => cord(ctx, q, p, (k + 1) / (ins.length + 1) * 0.5, colour, 1, nowMs))
      outs.forEach((q, k) => cord(ctx, q, p, 0.5 + (k + 1) / (outs.length + 1) * 0.5, colour, -1, nowMs))
    }
  }
  // Rows on their way: a sheet between two memories, and drops that move along it.
  function stream(ctx, from, to, colour, nowMs) {
    const fromHbm = from.kind === 'hbm', toHbm = to.kind === 'hbm'
    const x0 = fromHbm ? from.x + from.w : toHbm ? from.x : from.x + from.w / 2, x1 = toHbm ? (fromHbm ? to.x + to.w : to.x + to.w) : to.x + (fromHbm ? 0 : to.w / 2), far = fromHbm && toHbm ? 46 : Math.max(24, Math.abs(x1 - x0) * 0.5), side = fromHbm ? 1 : -1
    const bend = y => [x0 + side * far, y(from), fromHbm && toHbm ? x1 + far : x1 - side * far, y(to)]
    const top = q => q.y, foot = q => q.y + q.h, grad = ctx.createLinearGradient(x0, 0, x1 || 1, 0)
    grad.addColorStop(0, faint(colour, 0.3)); grad.addColorStop(1, faint(colour, 0.12))
    ctx.fillStyle = fromHbm && toHbm ? faint(colour, 0.2) : grad
    const u = bend(top), d = bend(foot)
    ctx.beginPath(); ctx.moveTo(x0, from.y); ctx.bezierCurveTo(u[0], u[1], u[2], u[3], x1, to.y); ctx.lineTo(x1, to.y + to.h); ctx.bezierCurveTo(d[2], d[3], d[0], d[1], x0, from.y + from.h); ctx.closePath(); ctx.fill()
    const lines = clamp(Math.round(Math.max(from.h, to.h) / 9), 1, 22)
    ctx.fillStyle = mix(colour, pal.paper, 1)
    for (let k = 0; k < lines; k++) {
      const y = q => q.y + (k + 0.5) / lines * q.h, c = bend(y), phase = (k * 0.381966) % 1
      for (let j = 0; j < 2; j++) {
        const s = (phase + j / 2 + nowMs / 1600) % 1, m = 1 - s
        const px = m * m * m * x0 + 3 * m * m * s * c[0] + 3 * m * s * s * c[2] + s * s * s * x1, py = m * m * m * y(from) + 3 * m * m * s * c[1] + 3 * m * s * s * c[3] + s * s * s * y(to)
        ctx.globalAlpha = Math.sin(Math.PI * clamp(s * 1.1, 0, 1)) * 0.9
        ctx.beginPath(); ctx.arc(px, py, 1.7, 0, 7); ctx.fill()
      }
    }
    ctx.globalAlpha = 1
  }
  // What an engine reads and writes: a cord between a part of a memory and the engine below; way 1 down, -1 up.
  function cord(ctx, q, p, share, colour, way, nowMs) {
    const x0 = q.x + q.w / 2, y0 = q.y + q.h, x1 = p.x + p.w * share, y1 = p.y, w0 = clamp(q.w / 2, 1.5, 30), w1 = 3, far = Math.max(22, (y1 - y0) * 0.55)
    ctx.fillStyle = faint(colour, way > 0 ? 0.26 : 0.42)
    ctx.beginPath(); ctx.moveTo(x0 - w0, y0); ctx.bezierCurveTo(x0 - w0, y0 + far, x1 - w1, y1 - far, x1 - w1, y1); ctx.lineTo(x1 + w1, y1); ctx.bezierCurveTo(x1 + w1, y1 - far, x0 + w0, y0 + far, x0 + w0, y0); ctx.closePath(); ctx.fill()
    ctx.fillStyle = mix(colour, pal.paper, 1)
    for (let j = 0; j < 3; j++) {
      let s = (j / 3 + nowMs / 1100) % 1
      if (way < 0) s = 1 - s
      const m = 1 - s, px = m * m * m * x0 + 3 * m * m * s * x0 + 3 * m * s * s * x1 + s * s * s * x1, py = m * m * m * y0 + 3 * m * m * s * (y0 + far) + 3 * m * s * s * (y1 - far) + s * s * s * y1
      ctx.globalAlpha = 0.9; ctx.beginPath(); ctx.arc(px, py, 1.8, 0, 7); ctx.fill()
    }
    ctx.globalAlpha = 1
  }
  function drawPin(ctx) {
    const x = clock.map.tensors[clock.map.tensor[pinned.v]], q = rectsOf(pinned.v, [pinned.row, pinned.row, pinned.byte, pinned.byte])[0]
    if (!q) return
    const px = q.x + q.w / 2, py = q.y + q.h / 2
    ctx.strokeStyle = faint(pal.paper, 1); ctx.lineWidth = 4; ctx.beginPath(); ctx.arc(px, py, 5, 0, 7); ctx.stroke()
    ctx.strokeStyle = faint(pal.ink, 1); ctx.lineWidth = 2; ctx.beginPath(); ctx.arc(px, py, 5, 0, 7); ctx.stroke()
  }

  // ----- lanes: one time axis for all clocks, so that what a what-if saves is seen
  const LEFT = 74, RIGHT = 8, AXIS = 24
  const laneNames = () => a.head.cores > 1 ? [0, 1].flatMap(c => a.head.lanes.map(l => `${l.name} ${c}`)) : a.head.lanes.map(l => l.name)
  const laneTall = () => a.head.cores > 1 ? 11 : 16
  const lanesHeight = () => laneNames().length * (laneTall() + 4) + AXIS
  const span = () => view ?? [0, Math.max(end(), ...(morph ? [morph.from.length] : []), a.clocks[0].length)]
  const laneWidth = () => lanes.clientWidth - LEFT - RIGHT
  const toX = s => { const [lo, hi] = span(); return LEFT + (s - lo) / (hi - lo) * laneWidth() }
  const toS = x => { const [lo, hi] = span(); return lo + (x - LEFT) / laneWidth() * (hi - lo) }
  function drawLanes() {
    if (lanes.style.height !== lanesHeight() + 'px') lanes.style.height = lanesHeight() + 'px'
    const height = lanesHeight(), s = shown(), [lo, hi] = span()
    if (view && playing && (s > hi || s < lo)) view = [clamp(s - (hi - lo) * 0.05, 0, Math.max(0, end() - (hi - lo))), 0], view[1] = view[0] + hi - lo
    const ctx = fit(lanes, height), share = morph ? ease(clamp((performance.now() - morph.began) / morph.ms, 0, 1)) : 1
    const key = [lanes.width, lanes.height, ...span(), a.clocks.indexOf(clock), share].join(' ')
    if (key !== cached) { cached = key; image ??= document.createElement('canvas'); image.width = lanes.width; image.height = lanes.height; paintLanes(image.getContext('2d'), height, share) }
    ctx.save(); ctx.setTransform(1, 0, 0, 1, 0, 0); ctx.drawImage(image, 0, 0); ctx.restore()
    const x = clamp(toX(s), LEFT, LEFT + laneWidth()), low = height - AXIS
    ctx.fillStyle = faint(pal.paper, 0.55); ctx.fillRect(x, 0, LEFT + laneWidth() - x + 1, low - 2)
    if (chosen >= 0) {
      const x0 = clamp(toX(clock.at(clock.start[chosen])), LEFT, LEFT + laneWidth()), x1 = clamp(toX(clock.at(clock.end[chosen])), LEFT, LEFT + laneWidth())
      ctx.strokeStyle = faint(pal.ink, 1); ctx.lineWidth = 1.5; ctx.strokeRect(x0 - 0.75, laneY(chosen) - 0.75, Math.max(2.5, x1 - x0) + 1.5, laneTall() + 1.5)
    }
    ctx.fillStyle = faint(pal.ink, 1); ctx.fillRect(x - 0.75, 0, 1.5, low)
    ctx.beginPath(); ctx.arc(x, low, 5, 0, 7); ctx.fill()
  }
  const laneY = r => (a.lane[r] + a.head.lanes.length * Math.max(0, a.head.cores > 1 ? a.core[r] : 0)) * (laneTall() + 4)
  function paintLanes(ctx, height, share) {
    const ratio = devicePixelRatio || 1, tall = laneTall(), names = laneNames(), low = height - AXIS, soft = faint(pal.soft, 1)
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0); ctx.clearRect(0, 0, lanes.clientWidth, height)
    axis(ctx, low, soft)
    names.forEach((name, k) => { ctx.fillStyle = faint(pal.soft, 0.09); ctx.fillRect(LEFT, k * (tall + 4), laneWidth(), tall); text(ctx, name, LEFT - 8, k * (tall + 4) + tall / 2 + 0.5, faint(pal.ink, 0.9), ui(tall > 12 ? 12 : 10.5), 'right') })
    ctx.save(); ctx.beginPath(); ctx.rect(LEFT, 0, laneWidth(), height); ctx.clip()
    const old = morph?.from, s0 = r => share < 1 ? old.at(old.start[r]) * (1 - share) + clock.at(clock.start[r]) * share : clock.at(clock.start[r]), s1 = r => share < 1 ? old.at(old.end[r]) * (1 - share) + clock.at(clock.end[r]) * share : clock.at(clock.end[r])
    const colours = a.head.lanes.map((_, k) => mix(pal.lanes[k], pal.paper, 0.92)), gaps = a.n < 2500
    const tracks = a.head.lanes.length * a.head.cores, thin = Array.from({ length: tracks }, () => null), wide = Math.ceil(laneWidth()) + 1
    for (let r = 0; r < a.n; r++) {
      const x0 = toX(s0(r)), x1 = toX(s1(r))
      if (x1 < LEFT || x0 > LEFT + laneWidth()) continue
      if (!gaps && x1 - x0 < 1.5) {                                     // narrower than a pixel: a column is as strong as its busy share
        const k = Math.round(laneY(r) / (tall + 4)), busy = thin[k] ??= { share: new Float32Array(wide), lane: a.lane[r] }
        for (let x = Math.max(0, Math.floor(x0 - LEFT)); x <= Math.min(wide - 1, Math.floor(x1 - LEFT)); x++) busy.share[x] += Math.max(0, Math.min(x + 1, x1 - LEFT) - Math.max(x, x0 - LEFT))
        continue
      }
      ctx.fillStyle = colours[a.lane[r]]
      ctx.fillRect(x0, laneY(r), Math.max(x1 - x0 - (gaps && x1 - x0 > 3 ? 0.7 : 0), 0.6), tall)
    }
    thin.forEach((busy, k) => busy?.share.forEach((b, x) => {
      if (b <= 0) return
      ctx.globalAlpha = 0.12 + 0.88 * Math.min(1, b); ctx.fillStyle = colours[busy.lane]; ctx.fillRect(LEFT + x, k * (tall + 4), 1.02, tall)
    }))
    ctx.globalAlpha = 1
    for (const [x, y, word] of [[0, clock.begins, 'launch'], [clock.ends, clock.latency, 'end']]) {
      const x0 = toX(clock.at(x)), x1 = toX(clock.at(y))
      if (x1 - x0 > 56) text(ctx, word, (x0 + x1) / 2, low / 2 - 2, soft, ui(11.5), 'center')
    }
    for (const [x, y] of clock.folded) {
      const x0 = toX(clock.at(x)), x1 = toX(clock.at(y))
      ctx.fillStyle = faint(pal.soft, 0.16); ctx.fillRect(x0, 0, x1 - x0, low - 4)
      if (x1 - x0 > 40) text(ctx, 'folded', (x0 + x1) / 2, low / 2, soft, ui(11), 'center')
    }
    const x = toX(end())
    ctx.strokeStyle = faint(pal.ink, 0.5); ctx.setLineDash([3, 3]); ctx.beginPath(); ctx.moveTo(x, 0); ctx.lineTo(x, low); ctx.stroke(); ctx.setLineDash([])
    ctx.restore()
  }
  function axis(ctx, low, soft) {
    const [lo, hi] = span(), from = clock.when(clamp(lo, 0, end())), to = hi > end() ? clock.latency + hi - end() : clock.when(hi), raw = (to - from) / Math.max(3, laneWidth() / 96), unit = 10 ** Math.floor(Math.log10(raw)), by = [1, 2, 5, 10].map(m => m * unit).find(s => s >= raw)
    let last = -1e9
    for (let n = Math.ceil(from / by); n * by <= to; n++) {
      const v = n * by, x = toX(v > clock.latency ? end() + v - clock.latency : clock.at(v)), label = clock.latency >= 2000 ? `${+(v / 1000).toPrecision(6)} ms` : `${+v.toPrecision(8)} µs`
      if (x - last < 56 || x > LEFT + laneWidth() - 14) continue
      last = x
      ctx.fillStyle = faint(pal.soft, 0.22); ctx.fillRect(x, 0, 1, low)
      text(ctx, label, x, low + 14, soft, ui(11), 'center')
    }
  }

  // ----- words
  const KEYWORDS = /(#.*$|"""[\s\S]*?"""|'''[\s\S]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\b(?:def|return|for|in|if|elif|else|while|import|from|as|and|or|not|None|True|False|with|lambda|class|pass|assert|raise)\b|\b\d+(?:\.\d+)?\b)/gm
  function showSource() {
    const kind = s => s[0] === '#' ? 'c' : /^["']/.test(s) ? 's' : /^\d/.test(s) ? 'n' : 'k', lines = [[]]
    const put = (s, cls) => s.split('\n').forEach((part, i) => { if (i) lines.push([]); if (part) lines[lines.length - 1].push([part, cls]) })
    let at = 0
    for (const m of a.head.source.matchAll(KEYWORDS)) { put(a.head.source.slice(at, m.index)); put(m[0], kind(m[0])); at = m.index + m[0].length }
    put(a.head.source.slice(at))
    if (!lines[lines.length - 1].length) lines.pop()
    lineNodes = lines.map((parts, i) => {
      const row = node('div', 'kl-an-line'), no = node('span', 'kl-an-no', i + 1), code = node('code')
      for (const [s, cls] of parts) code.append(...(cls ? [node('span', 'kl-an-' + cls, s)] : s.split(/(?<=[(\[=])(?=\S)/).flatMap((piece, k) => k ? [node('wbr'), piece] : [piece])))      // it may part there
      if (!parts.length) code.textContent = ' '
      const own = parts.length && !parts[0][1] ? parts[0][0].search(/\S|$/) : 0, deep = Math.min(own, 20) + 2      // what is wrapped hangs below its line
      code.style.paddingLeft = deep + 'ch'; code.style.textIndent = -deep + 'ch'
      row.append(no, code)
      if (a.head.instructions.some(o => o.line === i + 1)) { row.classList.add('kl-an-has'); row.addEventListener('click', () => lookAtLine(i + 1)) }
      return row
    })
    source.replaceChildren(...lineNodes)
    if (!lines.length) source.replaceChildren(node('p', 'kl-an-quiet', 'The program came without its source.'))
  }
  function lookAtLine(line) {
    const mine = clock.order.filter(r => a.head.instructions[a.instr[r]].line === line), later = mine.find(r => clock.end[r] > now() + 1e-9)
    const r = later ?? mine[0]
    if (r !== undefined) look(r)
  }
  function sayLines(rows) {
    const lit = new Map()
    for (const r of rows) { const l = a.head.instructions[a.instr[r]].line; if (!lit.has(l) || a.lane[r] < 4) lit.set(l, a.lane[r]) }
    const main = chosen >= 0 ? chosen : mainRow(), focus = main >= 0 ? a.head.instructions[a.instr[main]].line : 0, key = [...lit].join(';') + '|' + focus
    if (key === lastLines) return
    lastLines = key
    lineNodes.forEach((n, i) => {
      const lane = lit.get(i + 1)
      n.classList.toggle('kl-an-lit', lane !== undefined); n.classList.toggle('kl-an-main', i + 1 === focus && lane !== undefined)
      if (lane !== undefined) n.style.setProperty('--lit', a.head.lanes[lane].colour)
    })
    const n = lineNodes[focus - 1]
    if (!n) return
    const up = n.offsetTop, low = source.scrollTop + source.clientHeight
    if (up < source.scrollTop + 20 || up > low - 40) source.scrollTo({ top: up - source.clientHeight / 2, behavior: still.matches ? 'auto' : 'smooth' })
  }
  const rowWords = r => { const o = a.head.instructions[a.instr[r]], turn = turnText(a, r); return `${o.op}, line ${o.line}${turn ? ` (${turn})` : ''}` }
  function link(words, r, prefix) {
    const p = node('span', '', `${prefix} `)
    if (r < 0) { p.append(words); return p }
    const b = node('button', 'kl-an-link', rowWords(r), { type: 'button' })
    b.addEventListener('click', () => look(r))
    p.append(b, ` at ${time(clock.end[r])}`)
    return p
  }
  function sayInfo() {
    const r = chosen >= 0 ? chosen : mainRow(), key = [r, chosen, t <= 0 ? 'start' : t >= clock.latency ? 'end' : '', a.clocks.indexOf(clock), pinned ? [pinned.v, pinned.row, pinned.byte, samplesAt(a, clock, pinned.v, t)?.entry, provenance(a, clock, pinned.v, pinned.at, t).writer, provenance(a, clock, pinned.v, pinned.at, t).reader].join() : ''].join(' ')
    if (key === lastInfo) return
    lastInfo = key
    const parts = []
    if (pinned) parts.push(...pinWords())
    if (r >= 0) parts.push(...rowInfo(r))
    else if (!pinned) parts.push(node('p', 'kl-an-quiet', t <= 0 ? 'Press play, or step with ← and →. Click a byte of a memory: who wrote it, and who reads it next.' : t >= clock.latency ? 'The kernel has ended.' : 'Nothing is at work at this moment.'))
    info.replaceChildren(...parts)
  }
  function rowInfo(r) {
    const o = a.head.instructions[a.instr[r]], turn = turnText(a, r), head = node('p', 'kl-an-what'), dot = node('i')
    dot.style.background = a.head.lanes[a.lane[r]].colour
    head.append(dot, node('b', '', o.op), node('span', '', ` ${a.head.lanes[a.lane[r]].name} · line ${o.line}${turn ? ' · ' + turn : ''}`))
    const when = node('p', 'kl-an-quiet', `${time(clock.end[r] - clock.start[r])} from ${time(clock.start[r])}, simulated${o.bytes ? ` · ${size(o.bytes)}` : ''}`), after = clock.after[r] > 0 ? r - clock.after[r] : -1
    if (after >= 0) when.append(' · ', link('', after, `waited (${a.head.causes[clock.cause[r]]}) for`))
    const list = node('ul')
    o.operands.forEach((x, k) => list.append(operandWords(r, x, a.first[r] + k)))
    return [head, when, list]
  }
  function operandWords(r, x, e) {
    const v = clock.map.value[e], tensor = clock.map.tensors[clock.map.tensor[v]], item = node('li'), w = a.write[e], mem = tensor.buffer.toUpperCase()
    item.append(node('span', 'kl-an-way', x.writes ? 'writes' : 'reads'), ` ${mem} `, node('b', '', tensor.name))
    if (x.writes && a.nans && !Number.isNaN(a.least[w])) item.append(`: ${number(a.least[w])} to ${number(a.greatest[w])}`)
    if (x.writes && a.nans && a.nans[w]) item.append(node('span', 'kl-an-bad', ` ${count(a.nans[w])} NaN`))
    const p = provenance(a, clock, v, clock.map.offset[e] * clock.map.tensors[clock.map.operands[a.instr[r]][e - a.first[r]]].item, x.writes ? clock.end[r] : clock.start[r], x.writes ? Infinity : r)
    if (!x.writes && p.writer >= 0) item.append(', ', link('', p.writer, 'from'))
    if (x.writes && p.reader >= 0) item.append(', ', link('', p.reader, 'read next by'))
    return item
  }
  const where = (v, tensor, row, byte) => tensor.buffer === 'hbm' ? `row ${count(row)}, element ${count(Math.floor(byte / tensor.item))}` : `partition ${clock.map.partition[v] + row}, element ${count(Math.floor(byte / tensor.item))}`
  function sampleWords(v, row, byte) {
    const tensor = clock.map.tensors[clock.map.tensor[v]], s = samplesAt(a, clock, v, t)
    if (!s) return null
    const y = clamp(Math.floor(row * s.side / tensor.rows), 0, s.side - 1), x = clamp(Math.floor(byte / tensor.item * s.side / tensor.columns), 0, s.side - 1), k = s.from + y * s.side + x
    const spot = (i, n) => Math.floor((2 * i + 1) * n / (2 * s.side))
    return { s, x, y, words: s.bits[k] === UNWRITTEN ? 'not written yet' : number(s.floats[k]), at: [spot(y, tensor.rows), spot(x, tensor.columns)] }
  }
  function pinWords() {
    const { v, row, byte } = pinned, tensor = clock.map.tensors[clock.map.tensor[v]], p = provenance(a, clock, v, pinned.at, t), head = node('p', 'kl-an-what'), found = sampleWords(v, row, byte)
    head.append(node('b', '', tensor.name), node('span', '', ` ${where(v, tensor, row, byte)}`))
    const close = node('button', 'kl-an-link', 'close', { type: 'button' })
    close.addEventListener('click', () => { pinned = null; soon() })
    head.append(' ', close)
    const writer = node('p'), reader = node('p')
    writer.append(p.writer >= 0 ? link('', p.writer, `${p.sure ? 'written by' : 'perhaps written by (a mask or an index decides)'}`) : tensor.role === 'input' ? 'an input of the kernel' : 'nothing has written it yet')
    reader.append(p.reader >= 0 ? link('', p.reader, 'read next by') : p.readers ? `nothing reads it any more (${count(p.readers)} did)` : 'nothing reads it')
    const out = [head]
    if (found) {
      const value = node('p', '', `≈ ${found.words}`)
      value.append(node('span', 'kl-an-quiet', ` the nearest sample, [${found.at.join(', ')}], of ${found.s.side} × ${found.s.side} of this tile`))
      out.unshift(heat(found)); out.push(value)
    } else if (!a.head.side) out.push(node('p', 'kl-an-quiet', 'No values travel along.'))
    return [...out, writer, reader, node('hr')]
  }
  function heat({ s, x, y }) {
    const n = s.side * s.side, c = node('canvas', 'kl-an-heat', null, { role: 'img', 'aria-label': 'Samples of the tile' }), ctx = c.getContext('2d'), px = 14
    c.width = c.height = px * s.side
    let lo = Infinity, hi = -Infinity
    for (let k = 0; k < n; k++) { const z = s.floats[s.from + k]; if (Number.isFinite(z)) { lo = Math.min(lo, z); hi = Math.max(hi, z) } }
    for (let k = 0; k < n; k++) {
      const z = s.floats[s.from + k], bits = s.bits[s.from + k]
      ctx.fillStyle = bits === UNWRITTEN ? faint(pal.soft, 0.12) : Number.isNaN(z) ? '#C8453B' : mix(pal.lanes[0], pal.paper, 0.12 + 0.8 * (hi > lo ? (clamp(z, lo, hi) - lo) / (hi - lo) : 0.5))
      ctx.fillRect(k % s.side * px, Math.floor(k / s.side) * px, px - 1, px - 1)
    }
    ctx.strokeStyle = faint(pal.ink, 1); ctx.lineWidth = 2; ctx.strokeRect(x * px, y * px, px - 1, px - 1)
    return c
  }

  // ----- asking a byte
  function byteAt(e) {
    const b = stage.getBoundingClientRect(), x = e.clientX - b.left, y = e.clientY - b.top
    for (const [k, q] of blocks) {
      if (q.rest || x < q.x || x > q.x + q.w || y < q.y || y > q.y + q.h) continue
      const v = clock.map.tensor.indexOf(k), row = clamp(Math.floor((y - q.y) / q.h * q.t.rows), 0, q.t.rows - 1), column = clamp(Math.floor((x - q.x) / q.w * q.t.columns), 0, q.t.columns - 1)
      return { v, row, byte: column * q.t.item, at: (row * q.t.columns + column) * q.t.item }
    }
    for (const v of clock.alive(t)) {
      if (!(clock.begin[v] <= t && t < clock.last[v]) || clock.map.core[v] !== core || !clock.pieces[v].length) continue
      const q = rectsOf(v, whole(v)), tensor = clock.map.tensors[clock.map.tensor[v]], width = tensor.columns * tensor.item
      let done = 0
      for (const one of q) {
        const total = q.reduce((s, p) => s + p.w, 0)
        if (x >= one.x && x < one.x + one.w && y >= one.y && y < one.y + one.h) {
          const row = clamp(Math.floor((y - one.y) / one.h * tensor.rows), 0, tensor.rows - 1), column = clamp(Math.floor((done + x - one.x) / total * tensor.columns), 0, tensor.columns - 1)
          return { v, row, byte: column * tensor.item, at: row * width + column * tensor.item }
        }
        done += one.w
      }
    }
    return null
  }
  function showTip(e) {
    const found = byteAt(e)
    stage.style.cursor = found ? 'crosshair' : ''
    tip.hidden = !found
    if (!found) return
    const tensor = clock.map.tensors[clock.map.tensor[found.v]], s = sampleWords(found.v, found.row, found.byte)
    const first = node('div'); first.append(node('b', '', tensor.name), ` ${tensor.dtype} ${tensor.shape.join(' × ')}`)
    tip.replaceChildren(first, node('div', '', where(found.v, tensor, found.row, found.byte)), ...(s ? [node('div', 'kl-an-value', `≈ ${s.words}`)] : []), node('div', 'kl-an-dim', 'click: who wrote it, who reads it'))
    place(e)
  }
  function place(e) {
    const b = root.getBoundingClientRect()
    tip.style.left = clamp(e.clientX - b.left + 14, 0, b.width - tip.offsetWidth - 4) + 'px'
    tip.style.top = (e.clientY - b.top + 18 + tip.offsetHeight > b.height ? e.clientY - b.top - tip.offsetHeight - 10 : e.clientY - b.top + 18) + 'px'
  }
  stage.addEventListener('pointermove', e => a && showTip(e))
  stage.addEventListener('pointerleave', () => { tip.hidden = true })
  stage.addEventListener('click', e => { if (!a) return; pauseQuietly(); pinned = byteAt(e); info.setAttribute('aria-live', 'polite'); soon() })

  // ----- the lanes are the slider
  let drag = false
  const rowAt = e => {
    const b = lanes.getBoundingClientRect(), x = e.clientX - b.left, y = e.clientY - b.top, s = toS(x), slack = (span()[1] - span()[0]) / laneWidth() * 2
    if (x < LEFT || s > end() + slack) return -1
    const at = clock.when(clamp(s, 0, end()))
    let best = -1, far = slack
    for (const r of clock.rows(at)) {
      if (y < laneY(r) || y > laneY(r) + laneTall()) continue
      const d = Math.max(0, clock.at(clock.start[r]) - s, s - clock.at(clock.end[r]))
      if (d <= far) { far = d; best = r }
    }
    return best
  }
  const scrub = e => { pauseQuietly(); chosen = -1; move = null; t = clock.when(clamp(toS(e.clientX - lanes.getBoundingClientRect().left), 0, end())); soon() }
  lanes.addEventListener('pointerdown', e => { if (!a) return; drag = { x: e.clientX, moved: false }; lanes.setPointerCapture(e.pointerId); info.setAttribute('aria-live', 'off'); scrub(e) })
  lanes.addEventListener('pointermove', e => {
    if (!a) return
    if (drag) { drag.moved ||= Math.abs(e.clientX - drag.x) > 3; return scrub(e) }
    const r = rowAt(e)
    tip.hidden = r < 0
    if (r < 0) return
    tip.replaceChildren(node('div', '', rowWords(r)), node('div', 'kl-an-dim', `${time(clock.end[r] - clock.start[r])} from ${time(clock.start[r])}, simulated`))
    place(e)
  })
  lanes.addEventListener('pointerup', e => { const was = drag; drag = false; if (was && !was.moved) { const r = rowAt(e); if (r >= 0 && clock.start[r] <= t && t < clock.end[r]) { chosen = r; soon() } } })
  lanes.addEventListener('pointerleave', () => { tip.hidden = true })
  lanes.addEventListener('wheel', e => {
    if (!a || (document.activeElement !== lanes && !e.ctrlKey && !e.metaKey)) return        // the page scrolls until a person clicks into the lanes
    e.preventDefault()
    const [lo, hi] = span(), most = Math.max(end(), a.clocks[0].length), f = Math.exp(clamp(e.deltaY, -240, 240) * 0.0022), s = toS(e.clientX - lanes.getBoundingClientRect().left), w = clamp((hi - lo) * f, most * 1e-5, most)
    const from = clamp(s - (s - lo) * w / (hi - lo) + e.deltaX / laneWidth() * w, 0, most - w)
    view = w >= most ? null : [from, from + w]
    soon()
  }, { passive: false })
  lanes.addEventListener('dblclick', () => { view = null; soon() })

  // ----- buttons and keys
  toStart.addEventListener('click', () => { chosen = -1; go(0) })
  back.addEventListener('click', () => step(-1)); forth.addEventListener('click', () => step(1))
  run.addEventListener('click', () => playing ? pause() : start())
  toNan.addEventListener('click', () => a.nan >= 0 && look(a.nan))
  rate.addEventListener('change', () => { speed = +rate.value })
  which.addEventListener('change', () => { core = +which.value; soon() })
  theme.addEventListener('click', () => {
    const page = document.documentElement, dark = page.dataset.theme ? page.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches
    page.dataset.theme = dark ? 'light' : 'dark'
    layout(); lastInfo = ''; soon()
  })
  const KEYS = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => { chosen = -1; go(0) }, End: () => { chosen = -1; go(clock.latency) }, n: () => toNan.click(), ' ': () => run.click(),
    PageUp: () => { chosen = -1; go(now() - clock.latency / 20) }, PageDown: () => { chosen = -1; go(now() + clock.latency / 20) }, Escape: () => { pinned = null; chosen = -1; view = null; soon() } }
  const pressed = e => {
    if (!a || e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return
    const at = e.target.tagName
    if (at === 'SELECT' || at === 'INPUT' || at === 'TEXTAREA' || ((at === 'BUTTON' || at === 'SUMMARY') && (e.key === ' ' || e.key === 'Enter'))) return
    if ((e.target === source || e.target === info) && /^(Page|Home|End)/.test(e.key)) return
    const act = KEYS[e.key]
    if (act) { act(); e.preventDefault(); e.stopPropagation() }
  }
  const ears = heading ? document : root        // alone on its page the player hears every key; in a notebook only its own
  ears.addEventListener('keydown', pressed)
  const grown = new ResizeObserver(() => { layout(); soon() }), themed = new MutationObserver(() => { layout(); lastInfo = ''; soon() }), dark = matchMedia('(prefers-color-scheme: dark)'), turned = () => { layout(); lastInfo = ''; soon() }
  grown.observe(stage); themed.observe(document.body, { attributes: true }); dark.addEventListener('change', turned)
  tip.hidden = true

  function show(found) {
    const again = a && a.n === found.n && a.head.title === found.head.title && clock === a.clocks[0]      // the same kernel, now with its values: it goes on
    a = found; clock = a.clocks[0]; t = again ? t : 0; chosen = -1; pinned = null; view = null; morph = move = null; core = 0; lastLines = lastInfo = ''; high = wanted()
    title.textContent = `${a.head.name}: ${a.head.title}`
    which.hidden = a.head.cores < 2
    which.replaceChildren(...[0, 1].map(c => node('option', '', `core ${c}`, { value: c })))
    toNan.disabled = a.nan < 0
    toNan.textContent = a.nan >= 0 ? 'First NaN' : !a.nans ? 'no values' : a.head.known ? 'no NaN' : 'no NaN known'
    whatif.replaceChildren(...(a.clocks.length > 1 ? a.clocks.map((c, k) => {
      const b = node('button', '', c.name, { type: 'button', title: `${c.says}: ${time(c.latency)} simulated`, 'aria-pressed': k === 0 })
      b.addEventListener('click', () => change(k))
      return b
    }) : []))
    notes.hidden = !a.head.notes.length
    notes.replaceChildren(node('summary', '', a.n < a.head.count ? 'Iterations are folded' : 'What is left out'), ...a.head.notes.map(x => node('p', '', x)))
    if (a.n < a.head.count) notes.open = true
    saySpeed(0); showSource(); sayRun()
    const top = lineNodes[Math.min(...a.head.instructions.map(o => o.line || 1)) - 1]
    if (top) source.scrollTop = top.offsetTop - source.clientHeight * 0.6
    layout(); before = performance.now(); soon()
  }
  function fail(error) { a = null; root.replaceChildren(node('p', 'kl-an-fail', `This animation cannot be shown: ${error.message}`)) }
  return {
    async load(bytes) { try { show(opened(await inflated(bytes))) } catch (error) { fail(error) } },
    close() { closed = true; cancelAnimationFrame(frame); grown.disconnect(); themed.disconnect(); dark.removeEventListener('change', turned); ears.removeEventListener('keydown', pressed) },
    get animation() { return a }, get clock() { return clock }, rectsOf: v => rectsOf(v, whole(v)), who: (v, byte, when) => provenance(a, clock, v, byte, when),
  }
}

export function play(el, text) {
  const player = mount(el)
  window.player = player
  let bytes = new Uint8Array()
  try { bytes = Uint8Array.from(atob(text.trim()), c => c.charCodeAt(0)) } catch { /* an empty animation is refused below */ }
  return player.load(bytes)
}

export default { render({ model, el }) {
  const root = document.createElement('div'), player = mount(root, { heading: false })
  el.append(root)
  const load = () => { const d = model.get('packed'); if (d?.byteLength) player.load(new Uint8Array(d.buffer, d.byteOffset, d.byteLength)) }
  model.on('change:packed', load)
  load()
  return () => { model.off('change:packed', load); player.close() }
} }
