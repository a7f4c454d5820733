// A slider over named stops. The page sends the newest stop only; while Python is at work on one, those in between are left out.
const node = (tag, cls, text) => { const n = document.createElement(tag); if (cls) n.className = cls; if (text != null) n.textContent = text; return n }
export default { render({ model, el }) {
  const root = node('label', 'kl-stop'), name = node('span', '', model.get('label')), range = node('input'), out = node('output')
  Object.assign(range, { type: 'range', min: 0, max: model.get('stops').length - 1, step: 1, title: model.get('says') })
  root.append(name, range, out); el.append(root)
  const draw = () => {
    range.value = model.get('index')
    range.style.setProperty('--kl-at', `${100 * range.value / (range.max || 1)}%`)
    out.textContent = model.get('stops')[model.get('index')]
    range.setAttribute('aria-valuetext', `${out.textContent}, ${model.get('says')}`)
    root.classList.toggle('kl-moved', model.get('index') !== model.get('home'))
  }
  range.addEventListener('input', () => { model.set('index', +range.value); draw(); model.save_changes() })
  range.addEventListener('keydown', e => { if (!e.ctrlKey && !e.metaKey && !e.altKey && e.key !== 'Tab') e.stopPropagation() })   // the arrows are the slider's, not JupyterLab's
  range.addEventListener('dblclick', () => { model.set('index', model.get('home')); draw(); model.save_changes() })
  model.on('change:index', draw)
  draw()
  return () => model.off('change:index', draw)
} }
