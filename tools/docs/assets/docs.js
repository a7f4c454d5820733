// Figures are drawn when they come near the window; plotly is loaded once, from beside this file.
const assets = new URL(".", document.currentScript.src).href;
let plotly;

function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, { src: assets + "plotly.min.js", onload: () => resolve(window.Plotly), onerror: reject });
    document.head.append(script);
  });
  return plotly;
}

async function draw(box) {
  const figure = JSON.parse(box.querySelector("script").textContent);
  const Plotly = await loadPlotly();
  await Plotly.newPlot(box, figure.data, figure.layout, { displayModeBar: false, responsive: true, showLink: false });
  box.classList.add("drawn");
}

const near = new IntersectionObserver(entries => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    draw(target);
  }
}, { rootMargin: "400px" });
document.querySelectorAll("div.plotly").forEach(box => near.observe(box));
