// Unpacks plotly.js, draws the plots in the colours of the scheme, and draws anew when it changes.
// Where that is not possible, the still picture of the <noscript> element takes their place.
(async () => {
  const root = document.documentElement;
  const text = (id) => document.getElementById(id).textContent;
  const narrow = matchMedia("(max-width: 720px)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");

  async function unpack(base64) {
    const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  // "$name" stands for the style variable --name.
  function coloured(json) {
    const style = getComputedStyle(root);
    const colour = (_, name) => JSON.stringify(style.getPropertyValue("--" + name).trim());
    return JSON.parse(json.replace(/"\$([a-z-]+)"/g, colour));
  }

  function layoutOf(plot) {
    const style = getComputedStyle(root);
    const [ink, faint, grid, card] = ["ink", "faint", "grid", "card"].map((name) =>
      style.getPropertyValue("--" + name).trim());
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: faint, automargin: true,
      title: { standoff: 8 } };
    const { xaxis, yaxis, margin, ...rest } = plot.layout;
    const joined = (own) => ({ ...axis, ...own, title: { ...axis.title, ...own.title } });
    return {
      autosize: true,
      paper_bgcolor: card,
      plot_bgcolor: card,
      font: { color: ink, size: narrow.matches ? 11 : 12.5, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: card, bordercolor: faint, font: { color: ink } },
      legend: { orientation: "h", traceorder: "normal", x: 0, y: 0, yref: "container", yanchor: "bottom" },
      // A finger that moves over a plot scrolls the page.
      dragmode: touch.matches ? false : "zoom",
      ...rest,
      margin: { l: 48, r: 14, t: 30, b: 84, ...margin },
      xaxis: { ...joined(xaxis), showgrid: false },
      yaxis: joined(yaxis),
    };
  }

  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: touch.matches ? true : "hover",
    modeBarButtons: [["zoomIn2d", "zoomOut2d", "pan2d", "resetScale2d"]],
  };

  async function draw() {
    for (const [id, plots] of Object.entries(coloured(text("data")))) {
      const place = document.getElementById(id);
      for (const [index, plot] of plots.entries()) {
        if (!place.children[index]) {
          place.append(document.createElement("div"));
          const title = document.createElement("h3");
          title.textContent = plot.title;
          place.children[index].append(title);
        }
        if (!plot.traces.length) continue;
        let canvas = place.children[index].querySelector(".canvas");
        if (!canvas) {
          canvas = document.createElement("div");
          canvas.className = "canvas";
          place.children[index].append(canvas);
        }
        await Plotly.react(canvas, plot.traces, layoutOf(plot), config);
      }
    }
  }

  try {
    await unpack(text("library"));
    root.classList.add("drawn");
    await draw();
    for (const query of [dark, narrow]) query.addEventListener("change", draw);
    root.dataset.shows = "plots";
  } catch (error) {
    console.warn("no interactive plots:", error);
    root.classList.remove("drawn");
    const still = document.querySelector("noscript");
    still.insertAdjacentHTML("afterend", still.textContent);
    root.dataset.shows = "still";
  }
})();
