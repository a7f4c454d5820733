addEventListener('DOMContentLoaded', () => withPlotly(() => {
  for (const box of document.querySelectorAll('.kl-plot')) {
    const figure = JSON.parse(box.querySelector('script').textContent), plot = document.createElement('div')
    box.replaceChildren(plot)
    broken(figure.layout, box.clientWidth)
    Plotly.newPlot(plot, figure.data, figure.layout, figure.config)
  }
}))
