// Line charts: a faint point for every update, a bold smoothed line through them.

const CHART = { width: 400, height: 190, left: 46, right: 10, top: 8, bottom: 24 };

function finite(values) {
  return values.filter(isNumber);
}

// Mean over a window of about a tenth of the run, shrunk alike on both sides towards
// the ends, so that the line neither lags behind the points nor leans at its ends.
function smooth(values) {
  const half = Math.floor(values.length / 20);
  return values.map((value, i) => {
    const reach = Math.min(half, i, values.length - 1 - i);
    const near = finite(values.slice(i - reach, i + reach + 1));
    return near.length ? near.reduce((a, b) => a + b, 0) / near.length : null;
  });
}

function ticks(low, high, about = 4) {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough) || rough;
  const found = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) {
    found.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  }
  return found;
}

function domain(values, chart) {
  let low = Math.min(...values), high = Math.max(...values);
  if (chart.unit) return [0, Math.max(1, high)];
  if (chart.zero) low = Math.min(0, low);
  if (chart.log) return [Math.floor(low), Math.max(Math.floor(low) + 1, Math.ceil(high))];
  if (low === 0 && high === 0) return [0, 1];
  // A flat curve gets room around it rather than its rounding errors blown up.
  const least = Math.max(Math.abs(high) * 1e-3, 1e-9);
  const pad = high - low > least ? (high - low) * 0.06 : Math.max(least, Math.abs(high) * 0.1);
  return [chart.zero && low >= 0 ? 0 : low - pad, high + pad];
}

// chart: {title, series: [{name, x, y, color, marks}], unit, zero, log, percent, wide}
function lineChart(chart) {
  const series = chart.series.filter((one) => finite(one.y).length);
  if (!series.length) return null;
  const size = { ...CHART, width: chart.wide ? 826 : CHART.width };
  const turn = chart.log
    ? (v) => (isNumber(v) && v > 0 ? Math.log10(v) : null)
    : (v) => (isNumber(v) ? v : null);
  const values = series.flatMap((one) => finite(one.y.map(turn)));
  if (!values.length) return null;
  const [low, high] = domain(values, chart);
  const xs = series.flatMap((one) => one.x);
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const px = (x) => size.left + ((x - first) / (last - first || 1)) * (size.width - size.left - size.right);
  const py = (y) => size.height - size.bottom - ((y - low) / (high - low)) * (size.height - size.top - size.bottom);
  const format = chart.percent ? (v) => percent(v, high - low < 0.05 ? 1 : 0) : (v) => number(v);
  const picture = svg("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": chart.title });
  const levels = chart.log ? logTicks(low, high) : ticks(low, high);
  for (const level of levels) {
    picture.append(
      svg("line", { class: "gridline", x1: size.left, x2: size.width - size.right, y1: py(level), y2: py(level) }),
      svg("text", { x: size.left - 6, y: py(level) + 3.5, "text-anchor": "end" },
        chart.log ? number(10 ** level, 1) : format(level)),
    );
  }
  for (const x of ticks(first, last || 1, chart.wide ? 10 : 5).filter((t) => Number.isInteger(t))) {
    picture.append(svg("text", { x: px(x), y: size.height - 7, "text-anchor": "middle" }, String(x)));
  }
  for (const one of series) {
    const points = one.x.map((x, i) => [x, turn(one.y[i])]).filter((p) => p[1] !== null);
    drawSeries(picture, one, points, px, py);
  }
  const cursor = svg("line", { class: "cursor", y1: size.top, y2: size.height - size.bottom });
  picture.append(cursor);
  const bounds = { size, first, last, px, format: chart.log ? (v) => number(v) : format };
  hover(picture, cursor, series, bounds, chart.per || "update");
  return el("div", { class: `chart${chart.wide ? " wide" : ""}` }, caption(chart, series), picture);
}

function logTicks(low, high) {
  const step = Math.max(1, Math.ceil((high - low) / 5));
  return Array.from({ length: Math.floor((high - low) / step) + 1 }, (_, i) => low + i * step);
}

function drawSeries(picture, one, points, px, py) {
  const stroke = `var(--${one.color})`;
  const line = (pairs, extra) => svg("polyline", {
    points: pairs.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" "),
    fill: "none", stroke, "stroke-linejoin": "round", "stroke-linecap": "round", ...extra,
  });
  if (one.marks) {
    picture.append(line(points, { "stroke-width": 2 }));
    for (const [x, y] of points) {
      picture.append(svg("circle", { cx: px(x), cy: py(y), r: 3.5, fill: "var(--card)", stroke, "stroke-width": 2 }));
    }
    return;
  }
  // Thousands of circles would make the page slow; a thin line says the same.
  if (points.length > 400) picture.append(line(points, { "stroke-width": 0.7, opacity: 0.35 }));
  else {
    for (const [x, y] of points) {
      picture.append(svg("circle", { cx: px(x).toFixed(1), cy: py(y).toFixed(1), r: 2, fill: stroke, opacity: 0.4 }));
    }
  }
  const smoothed = one.exact ? points.map((p) => p[1]) : smooth(points.map((p) => p[1]));
  picture.append(line(points.map(([x], i) => [x, smoothed[i]]), { "stroke-width": 2 }));
}

function caption(chart, series) {
  const keys = series.length > 1 || chart.keyed
    ? series.map((one) => el("span", { class: "key" }, el("i", { style: `background:var(--${one.color})` }), one.name))
    : [];
  return el("div", { class: "caption" }, el("h3", {}, chart.title), ...keys);
}

function hover(picture, cursor, series, bounds, per) {
  const { size, first, last, px, format } = bounds;
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * size.width;
    const share = (at - size.left) / (size.width - size.left - size.right);
    const wanted = first + Math.min(1, Math.max(0, share)) * (last - first);
    const nearest = (one) => one.x.reduce((best, x, i) =>
      (Math.abs(x - wanted) < Math.abs(one.x[best] - wanted) ? i : best), 0);
    const x = series[0].x[nearest(series[0])];
    cursor.setAttribute("x1", px(x));
    cursor.setAttribute("x2", px(x));
    cursor.style.visibility = "visible";
    const lines = series.map((one) => {
      const i = nearest(one);
      const where = one.x[i] === x ? "" : ` (${per} ${one.x[i]})`;
      return `${one.name}: ${format(one.y[i])}${where}`;
    });
    showTip([`${per} ${x}`, ...lines].join("\n"), event.clientX, event.clientY);
  });
  picture.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    hideTip();
  });
}
