// The timeline: the learner's lane over the sampler's slots, on a canvas that zooms.

const GUTTER = 74, AXIS = 26, LEARNER = 34, GAP = 26, HUES = 8;

// `first` is the round that is shown first, the middle one if it is left out.
function timelineSection(section, shown, first = Math.floor(shown.rounds.length / 2)) {
  if (!shown.rounds.length) return;
  const canvas = el("canvas", { tabindex: "0", role: "img",
    "aria-label": "Timeline of learner and sampler slots; arrow keys move, plus and minus zoom" });
  const lesson = el("p", { class: "lesson" });
  const select = el("select", { "aria-label": "Round" });
  shown.rounds.forEach((round, i) => select.append(el("option", { value: i }, `round of version ${round.version}`)));
  select.append(el("option", { value: -1 }, "whole run"));
  const view = { start: 0, end: 1, focus: null, round: null };
  const paint = () => draw(canvas, shown, view);
  const go = (index) => {
    select.value = index;
    view.round = index < 0 ? null : shown.rounds[index];
    const [start, end] = extent(shown, view.round);
    const margin = (end - start) * 0.02;
    Object.assign(view, { start: start - margin, end: end + margin, focus: null });
    tell(lesson, shown, view.round);
    paint();
  };
  const step = (by) => {
    const last = shown.rounds.length - 1;
    go(Math.max(0, Math.min(last, Number(select.value) < 0 ? last : Number(select.value) + by)));
  };
  const zoom = (factor, at = (view.start + view.end) / 2) => {
    const [start, end] = extent(shown, null);
    const length = Math.min((end - start) * 1.1, Math.max(2, (view.end - view.start) * factor));
    const share = (at - view.start) / (view.end - view.start);
    view.start = at - share * length;
    view.end = view.start + length;
    paint();
  };
  const pan = (by) => {
    view.start += by;
    view.end += by;
    paint();
  };
  select.addEventListener("change", () => go(Number(select.value)));
  const button = (label, title, act) => el("button", { title, "aria-label": title, onclick: act }, label);
  section.append(
    el("div", { class: "head" }, el("h2", {}, "Sampling and learning overlap"), el("span", { class: "grow" }),
      button("‹", "Round before", () => step(-1)), select, button("›", "Next round", () => step(1)),
      button("+", "Zoom in", () => zoom(0.6)), button("−", "Zoom out", () => zoom(1 / 0.6)),
      button("Fit", "Show the whole round", () => go(Number(select.value)))),
    lesson, canvas, legend(),
  );
  steer(canvas, view, { zoom, pan, paint, shown });
  go(first);
  new ResizeObserver(paint).observe(canvas);
  canvas.addEventListener("repaint", paint);
  repaintWithScheme(canvas);
}

// On its own, and weak: a live page draws a new timeline each round, and must not keep
// the old ones.
function repaintWithScheme(canvas) {
  const weak = new WeakRef(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    const still = weak.deref();
    if (still) still.dispatchEvent(new Event("repaint"));
  });
}

function extent(shown, round) {
  if (round) return [round.start, round.end];
  return [Math.min(...shown.rounds.map((r) => r.start)), Math.max(...shown.rounds.map((r) => r.end))];
}

function tell(lesson, shown, round) {
  const facts = round ? round.facts : { hidden_ratio: shown.hidden_ratio, wait_ratio: shown.wait_ratio };
  const parts = [];
  if (round && isNumber(facts.first_gradient_s)) {
    parts.push("The first gradient starts ", el("b", {}, seconds(facts.first_gradient_s)),
      " into the round and the last token is drawn at ", el("b", {}, seconds(facts.last_token_s)), ". ");
  }
  if (isNumber(facts.hidden_ratio)) {
    parts.push(el("b", {}, percent(facts.hidden_ratio)),
      ` of the learner's work ${round ? "" : "in the run "}is done while slots are still decoding; it waits `,
      el("b", { class: "waiting" }, percent(facts.wait_ratio)), " of the time.");
  } else parts.push("Nothing was trained in this round.");
  lesson.replaceChildren(...parts);
}

function legend() {
  const item = (kind, text, style) => el("span", {}, el("i", { class: `swatch ${kind}`, style }), text);
  return el("div", { class: "legend" },
    item("", "learner: gradients", "background:var(--accent)"),
    item("", "optimizer step", "background:var(--deep)"),
    item("wait", "learner waits"),
    item("groups", "completions, coloured by group"),
    item("dot", "group complete"),
    item("publish", "publish"),
    item("", "evaluation", "background:var(--evaluation)"),
    el("span", {}, "Drag to move, Ctrl + wheel or double click to zoom."));
}

function layout(shown) {
  const slots = Math.max(1, shown.lanes.length);
  const row = Math.max(3, Math.min(15, Math.floor(400 / slots)));
  const top = AXIS + LEARNER + GAP;
  return { slots, row, top, bottom: top + slots * row, height: top + slots * row + 6 };
}

function draw(canvas, shown, view) {
  const place = layout(shown);
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth || 900;
  canvas.style.height = `${place.height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(place.height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(place.height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, place.height);
  pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  const x = (t) => GUTTER + ((t - view.start) / (view.end - view.start)) * (width - GUTTER - 4);
  const rounds = shown.rounds.filter((r) => r.end >= view.start && r.start <= view.end);
  const scene = { pen, width, place, x, view, shown };
  drawAxis(scene);
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, 0, width - GUTTER, place.height);
  pen.clip();
  for (const round of rounds) drawOverlap(scene, round);
  for (const round of rounds) drawSlots(scene, round);
  for (const round of rounds) drawLearner(scene, round);
  drawOthers(scene);
  for (const round of rounds) if (round === view.round) drawGuides(scene, round);
  pen.restore();
}

function drawAxis({ pen, width, place, x, view }) {
  const zero = view.round ? view.round.start : 0;
  pen.fillStyle = color("quiet");
  pen.textAlign = "center";
  const marks = ticks((view.start - zero) / 1e3, (view.end - zero) / 1e3, Math.max(3, width / 130));
  const digits = marks.length > 1 ? Math.max(0, -Math.floor(Math.log10(marks[1] - marks[0]) + 1e-9)) : 2;
  for (const t of marks) {
    const at = x(t * 1e3 + zero);
    if (at < GUTTER) continue;
    pen.fillStyle = color("grid");
    pen.fillRect(at, 16, 1, place.bottom - 16);
    pen.fillStyle = color("quiet");
    pen.fillText(`${t.toFixed(digits)} s`, at, 11);
  }
  pen.textAlign = "left";
  pen.fillStyle = color("ink");
  pen.fillText("Learner", 0, AXIS + LEARNER / 2 + 4);
  pen.fillText("Sampler", 0, place.top + 12);
  pen.fillStyle = color("quiet");
  pen.fillText(`${place.slots} slots`, 0, place.top + 27);
}

function drawOverlap({ pen, place, x }, round) {
  const f = round.facts;
  if (!isNumber(f.first_gradient_s) || f.first_gradient_s >= f.last_token_s) return;
  const [a, b] = [x(round.start + f.first_gradient_s * 1e3), x(round.start + f.last_token_s * 1e3)];
  pen.fillStyle = color("overlap");
  pen.fillRect(a, AXIS - 6, b - a, place.bottom - AXIS + 6);
}

function drawSlots({ pen, place, x, view }, round) {
  const hues = Array.from({ length: HUES }, (_, i) => color(`g${i + 1}`));
  const ends = new Map();
  const height = place.row > 6 ? place.row - 2 : place.row - 0.5;
  for (const slot of round.slots) {
    const [lane, start, end, group] = slot;
    if (!ends.has(group) || ends.get(group)[2] < end) ends.set(group, slot);
    if (end < view.start || start > view.end) continue;
    const isDim = view.focus && (view.focus.round !== round || view.focus.group !== group);
    pen.globalAlpha = isDim ? 0.22 : 1;
    pen.fillStyle = hues[group % HUES];
    const from = x(start);
    const y = place.top + lane * place.row;
    pen.fillRect(from, y, Math.max(0.7, x(end) - from - (x(end) - from > 3 ? 1 : 0)), height);
    if (slot[6] && height > 3) {
      pen.fillStyle = color("wait");
      pen.fillRect(x(end) - 3, y, 2.5, height);
    }
  }
  pen.globalAlpha = 1;
  if (place.row < 6) return;
  pen.fillStyle = color("ink");
  for (const [group, [lane, , end]] of ends) {
    if (view.focus && (view.focus.round !== round || view.focus.group !== group)) continue;
    pen.beginPath();
    pen.arc(x(end) - 1, place.top + lane * place.row + height / 2, 3, 0, 7);
    pen.fill();
  }
}

function drawLearner({ pen, x }, round) {
  for (const [start, end] of round.waits) {
    hatch(pen, x(start), AXIS, x(end) - x(start), LEARNER);
  }
  for (const [start, end, name] of round.learner) {
    pen.fillStyle = color(name === "step" ? "deep" : "accent");
    const wide = x(end) - x(start);
    pen.fillRect(x(start), AXIS, Math.max(0.8, wide - (wide > 4 ? 1 : 0)), LEARNER);
  }
}

function hatch(pen, left, top, wide, high) {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, wide, high);
  pen.clip();
  pen.fillStyle = color("wait-soft");
  pen.fillRect(left, top, wide, high);
  pen.strokeStyle = color("wait");
  pen.lineWidth = 2;
  pen.beginPath();
  // Only what the canvas can show: a deep zoom makes this far wider than it.
  const first = Math.max(left - high, -40), last = Math.min(left + wide, 4000);
  for (let at = first - (first % 7); at < last; at += 7) {
    pen.moveTo(at, top + high);
    pen.lineTo(at + high, top);
  }
  pen.stroke();
  pen.restore();
}

function drawOthers({ pen, place, x, view, shown }) {
  for (const [start, end, track, , , lane] of shown.others) {
    if (end < view.start || start > view.end) continue;
    if (lane >= 0) {
      pen.fillStyle = color("evaluation");
      pen.fillRect(x(start), place.top + lane * place.row, Math.max(0.7, x(end) - x(start) - 1), place.row - 1);
    } else if (track === "publish" || track === "process") {
      pen.strokeStyle = color(track === "publish" ? "s3" : "bad");
      pen.lineWidth = 1.5;
      pen.setLineDash([5, 4]);
      pen.beginPath();
      pen.moveTo(x(end), 16);
      pen.lineTo(x(end), place.bottom);
      pen.stroke();
      pen.setLineDash([]);
    } else if (track === "checkpoint") {
      pen.fillStyle = color("s4");
      pen.fillRect(x(start), AXIS + LEARNER + 2, Math.max(2, x(end) - x(start)), 4);
    }
  }
}

function drawGuides({ pen, place, x, width }, round) {
  const f = round.facts;
  if (!isNumber(f.first_gradient_s)) return;
  const y = place.top - 8;
  const a = x(round.start + f.first_gradient_s * 1e3), b = x(round.start + f.last_token_s * 1e3);
  pen.strokeStyle = pen.fillStyle = color("accent");
  pen.lineWidth = 1.2;
  for (const at of [a, b]) {
    pen.beginPath();
    pen.moveTo(at, AXIS + LEARNER + 3);
    pen.lineTo(at, place.bottom);
    pen.stroke();
  }
  if (b - a > 230 && b < width) {
    pen.font = "600 11.5px system-ui, 'DejaVu Sans', sans-serif";
    pen.textAlign = "left";
    pen.fillText("first gradient", a + 5, y);
    pen.textAlign = "right";
    pen.fillText("last token", b - 5, y);
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  }
}

function steer(canvas, view, { zoom, pan, paint, shown }) {
  const time = (event) => {
    const box = canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - GUTTER) / (box.width - GUTTER - 4);
    return view.start + share * (view.end - view.start);
  };
  let grabbed = null;
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.18 : 1 / 1.18, time(event));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, time(event)));
  canvas.addEventListener("pointerdown", (event) => {
    grabbed = time(event);
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragging");
    hideTip();
  });
  canvas.addEventListener("pointerup", () => {
    grabbed = null;
    canvas.classList.remove("dragging");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (grabbed !== null) {
      pan(grabbed - time(event));
      return;
    }
    const found = pick(canvas, event, time(event), shown);
    const focus = found && found.group !== undefined ? found : null;
    const isSame = (focus && focus.group) === (view.focus && view.focus.group);
    view.focus = focus;
    if (!isSame) paint();
    if (found) showTip(found.text, event.clientX, event.clientY);
    else hideTip();
  });
  canvas.addEventListener("pointerleave", () => {
    hideTip();
    if (view.focus) {
      view.focus = null;
      paint();
    }
  });
  canvas.addEventListener("keydown", (event) => {
    const length = view.end - view.start;
    const acts = { ArrowLeft: () => pan(-length / 8), ArrowRight: () => pan(length / 8),
      "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6) };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });
}

function pick(canvas, event, at, shown) {
  const place = layout(shown);
  const y = event.clientY - canvas.getBoundingClientRect().top;
  const inside = ([start, end]) => start <= at && at <= end;
  if (y >= AXIS && y < AXIS + LEARNER) {
    for (const round of shown.rounds) {
      const busy = round.learner.find(inside);
      if (busy) {
        const more = busy[4] ? `\n${busy[4]} group${busy[4] > 1 ? "s" : ""}` : "";
        const what = busy[2] === "step" ? "optimizer step" : "gradients";
        return { text: `${what}, update ${busy[3]}${more}\n${seconds((busy[1] - busy[0]) / 1e3)}` };
      }
      const wait = round.waits.find(inside);
      if (wait) return { text: `learner waits\n${seconds((wait[1] - wait[0]) / 1e3)}` };
    }
    return null;
  }
  const lane = Math.floor((y - place.top) / place.row);
  for (const round of shown.rounds) {
    const slot = round.slots.find(([l, start, end]) => l === lane && inside([start, end]));
    if (slot) {
      const [, start, end, group, sample, tokens, isCut] = slot;
      return { round, group, text: `${round.groups[group]}\nsample ${sample}, version ${round.version}\n`
        + `${tokens} tokens in ${seconds((end - start) / 1e3)}${isCut ? "\ncut at the cap" : ""}` };
    }
  }
  const near = (x) => Math.abs(x - at) < 1;
  const other = shown.others.find(([start, end, , , , l]) => (l < 0 || l === lane) && (inside([start, end]) || near(end)));
  if (!other) return null;
  const name = other[5] >= 0 ? "evaluation" : other[2] === other[3] ? other[2] : `${other[2]}: ${other[3]}`;
  return { text: `${name} ${other[4]}\n${seconds((other[1] - other[0]) / 1e3)}` };
}
