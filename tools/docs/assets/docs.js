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

// A figure on white paper would be a slab of light on a dark page: it gets the page's own paper, and greys that suit both themes.
function onThisPage(figure) {
  const plain = figure.layout?.template?.layout, none = "rgba(0,0,0,0)", grey = "#808791", pale = "rgba(128,135,145,0.25)";
  if (plain?.paper_bgcolor !== "white") return figure;
  Object.assign(plain, { paper_bgcolor: none, plot_bgcolor: none, font: { ...plain.font, color: grey } });
  for (const axis of ["xaxis", "yaxis"]) Object.assign(plain[axis] ??= {}, { gridcolor: pale, zerolinecolor: pale, linecolor: pale });
  for (const trace of figure.data) if (trace.type === "waterfall") (trace.connector ??= {}).line ??= { color: grey, width: 1 };
  return figure;
}

async function draw(box) {
  const figure = onThisPage(JSON.parse(box.querySelector("script").textContent));
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
