// The engine lanes of one or several timelines over one time axis, on a canvas (see canvas.js). Python sends each timeline once, its rows sorted by
// lane and start; zooming, panning, searching and selecting ask nobody. `mount` itself needs no notebook.
const LANE = 22, GAP = 6, AXIS = 24, HEAD = 22, SAMPLE = 24
const CAUSE_HUES = ['#8B929C', '#8286AD', '#4268CD', '#9C744A', '#9A4773', '#D8911E', '#C8453B', '#2A9DA8']
const percent = x => x >= 0.0995 ? `${(100 * x).toFixed(0)} %` : `${(100 * x).toFixed(1)} %`

// The first index in [lo, hi) whose value is above x.
function above(values, x, lo, hi) { while (lo < hi) { const m = (lo + hi) >> 1; if (values[m] > x) hi = m; else lo = m + 1 } return lo }

// The same, quick where it is near a guess: one column of pixels after another asks for the next moment.
function near(values, x, lo, hi, guess) {
  let a = clamp(guess, lo, hi), step = 1
  if (a > lo && values[a - 1] > x) return above(values, x, lo, a)
  while (a + step < hi && values[a + step] <= x) { a += step; step *= 2 }
  return above(values, x, a, Math.min(a + step, hi))
}

// A timeline as typed arrays, with what makes any window cheap: per lane the latest end so far, and the time that is covered so far. `known`: one with the
// same instructions in the same order, which is not drawn any more: its arrays of results serve again.
function opened(part, known) {
  const n = part.count, take = columns(part.rows, n), of = known ? null : columns(part.which, n)
  const ticks = take(Uint32Array), start = known?.start ?? new Float64Array(n)
  for (let k = 0; k < n; k++) start[k] = ticks[k] * part.tick
  const t = { ...part, start, dur: take(Float32Array), instr: known?.instr ?? of(Uint32Array), turn: known?.turn ?? of(Uint32Array), after: null, cause: null,
    latest: known?.latest ?? new Float64Array(n), covered: known?.covered ?? new Float64Array(n + part.lanes.length), hint: new Uint32Array(part.lanes.length) }
  let path = null, marked = null                                                    // the critical path, from what ends last back to what waited for nothing
  t.path = () => { if (!path) { path = []; for (let k = t.last; k >= 0; k = t.after[k]) path.push(k); path.reverse() } return path }
  t.isCritical = k => (marked ??= new Set(t.path())).has(k)
  t.wait = rows => { const take = columns(rows, n); t.after = take(Int32Array); t.cause = take(Uint8Array) }      // what moves comes before them
  if (part.waits) t.wait(part.waits)
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
    const { from, to } = t.lanes[i], k = near(t.start, when, from, to, t.hint[i])
    t.hint[i] = k
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
  const root = node('div', 'kl-cv kl-tl'), bar = node('div', 'kl-cv-bar'), canvas = node('canvas'), info = node('div', 'kl-cv-info kl-tl-info'), legend = node('div', 'kl-tl-legend')
  const title = node('span', 'kl-title'), quiet = node('span', 'kl-quiet'), find = node('input'), by = node('select'), path = node('label'), tick = node('input')
  Object.assign(find, { type: 'search', placeholder: 'find: dma_copy, x_tile, line:12' }); find.setAttribute('aria-label', 'Find instructions')
  by.setAttribute('aria-label', 'Colour by')
  for (const [value, text] of [['engine', 'by engine'], ['op', 'by operation'], ['line', 'by line'], ['cause', 'by what it waited for']]) {
    const o = node('option', '', text); o.value = value; by.append(o)
  }
  tick.type = 'checkbox'; path.append(tick, ' critical path')
  bar.append(title, quiet, find, by, path); root.append(bar, canvas, legend, info); el.append(root)
  Object.assign(canvas, { tabIndex: 0 }); canvas.setAttribute('role', 'application')
  info.setAttribute('aria-live', 'polite')
  let parts = [], chosen = null, matches = null, tops = [], said = note, bars = 0
  const { soon, now, stop } = redrawing(root, () => draw()), w = new TimeWindow(canvas, soon), x = us => w.x(us)

  const hue = (t, k, lane) => {
    const o = t.instr[k]
    if (by.value === 'op') return HUES[t.opIndex[o] % HUES.length]
    if (by.value === 'line') return HUES[t.lines[o] % HUES.length]
    if (by.value === 'cause') return CAUSE_HUES[t.cause ? t.cause[k] % CAUSE_HUES.length : 0]
    return lane.colour
  }
  const shown = (p, k) => !matches || matches[p][parts[p].instr[k]]

  // One lane: bars one by one where each has pixels of its own, else one a column of pixels, as strong as its busy share, which is exact.
  function drawLane(g, p, i, y) {
    const t = parts[p], lane = t.lanes[i], [a, b] = t.seen(i, w.lo, w.hi)
    if (2 * (b - a) <= w.width) {
      for (let k = a; k < b; k++) {
        const from = Math.max(x(t.start[k]), LEFT), to = Math.min(x(t.start[k] + t.dur[k]), LEFT + w.width)
        g.globalAlpha = shown(p, k) ? 1 : 0.12
        g.fillStyle = hue(t, k, lane); bars++
        g.fillRect(from, y, Math.max(to - from - (to - from > 4 ? 0.6 : 0), 0.7), LANE)
      }
      g.globalAlpha = 1
      return false
    }
    const wide = Math.floor(w.width), step = (w.hi - w.lo) / wide
    let before = t.busy(i, w.lo)
    for (let c = 0; c < wide; c++) {
      const u = w.lo + c * step, now = t.busy(i, u + step), share = (now - before) / step
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
      else if (t.cause) { const seen = new Uint32Array(t.causes.length); for (const c of t.cause) seen[c]++; seen.forEach((n, c) => n && add(CAUSE_HUES[c % CAUSE_HUES.length], t.causes[c], n)) }
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
  function draw() {
    if (!parts.length || !canvas.clientWidth) return
    const look = themed(root), { ink, soft } = look
    const rule = 'rgba(128,136,148,0.20)', track = 'rgba(128,136,148,0.09)'
    tops = []
    let y = 0
    const head = parts.length > 1 ? HEAD : GAP                        // several are named, each above its lanes
    for (const t of parts) { tops.push(y + head); y += head + t.lanes.length * (LANE + GAP) }
    const height = y + AXIS
    const g = cleared(canvas, height)
    w.axis(g, look, y, rule)
    let merged = false
    bars = 0
    parts.forEach((t, p) => {
      g.textAlign = 'left'; g.textBaseline = 'middle'; g.font = '12px ' + look.font
      if (parts.length > 1) { g.fillStyle = soft; g.fillText(t.title, LEFT, tops[p] - head / 2) }
      t.lanes.forEach((lane, i) => {
        const top = tops[p] + i * (LANE + GAP), share = t.share(i, w.lo, Math.min(w.hi, t.latency))
        g.fillStyle = track; g.fillRect(LEFT, top, w.width, LANE)
        g.fillStyle = ink; g.textAlign = 'right'
        g.fillText(lane.name + (share > 0 ? `  ${percent(share)}` : ''), LEFT - 10, top + LANE / 2)
        g.save(); g.beginPath(); g.rect(LEFT, top - 2, w.width, LANE + 4); g.clip()
        merged = drawLane(g, p, i, top) || merged
        g.restore()
      })
      g.save(); g.beginPath(); g.rect(LEFT, 0, w.width, height); g.clip()
      if (tick.checked && t.after) drawPath(g, p)
      if (chosen && chosen.p === p) drawChosen(g, p, chosen.k, ink)
      g.fillStyle = soft; g.fillRect(x(t.latency), tops[p] - 4, 1, t.lanes.length * (LANE + GAP))
      g.restore()
    })
    canvas.dataset.window = `${w.lo} ${w.hi}`; canvas.dataset.merged = merged; canvas.dataset.bars = bars
    const count = parts.reduce((n, t) => n + t.count, 0)
    quiet.textContent = `${count.toLocaleString('en')} instructions${merged ? ', merged where they are narrower than a pixel: as strong as the busy share' : ''}${w.said}${said ? ' · ' + said : ''}`
    canvas.setAttribute('aria-label', `Engine timeline: ${title.textContent}, ${quiet.textContent}. Arrows or W A S D zoom and pan, Escape shows everything.`)
  }
  function drawChosen(g, p, k, ink) {
    const t = parts[p], lane = laneOf(t, k), y = tops[p] + lane * (LANE + GAP)
    g.strokeStyle = ink; g.lineWidth = 2
    g.strokeRect(x(t.start[k]) - 1, y - 1, Math.max(2, x(t.start[k] + t.dur[k]) - x(t.start[k])) + 2, LANE + 2)
    if (!t.after) return
    if (t.after[k] >= 0) arrow(g, p, t.after[k], k, '#C8453B')
    let drawn = 0
    for (let j = 0; j < t.count && drawn < 200; j++) if (t.after[j] === k) { arrow(g, p, k, j, '#2F8F6B'); drawn++ }
  }
  function drawPath(g, p) {
    const t = parts[p]
    g.strokeStyle = '#C8453B'; g.lineWidth = 1.5
    g.beginPath()
    let first = true, last = -1e9
    for (const k of t.path()) {
      const u = t.start[k], v = u + t.dur[k]
      if (v < w.lo || u > w.hi || x(v) - last < 0.5) continue
      const y = tops[p] + laneOf(t, k) * (LANE + GAP) + LANE + 2
      first ? g.moveTo(x(u), y) : g.lineTo(x(u), y)
      g.lineTo(x(v), y); first = false; last = x(v)
    }
    g.stroke()
  }

  const say = text => { info.textContent = text }
  function describe(p, k) {
    const t = parts[p], o = t.instr[k], turn = turnText(t, k), wait = t.after?.[k] >= 0 ? ` It waited for ${t.labels[t.instr[t.after[k]]]} (${t.causes[t.cause[k]]}).` : ''
    return `line ${t.lines[o]} · ${t.labels[o]}${turn ? ' · ' + turn : ''} · ${time(t.dur[k])} from ${time(t.start[k])}, simulated${t.after && t.isCritical(k) ? ' · on the critical path' : ''}.${wait}`
  }
  function at(e) {
    const box = canvas.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top
    if (px < LEFT || px > LEFT + w.width) return null
    for (let p = parts.length - 1; p >= 0; p--) {
      const i = Math.floor((py - tops[p]) / (LANE + GAP)), t = parts[p]
      if (py < tops[p] || i >= t.lanes.length || (py - tops[p]) % (LANE + GAP) > LANE) continue
      const u = w.us(px), slack = 2 * (w.hi - w.lo) / w.width, [a, b] = t.seen(i, u - slack, u + slack)
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
  interactive(w, root, { hit: at, describe: f => describe(f.p, f.k), click: e => choose(at(e)), keys: {
    ArrowLeft: () => w.pan(-0.15), ArrowRight: () => w.pan(0.15), Escape: () => { choose(null); w.whole() }, Home: () => w.view(0, w.hi - w.lo),
    End: () => w.view(w.end - w.hi + w.lo, w.end), n: () => next(1), p: () => next(-1), '/': () => find.focus() } })
  function next(step) {                                               // the next instruction in the lane of the chosen one
    if (!chosen) return
    const t = parts[chosen.p], lane = t.lanes[laneOf(t, chosen.k)], k = clamp(chosen.k + step, lane.from, lane.to - 1)
    choose({ p: chosen.p, k })
    if (t.start[k] < w.lo || t.start[k] + t.dur[k] > w.hi) w.centre(t.start[k])
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

  return {
    show(given, words = {}) {
      parts = given.map(part => opened(part))
      for (const t of parts) { const names = [...new Set(t.ops)]; t.opIndex = t.ops.map(o => names.indexOf(o)); }
      w.whole(Math.max(1e-3, ...parts.map(t => t.latency))); chosen = null; find.value = ''; matches = null
      title.textContent = words.title ?? ''; said = words.of ?? ''
      say(parts.length ? 'Click into the lanes; then the wheel zooms, a drag pans, W A S D and arrows move, / finds. Click a bar for its line and what it waited for.' : '')
      drawLegend(); now()
    },
    move(k, times, words = {}) {                                      // the times of one timeline have changed; what is in view stays
      const was = parts[k], all = w.hi - w.lo > 0.999 * w.end
      if (!was) return
      parts = parts.with(k, Object.assign(opened({ ...was, waits: null, ...times }, times.which ? undefined : was), { opIndex: was.opIndex }))
      w.end = Math.max(1e-3, ...parts.map(t => t.latency)); title.textContent = words.title ?? ''; said = words.of ?? ''
      if (all) w.whole(); else { w.hi = Math.min(w.hi, w.end); w.lo = Math.min(w.lo, w.hi * 0.999) }
      if (chosen?.p === k) chosen = null
      now()
    },
    wait(k, rows) { if (parts[k]) { parts[k].wait(rows); drawLegend(); if (tick.checked || chosen || by.value === 'cause') soon() } },         // and what they waited for
    line(number) { find.value = number ? `line:${number}` : ''; search() },
    close() { stop(); root.remove() },
  }
}

export default { render({ model, el }) {
  const timeline = mount(el, { select: found => model.send({ type: 'select', ...found }) })
  const moved = () => { const m = model.get('moved'); if (m.rows) timeline.move(m.part, m, model.get('words')) }
  const waits = () => { const m = model.get('waits'); if (m.rows) timeline.wait(m.part, m.rows) }
  const draw = () => { timeline.show(model.get('parts'), model.get('words')); moved(); waits() }
  const line = () => timeline.line(model.get('line'))
  model.on('change:parts', draw); model.on('change:line', line); model.on('change:moved', moved); model.on('change:waits', waits)
  draw(); line()
  return () => { model.off('change:parts', draw); model.off('change:line', line); model.off('change:moved', moved); model.off('change:waits', waits); timeline.close() }
} }
