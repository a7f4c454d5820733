addEventListener('DOMContentLoaded', () => withPlotly(() => {
  for (const box of document.querySelectorAll('.kl-plot')) {
    const figure = JSON.parse(box.querySelector('script').textContent), plot = document.createElement('div')
    box.replaceChildren(plot)
    Plotly.newPlot(plot, figure.data, figure.layout, figure.config)
  }
}))
