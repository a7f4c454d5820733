export default { render({ el }) {
  let panel, timer
  const misfit = p => { const s = p.querySelector('.main-svg'); return s && p.clientWidth && Math.abs(s.getAttribute('width') - p.clientWidth) > 1 }
  const fit = () => { if ([...panel.querySelectorAll('.js-plotly-plot')].some(misfit)) window.dispatchEvent(new Event('resize')) }
  const soon = () => { clearTimeout(timer); timer = setTimeout(fit, 80) }
  const grown = new ResizeObserver(soon), drawn = new MutationObserver(soon)
  const start = setTimeout(() => {
    panel = el.closest('.kl') ?? el.parentElement
    grown.observe(panel); drawn.observe(panel, { childList: true, subtree: true }); soon()
  }, 0)
  return () => { clearTimeout(start); clearTimeout(timer); grown.disconnect(); drawn.disconnect() }
} }
