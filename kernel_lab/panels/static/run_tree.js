// The tree of a run: Python draws it as SVG; here its dots are clicked, and reached by the arrow keys.
export default { render({ model, el }) {
  const root = document.createElement('div'); root.className = 'kl-tree-box'; el.append(root)
  const nodes = () => [...root.querySelectorAll('.kl-node')]
  const choose = (node, focus) => {
    if (!node) return
    for (const n of nodes()) { n.classList.toggle('kl-on', n === node); n.setAttribute('tabindex', n === node ? 0 : -1); n.setAttribute('aria-pressed', n === node) }
    if (focus) node.focus()
    model.send({ type: 'select', step: +node.dataset.step })
  }
  const draw = () => {
    const had = root.contains(document.activeElement) && document.activeElement.closest('.kl-node')?.dataset.step
    root.innerHTML = model.get('svg')
    const on = root.querySelector('.kl-on'), at = nodes().find(n => n.dataset.step === had) ?? on
    if (had) at?.focus()
    on?.scrollIntoView({ block: 'nearest', inline: 'nearest' })
  }
  const compare = node => node && model.send({ type: 'compare', step: +node.dataset.step })
  root.addEventListener('click', e => {
    const node = e.target.closest('.kl-node')
    if (e.shiftKey || e.ctrlKey || e.metaKey) { e.preventDefault(); compare(node) } else choose(node)
  })
  root.addEventListener('keydown', e => {
    const at = e.target.closest('.kl-node'); if (!at) return
    const all = nodes(), k = all.indexOf(at), step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -all.length, End: all.length }[e.key]
    if (e.key === 'c' && !e.ctrlKey && !e.metaKey) { e.preventDefault(); e.stopPropagation(); compare(at) }
    else if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); choose(at, true) }
    else if (step) { e.preventDefault(); e.stopPropagation(); choose(all[Math.min(Math.max(k + step, 0), all.length - 1)], true) }
  })
  model.on('change:svg', draw)
  draw()
  return () => model.off('change:svg', draw)
} }
