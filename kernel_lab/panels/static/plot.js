// Margins with room for what stands left of the plot and right of it: plotly draws a figure twice where it must find them itself. What it knows only when it
// draws, as the numbers that it writes along an axis, is left to it.
function margins(data, layout, width) {
  const of = layout.template?.layout ?? {}, x = { ...of.xaxis, ...layout.xaxis }, y = { ...of.yaxis, ...layout.yaxis }, bar = data.find(t => t.colorbar)?.colorbar ?? data.find(t => t.marker?.colorbar)?.marker.colorbar
  const names = y.ticktext ?? (y.type === 'category' ? data.flatMap(t => Array.isArray(t.y) ? t.y : []) : y.tickvals), margin = { ...of.margin, ...layout.margin }
  if (!Array.isArray(names) || layout.yaxis2 || layout.grid || !(margin.b >= 50) || (bar && !bar.ticktext)) return
  const widest = (texts, font) => Math.max(0, ...texts.map(text => {
    ruler.font = `${font?.size ?? 12}px ${of.font?.family ?? 'sans-serif'}`
    return ruler.measureText(String(text).replace(/<[^>]*>/g, '').replace(/\s+/g, ' ')).width * (/<b>/.test(text) ? 1.06 : 1)
  }))
  const left = 20 + widest(names, y.tickfont) + (y.title?.text ? 17 : 0), off = (bar?.x ?? 1.02) - 1         // a bar of colours stands off by a share of the plot
  const right = bar ? (41 + widest(bar.ticktext, bar.tickfont) + off * (width - left)) / (1 + off) : 0
  layout.margin = { ...margin, l: Math.ceil(Math.max(margin.l ?? 0, left)), r: Math.ceil(Math.max(margin.r ?? 0, right)) }
  layout.xaxis = { ...layout.xaxis, automargin: false }; layout.yaxis = { ...layout.yaxis, automargin: false }
}

export default { render({ model, el }) {
  const plot = el.appendChild(document.createElement('div'))
  let Plotly, gone = false, waits = false               // for a width: none while a tab hides it, and drawn then it would be drawn twice
  const say = said => model.send(said)
  const everything = () => { draw(); say({ type: 'window', window: null }) }
  const moved = e => {
    const [lo, hi] = e['xaxis.range'] ?? [e['xaxis.range[0]'], e['xaxis.range[1]']]
    if (lo !== undefined) say({ type: 'window', window: [lo, hi] })
  }
  const draw = () => {
    if (!Plotly || gone) return
    if (!model.get('drawn')) return Plotly.purge(plot)
    const width = plot.clientWidth
    if (waits = !width) return
    const { data, layout } = JSON.parse(model.get('drawn'))
    broken(layout, width)
    margins(data, layout, width)
    const home = { name: 'everything', title: 'Show everything', icon: Plotly.Icons.home, click: everything }
    const config = { ...model.get('config'), doubleClick: false, modeBarButtonsToAdd: [home] }
    if (plot._fullLayout) return Plotly.react(plot, data, layout, config)          // what listens stays, and so does half of what is drawn
    Plotly.newPlot(plot, data, layout, config)
    plot.on('plotly_relayout', moved)
    plot.on('plotly_doubleclick', everything)
    plot.on('plotly_click', e => e.points.slice(0, 1).forEach(p => say({ type: 'click', trace: p.curveNumber, y: p.y })))
  }
  const seen = new ResizeObserver(() => { if (waits && plot.clientWidth) draw() })
  seen.observe(plot)
  model.on('change:drawn', draw);
  (globalThis.kernelLabPlotly ??= Promise.withResolvers()).promise.then(found => { Plotly = found; draw() })
  return () => { gone = true; seen.disconnect(); model.off('change:drawn', draw); Plotly?.purge(plot) }
} }
