export default { render({ model, el }) {
  const plot = el.appendChild(document.createElement('div'))
  let Plotly, gone = false, width = 0                   // of the panel when it was drawn: 0 while a tab hides it
  const say = said => model.send(said)
  const everything = () => { draw(); say({ type: 'window', window: null }) }
  const moved = e => {
    const [lo, hi] = e['xaxis.range'] ?? [e['xaxis.range[0]'], e['xaxis.range[1]']]
    if (lo !== undefined) say({ type: 'window', window: [lo, hi] })
  }
  const draw = () => {
    if (!Plotly || gone) return
    if (!model.get('drawn')) return Plotly.purge(plot)
    const { data, layout } = JSON.parse(model.get('drawn'))
    broken(layout, width = plot.clientWidth)
    const home = { name: 'everything', title: 'Show everything', icon: Plotly.Icons.home, click: everything }
    const config = { ...model.get('config'), doubleClick: false, modeBarButtonsToAdd: [home] }
    if (plot._fullLayout) return Plotly.react(plot, data, layout, config)          // what listens stays, and so does half of what is drawn
    Plotly.newPlot(plot, data, layout, config)
    plot.on('plotly_relayout', moved)
    plot.on('plotly_doubleclick', everything)
    plot.on('plotly_click', e => e.points.slice(0, 1).forEach(p => say({ type: 'click', trace: p.curveNumber, y: p.y })))
  }
  const seen = new ResizeObserver(() => { if (!width && plot.clientWidth) draw() })
  seen.observe(plot)
  model.on('change:drawn', draw);
  (globalThis.kernelLabPlotly ??= Promise.withResolvers()).promise.then(found => { Plotly = found; draw() })
  return () => { gone = true; seen.disconnect(); model.off('change:drawn', draw); Plotly?.purge(plot) }
} }
