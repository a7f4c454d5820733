// The engine lanes of one or several timelines over one time axis, on a canvas. Python sends each timeline once, its rows sorted by lane and
// start; zooming, panning, searching and selecting ask nobody. `mount` itself needs no notebook.
const LANE = 22, GAP = 6, AXIS = 24, LEFT = 118, RIGHT = 10, HEAD = 22, SAMPLE = 24
const HUES = ['#4268CD', '#6BB28D', '#D8911E', '#9A4773', '#8286AD', '#9C744A', '#2A9DA8', '#C8453B', '#7A9A3B', '#B96AC9', '#5A7FA8', '#C07F5C']
const CAUSE_HUES = ['#8B929C', '#8286AD', '#4268CD', '#9C744A', '#9A4773', '#D8911E', '#C8453B', '#2A9DA8']
const clamp = (x, lo, hi) => Math.min(Math.max(x, lo), hi)
const node = (tag, cls, text) => { const n = document.createElement(tag); if (cls) n.className = cls; if (text != null) n.textContent = text; return n }
const time = us => { const [v, u] = Math.abs(us) >= 1000 ? [us / 1000, 'ms'] : Math.abs(us) < 0.1 && us ? [us * 1000, 'ns'] : [us, 'µs']
  return `${Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 10 ? v.toFixed(1) : v.toFixed(2)} ${u}` }
const percent = x => x >= 0.0995 ? `${(100 * x).toFixed(0)} %` : `${(100 * x).toFixed(1)} %`

// The first index in [lo, hi) whose value is above x.
function above(values, x, lo, hi) { while (lo < hi) { const m = (lo + hi) >> 1; if (values[m] > x) hi = m; else lo = m + 1 } return lo }

// A timeline as typed arrays, with what makes any window cheap: per lane the latest end so far, and the time that is covered so far.
function opened(part) {
  const n = part.count, whole = view => view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength), all = whole(part.rows)
  let at = 0
  const take = (kind, size) => { const a = new kind(all, at, n); at += n * size; return a }
  const t = { ...part, start: take(Float64Array, 8), dur: take(Float32Array, 4), instr: take(Uint32Array, 4), turn: take(Uint32Array, 4),
    after: take(Int32Array, 4), cause: take(Uint8Array, 1), latest: new Float64Array(n), covered: new Float64Array(n + part.lanes.length) }
  t.path = new Uint32Array(whole(part.critical))
  t.critical = new Uint8Array(n)
  for (const k of t.path) t.critical[k] = 1
  t.lanes.forEach((lane, i) => {
    let end = -Infinity, sum = 0
    for (let k = lane.from; k < lane.to; k++) {
      const e = t.start[k] + t.dur[k]
      t.covered[k + i] = sum
      sum += Math.max(0, e - Math.max(t.start[k], end))
      t.latest[k] = end = Math.max(end, e)
    }
    t.covered[lane.to + i] = sum
  })
  t.busy = (i, when) => {                                             // µs in which lane i was busy before a moment; exact
    const { from, to } = t.lanes[i], k = above(t.start, when, from, to)
    return t.covered[k + i] - (k > from ? Math.max(0, t.latest[k - 1] - when) : 0)
  }
  t.share = (i, lo, hi) => hi > lo ? (t.busy(i, hi) - t.busy(i, lo)) / (hi - lo) : 0
  t.seen = (i, lo, hi) => { const { from, to } = t.lanes[i]; return [above(t.latest, lo, from, to), above(t.start, hi, from, to)] }
  return t
}

function turnText(t, k) {
  const loops = t.loops[t.instr[k]]
  let turn = t.turn[k], out = []
  for (const [name, trips] of [...loops].reverse()) { out.unshift(`${name}=${turn % trips}`); turn = Math.floor(turn / trips) }
  return out.join(' ')
}

export function mount(el, { select = () => {}, note = '' } = {}) {
  const root = node('div', 'kl-tl'), bar = node('div', 'kl-tl-bar'), canvas = node('canvas'), info = node('div', 'kl-tl-info'), legend = node('div', 'kl-tl-legend'), tip = node('div', 'kl-tl-tip')
  const title = node('span', 'kl-title'), quiet = node('span', 'kl-quiet'), find = node('input'), by = node('select'), path = node('label'), tick = node('input')
  Object.assign(find, { type: 'search', placeholder: 'find: dma_copy, x_tile, line:12' }); find.setAttribute('aria-label', 'Find instructions')
  by.setAttribute('aria-label', 'Colour by')
  for (const [value, text] of [['engine', 'by engine'], ['op', 'by operation'], ['line', 'by line'], ['cause', 'by what it waited for']]) {
    const o = node('option', '', text); o.value = value; by.append(o)
  }
  tick.type = 'checkbox'; path.append(tick, ' critical path')
  bar.append(title, quiet, find, by, path); root.append(bar, canvas, legend, info, tip); el.append(root)
  Object.assign(canvas, { tabIndex: 0 }); canvas.setAttribute('role', 'application')
  info.setAttribute('aria-live', 'polite')
  let parts = [], end = 1, lo = 0, hi = 1, chosen = null, hover = null, matches = null, frame = 0, tops = [], said = note, bars = 0
  const width = () => canvas.clientWidth - LEFT - RIGHT, x = us => LEFT + (us - lo) / (hi - lo) * width(), us = px => lo + (px - LEFT) / width() * (hi - lo)
  const soon = () => { frame ||= requestAnimationFrame(() => { frame = 0; draw() }) }

  const hue = (t, k, lane) => {
    const o = t.instr[k]
    if (by.value === 'op') return HUES[t.opIndex[o] % HUES.length]
    if (by.value === 'line') return HUES[t.lines[o] % HUES.length]
    if (by.value === 'cause') return CAUSE_HUES[t.cause[k] % CAUSE_HUES.length]
    return lane.colour
  }
  const shown = (p, k) => !matches || matches[p][parts[p].instr[k]]

  // One lane: bars one by one where each has pixels of its own, else one a column of pixels, as strong as its busy share, which is exact.
  function drawLane(g, p, i, y) {
    const t = parts[p], lane = t.lanes[i], [a, b] = t.seen(i, lo, hi)
    if (2 * (b - a) <= width()) {
      for (let k = a; k < b; k++) {
        const from = Math.max(x(t.start[k]), LEFT), to = Math.min(x(t.start[k] + t.dur[k]), LEFT + width())
        g.globalAlpha = shown(p, k) ? 1 : 0.12
        g.fillStyle = hue(t, k, lane); bars++
        g.fillRect(from, y, Math.max(to - from - (to - from > 4 ? 0.6 : 0), 0.7), LANE)
      }
      g.globalAlpha = 1
      return false
    }
    const columns = Math.floor(width()), step = (hi - lo) / columns
    let before = t.busy(i, lo)
    for (let c = 0; c < columns; c++) {
      const u = lo + c * step, now = t.busy(i, u + step), share = (now - before) / step
      before = now
      if (share <= 0) continue
      let colour = lane.colour, bright = 1
      if (by.value !== 'engine' || matches) {
        const [f, l] = t.seen(i, u, u + step), jump = Math.max(1, Math.floor((l - f) / SAMPLE)), weight = {}
        let hit = 0, of = 0
        for (let k = f; k < l; k += jump) { const h = hue(t, k, lane); weight[h] = (weight[h] ?? 0) + t.dur[k]; of++; hit += shown(p, k) ? 1 : 0 }
        colour = Object.keys(weight).sort((m, n) => weight[n] - weight[m])[0] ?? colour
        bright = of ? 0.12 + 0.88 * hit / of : 1
      }
      g.globalAlpha = (0.18 + 0.82 * share) * bright; bars++
      g.fillStyle = colour
      g.fillRect(LEFT + c, y, 1.03, LANE)
    }
    g.globalAlpha = 1
    return true
  }

  // What the colours mean, where they are not the engines': those that some instruction has, by how many.
  function drawLegend() {
    const counts = new Map(), add = (colour, text, n) => { const key = colour + text; counts.set(key, { colour, text, n: (counts.get(key)?.n ?? 0) + n }) }
    for (const t of by.value === 'op' || by.value === 'cause' ? parts : []) {
      if (by.value === 'op') t.ops.forEach((op, o) => add(HUES[t.opIndex[o] % HUES.length], op, 1))
      else { const seen = new Uint32Array(t.causes.length); for (const c of t.cause) seen[c]++; seen.forEach((n, c) => n && add(CAUSE_HUES[c % CAUSE_HUES.length], t.causes[c], n)) }
    }
    legend.replaceChildren(...[...counts.values()].sort((a, b) => b.n - a.n).map(({ colour, text }) => {
      const one = node('span', '', text), box = node('i'); box.style.background = colour; one.prepend(box); return one
    }))
  }

  const laneOf = (t, k) => t.lanes.findIndex(l => k >= l.from && k < l.to)
  function arrow(g, p, from, to, colour) {
    const t = parts[p], y = k => tops[p] + laneOf(t, k) * (LANE + GAP) + LANE / 2
    const x0 = x(Math.min(t.start[from] + t.dur[from], t.start[to])), x1 = x(t.start[to]), bend = Math.max(14, Math.abs(x1 - x0) / 2)
    g.strokeStyle = colour; g.lineWidth = 1.3
    g.beginPath(); g.moveTo(x0, y(from)); g.bezierCurveTo(x0 + bend, y(from), x1 - bend, y(to), x1, y(to)); g.stroke()
    g.fillStyle = colour; g.beginPath(); g.moveTo(x1, y(to)); g.lineTo(x1 - 5, y(to) - 3); g.lineTo(x1 - 5, y(to) + 3); g.fill()
  }
  function drawAxis(g, ink, rule, bottom) {
    const raw = (hi - lo) / Math.max(3, width() / 110), unit = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map(m => m * unit).find(s => s >= raw)
    g.font = '11px ' + getComputedStyle(root).fontFamily; g.textAlign = 'center'; g.textBaseline = 'top'
    for (let n = Math.ceil(lo / step); n * step <= hi; n++) {
      g.fillStyle = rule; g.fillRect(x(n * step), 2, 1, bottom - 2)
      g.fillStyle = ink; g.fillText(step >= 1000 ? `${+(n * step / 1000).toPrecision(9)} ms` : `${+(n * step).toPrecision(9)}`, x(n * step), bottom + 6)
    }
    g.textAlign = 'right'; if (step < 1000) g.fillText('µs', LEFT - 12, bottom + 6)
  }
  function draw() {
    if (!parts.length || !canvas.clientWidth) return
    const ratio = devicePixelRatio || 1, style = getComputedStyle(root), g = canvas.getContext('2d')
    const ink = style.getPropertyValue('--kl-ink') || '#22262d', soft = style.getPropertyValue('--kl-soft') || '#69707b'
    const rule = 'rgba(128,136,148,0.20)', track = 'rgba(128,136,148,0.09)'
    tops = []
    let y = 0
    const head = parts.length > 1 ? HEAD : GAP                        // several are named, each above its lanes
    for (const t of parts) { tops.push(y + head); y += head + t.lanes.length * (LANE + GAP) }
    const height = y + AXIS
    canvas.style.height = height + 'px'
    if (canvas.width !== Math.round(canvas.clientWidth * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(canvas.clientWidth * ratio); canvas.height = Math.round(height * ratio)
    }
    g.setTransform(ratio, 0, 0, ratio, 0, 0)
    g.clearRect(0, 0, canvas.clientWidth, height)
    drawAxis(g, soft.trim(), rule, y)
    let merged = false
    bars = 0
    parts.forEach((t, p) => {
      g.textAlign = 'left'; g.textBaseline = 'middle'; g.font = '12px ' + style.fontFamily
      if (parts.length > 1) { g.fillStyle = soft.trim(); g.fillText(t.title, LEFT, tops[p] - head / 2) }
      t.lanes.forEach((lane, i) => {
        const top = tops[p] + i * (LANE + GAP), share = t.share(i, lo, Math.min(hi, t.latency))
        g.fillStyle = track; g.fillRect(LEFT, top, width(), LANE)
        g.fillStyle = ink.trim(); g.textAlign = 'right'
        g.fillText(lane.name + (share > 0 ? `  ${percent(share)}` : ''), LEFT - 10, top + LANE / 2)
        g.save(); g.beginPath(); g.rect(LEFT, top - 2, width(), LANE + 4); g.clip()
        merged = drawLane(g, p, i, top) || merged
        g.restore()
      })
      g.save(); g.beginPath(); g.rect(LEFT, 0, width(), height); g.clip()
      if (tick.checked) drawPath(g, p)
      if (chosen && chosen.p === p) drawChosen(g, p, chosen.k, ink.trim())
      g.fillStyle = soft.trim(); g.fillRect(x(t.latency), tops[p] - 4, 1, t.lanes.length * (LANE + GAP))
      g.restore()
    })
    canvas.dataset.window = `${lo} ${hi}`; canvas.dataset.merged = merged; canvas.dataset.bars = bars
    const count = parts.reduce((n, t) => n + t.count, 0), part = hi - lo < 0.999 * end ? ` · ${time(lo)} to ${time(hi)}` : ''
    quiet.textContent = `${count.toLocaleString('en')} instructions${merged ? ', merged where they are narrower than a pixel: as strong as the busy share' : ''}${part}${said ? ' · ' + said : ''}`
    canvas.setAttribute('aria-label', `Engine timeline: ${title.textContent}, ${quiet.textContent}. Arrows or W A S D zoom and pan, Escape shows everything.`)
  }
  function drawChosen(g, p, k, ink) {
    const t = parts[p], lane = laneOf(t, k), y = tops[p] + lane * (LANE + GAP)
    g.strokeStyle = ink; g.lineWidth = 2
    g.strokeRect(x(t.start[k]) - 1, y - 1, Math.max(2, x(t.start[k] + t.dur[k]) - x(t.start[k])) + 2, LANE + 2)
    if (t.after[k] >= 0) arrow(g, p, t.after[k], k, '#C8453B')
    let drawn = 0
    for (let j = 0; j < t.count && drawn < 200; j++) if (t.after[j] === k) { arrow(g, p, k, j, '#2F8F6B'); drawn++ }
  }
  function drawPath(g, p) {
    const t = parts[p]
    g.strokeStyle = '#C8453B'; g.lineWidth = 1.5
    g.beginPath()
    let first = true, last = -1e9
    for (const k of t.path) {
      const u = t.start[k], v = u + t.dur[k]
      if (v < lo || u > hi || x(v) - last < 0.5) continue
      const y = tops[p] + laneOf(t, k) * (LANE + GAP) + LANE + 2
      first ? g.moveTo(x(u), y) : g.lineTo(x(u), y)
      g.lineTo(x(v), y); first = false; last = x(v)
    }
    g.stroke()
  }

  const say = text => { info.textContent = text }
  function describe(p, k) {
    const t = parts[p], o = t.instr[k], turn = turnText(t, k), wait = t.after[k] >= 0 ? ` It waited for ${t.labels[t.instr[t.after[k]]]} (${t.causes[t.cause[k]]}).` : ''
    return `line ${t.lines[o]} · ${t.labels[o]}${turn ? ' · ' + turn : ''} · ${time(t.dur[k])} from ${time(t.start[k])}${t.critical[k] ? ' · on the critical path' : ''}.${wait}`
  }
  function at(e) {
    const box = canvas.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top
    if (px < LEFT || px > LEFT + width()) return null
    for (let p = parts.length - 1; p >= 0; p--) {
      const i = Math.floor((py - tops[p]) / (LANE + GAP)), t = parts[p]
      if (py < tops[p] || i >= t.lanes.length || (py - tops[p]) % (LANE + GAP) > LANE) continue
      const u = us(px), slack = 2 * (hi - lo) / width(), [a, b] = t.seen(i, u - slack, u + slack)
      let best = -1, far = Infinity
      for (let k = a, n = 0; k < b && n < 5000; k++, n++) {
        const d = Math.max(0, t.start[k] - u, u - t.start[k] - t.dur[k])
        if (d < far) { far = d; best = k }
      }
      return best < 0 ? null : { p, k: best }
    }
    return null
  }
  function choose(found) {
    chosen = found
    say(found ? describe(found.p, found.k) : '')
    if (found) select({ part: found.p, line: parts[found.p].lines[parts[found.p].instr[found.k]], instr: parts[found.p].instr[found.k], us: parts[found.p].start[found.k] })
    soon()
  }
  function view(a, b) {
    const least = Math.max(end * 1e-7, 1e-4), span = clamp(b - a, least, end)
    lo = clamp(a, 0, end - span); hi = lo + span; soon()
  }
  const zoom = (factor, around = (lo + hi) / 2) => view(around - (around - lo) * factor, around + (hi - around) * factor)
  const pan = share => view(lo + share * (hi - lo), hi + share * (hi - lo))

  canvas.addEventListener('wheel', e => {
    if (document.activeElement !== canvas && !e.ctrlKey && !e.metaKey && !e.shiftKey) return     // the page scrolls until a person clicks into the lanes
    e.preventDefault()
    const flat = e.deltaX || (e.shiftKey ? e.deltaY : 0)
    flat ? pan(flat / width()) : zoom(Math.exp(clamp(e.deltaY, -240, 240) * 0.0022), us(e.clientX - canvas.getBoundingClientRect().left))
  }, { passive: false })
  let drag = null
  canvas.addEventListener('pointerdown', e => { canvas.focus(); drag = { x: e.clientX, lo, hi, moved: false, zoom: e.shiftKey }; canvas.setPointerCapture(e.pointerId) })
  canvas.addEventListener('pointermove', e => {
    if (drag) {
      const way = (e.clientX - drag.x) / width() * (drag.hi - drag.lo)
      drag.moved ||= Math.abs(e.clientX - drag.x) > 3
      if (drag.moved && !drag.zoom) view(drag.lo - way, drag.hi - way)
      return
    }
    hover = at(e)
    tip.style.display = hover ? 'block' : 'none'
    if (!hover) return
    tip.textContent = describe(hover.p, hover.k)
    const box = root.getBoundingClientRect(), px = clamp(e.clientX - box.left + 12, 0, Math.max(0, box.width - tip.offsetWidth - 4))
    tip.style.left = px + 'px'; tip.style.top = e.clientY - box.top + 16 + 'px'
  })
  canvas.addEventListener('pointerup', e => {
    const was = drag
    drag = null
    if (!was) return
    if (!was.moved) return choose(at(e))
    if (was.zoom) { const left = canvas.getBoundingClientRect().left, [a, b] = [us(was.x - left), us(e.clientX - left)].sort((m, n) => m - n); view(a, b) }
  })
  canvas.addEventListener('pointerleave', () => { tip.style.display = 'none' })
  canvas.addEventListener('dblclick', () => view(0, end))
  canvas.addEventListener('keydown', e => {
    const keys = { w: () => zoom(0.7), ArrowUp: () => zoom(0.7), s: () => zoom(1 / 0.7), ArrowDown: () => zoom(1 / 0.7), a: () => pan(-0.15), ArrowLeft: () => pan(-0.15),
      d: () => pan(0.15), ArrowRight: () => pan(0.15), Escape: () => { choose(null); view(0, end) }, Home: () => view(0, hi - lo), End: () => view(end - hi + lo, end),
      n: () => next(1), p: () => next(-1), '/': () => find.focus() }
    const act = !e.ctrlKey && !e.metaKey && !e.altKey && keys[e.key]
    if (act) { act(); e.preventDefault(); e.stopPropagation() }
  })
  function next(step) {                                               // the next instruction in the lane of the chosen one
    if (!chosen) return
    const t = parts[chosen.p], lane = t.lanes[laneOf(t, chosen.k)], k = clamp(chosen.k + step, lane.from, lane.to - 1)
    choose({ p: chosen.p, k })
    if (t.start[k] < lo || t.start[k] + t.dur[k] > hi) view(t.start[k] - (hi - lo) / 2, t.start[k] + (hi - lo) / 2)
  }
  function search() {
    const text = find.value.trim().toLowerCase(), line = /^line:?\s*(\d+)$/.exec(text)
    matches = text ? parts.map(t => t.labels.map((l, o) => line ? t.lines[o] === +line[1] : l.toLowerCase().includes(text))) : null
    if (matches) say(`${parts.reduce((n, t, p) => { let m = 0; for (let k = 0; k < t.count; k++) m += matches[p][t.instr[k]] ? 1 : 0; return n + m }, 0).toLocaleString('en')} instructions match`)
    soon()
  }
  find.addEventListener('keydown', e => { e.stopPropagation(); if (e.key === 'Escape') { find.value = ''; search(); canvas.focus() } })
  find.addEventListener('input', search)
  by.addEventListener('change', () => { drawLegend(); soon() }); tick.addEventListener('change', soon)
  const grown = new ResizeObserver(soon), themed = new MutationObserver(soon)
  grown.observe(root); themed.observe(document.body, { attributes: true })

  return {
    show(given, words = {}) {
      parts = given.map(opened)
      for (const t of parts) { const names = [...new Set(t.ops)]; t.opIndex = t.ops.map(o => names.indexOf(o)); }
      end = Math.max(1e-3, ...parts.map(t => t.latency)); lo = 0; hi = end; chosen = null; find.value = ''; matches = null
      title.textContent = words.title ?? ''; said = words.of ?? ''
      say(parts.length ? 'Click into the lanes; then the wheel zooms, a drag pans, W A S D and arrows move, / finds. Click a bar for its line and what it waited for.' : '')
      drawLegend(); draw()
    },
    move(k, times, words = {}) {                                      // the times of one timeline have changed; what is in view stays
      const was = parts[k], all = hi - lo > 0.999 * end
      if (!was) return
      parts = parts.with(k, { ...opened({ ...was, ...times }), opIndex: was.opIndex })
      end = Math.max(1e-3, ...parts.map(t => t.latency)); title.textContent = words.title ?? ''; said = words.of ?? ''
      if (all) { lo = 0; hi = end } else { hi = Math.min(hi, end); lo = Math.min(lo, hi * 0.999) }
      if (chosen?.p === k) chosen = null
      draw()
    },
    line(number) { find.value = number ? `line:${number}` : ''; search() },
    close() { grown.disconnect(); themed.disconnect(); cancelAnimationFrame(frame); root.remove() },
  }
}

export default { render({ model, el }) {
  const timeline = mount(el, { select: found => model.send({ type: 'select', ...found }) })
  const moved = () => { const m = model.get('moved'); if (m.rows) timeline.move(m.part, m, model.get('words')) }
  const draw = () => { timeline.show(model.get('parts'), model.get('words')); moved() }
  const line = () => timeline.line(model.get('line'))
  model.on('change:parts', draw); model.on('change:line', line); model.on('change:moved', moved)
  draw(); line()
  return () => { model.off('change:parts', draw); model.off('change:line', line); model.off('change:moved', moved); timeline.close() }
} }
