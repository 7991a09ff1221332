// Follows a run: asks for its data, and draws again what has changed. What a model or a
// worker wrote enters the page as text nodes, as everywhere here.

const EVERY_MS = 2000;
const seen = { stamp: null, rollouts: "", rounds: "" };

const LIVE_CURVES = [
  { title: "Reward", names: ["reward/mean", "reward/std"], wide: true, zero: true },
  { title: "Completion length, tokens", names: ["completion/length_mean", "completion/length_max"], zero: true },
  { title: "Completions cut at the cap", names: ["completion/truncated_ratio"], zero: true, percent: true },
  { title: "Groups with equal rewards", names: ["group/zero_variance_ratio"], unit: true, percent: true },
  { title: "Entropy, nats", names: ["policy/entropy"], zero: true },
  { title: "Gradient norm", names: ["optim/grad_norm"], zero: true },
  { title: "Sampler against learner, |Δ log p|", names: ["mismatch/logprob_abs_mean", "mismatch/logprob_abs_max"], log: true },
  { title: "Staleness, versions", names: ["staleness/mean", "staleness/max"], zero: true },
  { title: "Waiting and idling", names: ["pipeline/trainer_wait_ratio", "pipeline/sampler_idle_ratio"], unit: true, percent: true },
  { title: "Goodput, trained tokens/s", names: ["pipeline/goodput_tokens_per_s"], zero: true },
  { title: "Time, s", names: ["time/update_s", "time/wait_s", "time/first_dispatch_s"], zero: true },
];
const COLORS = ["s1", "s2", "s3", "s4"];
// Where a sample can wait, and where it has ended.
const ENDS = ["committed", "dropped"];

function place(id) {
  return document.getElementById(id);
}

// A reader who points at a part keeps it as it is.
function isBusy(section) {
  return section.matches(":hover") || (section.contains(document.activeElement) && document.hasFocus());
}

function showStatus(data) {
  const { state, silent_s: silent } = data.status;
  const since = isNumber(silent) ? ` · last heard of ${seconds(silent)} ago` : "";
  place("status").replaceChildren(el("span", { class: `state ${state}` }, state), since,
    data.damaged ? el("span", { class: "warning" }, ` · ${data.damaged} damaged lines passed over`) : "");
}

function showTiles(data) {
  const newest = data.newest;
  const accuracy = data.evaluations.map((row) => row["eval/accuracy"]).filter(isNumber);
  const tiles = [
    ["Updates", number(data.updates), isNumber(newest.version) ? `version ${newest.version}` : ""],
    ["Mean reward", number(newest["reward/mean"], 2), "of the newest update"],
    accuracy.length ? ["Held-out accuracy", percent(accuracy[accuracy.length - 1]), `first ${percent(accuracy[0])}`] : null,
    ["Learner waits", percent(newest["pipeline/trainer_wait_ratio"]), "of the newest update"],
    ["Goodput", number(newest["pipeline/goodput_tokens_per_s"]), "trained tokens/s"],
    ["An update", seconds(newest["time/update_s"]), ""],
  ].filter(Boolean);
  place("tiles").replaceChildren(...tiles.map(([label, value, note]) => el("div", { class: "tile" },
    el("div", { class: "label" }, label), el("div", { class: "value" }, value), el("div", { class: "note" }, note))));
}

function showWorkers(workers) {
  const head = ["worker", "role", "state", "version", "heard of", "pid", "life", "losses"];
  const rows = workers.map((worker) => el("tr", {}, ...[worker.name, worker.role].map((text) => el("td", {}, text)),
    el("td", { class: worker.state === "lost" ? "bad" : "good" }, worker.reason && worker.state === "lost"
      ? `${worker.state}: ${worker.reason}` : worker.state),
    ...[worker.version ?? "–", `${seconds(worker.age_s)} ago`, worker.pid ?? "–", worker.incarnation, worker.lost]
      .map((value) => el("td", {}, String(value)))));
  place("workers").replaceChildren(...(rows.length ? [el("div", { class: "head" }, el("h2", {}, "Workers")),
    el("table", {}, el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, ...rows))] : []));
}

function showQueues(newest) {
  const rows = Object.entries(newest).filter(([name, value]) => /^(ledger|queue)\//.test(name) && isNumber(value))
    .map(([name, value]) => [name.replace(/^ledger\//, "").replaceAll("_", " "), value]);
  const most = Math.max(1, ...rows.filter(([name]) => !ENDS.includes(name)).map(([, value]) => value));
  place("queues").replaceChildren(...(rows.length ? [
    el("div", { class: "head" }, el("h2", {}, "Where samples are"),
      el("span", { class: "quiet" }, `ledger and queues at update ${newest.update}`)),
    el("div", { class: "queues" }, ...rows.flatMap(([name, value]) => [el("span", {}, name),
      el("span", { class: "count" }, number(value)),
      el("i", { class: ENDS.includes(name) ? "end" : "", style: `width:${Math.min(100, (100 * value) / most)}%` })]))] : []));
}

function showCurves(data) {
  const x = data.metrics.update || [];
  const charts = LIVE_CURVES.map(({ names, ...chart }) => ({ ...chart, series: names.filter((name) => data.metrics[name])
    .map((name, i) => ({ name: name.replace(/^[^/]*\//, "").replaceAll("_", " "), x, y: data.metrics[name], color: COLORS[i] })) }));
  const rows = data.evaluations.filter((row) => isNumber(row["eval/accuracy"]));
  charts.splice(1, 0, { title: "Held-out accuracy", unit: true, percent: true, per: "after update", series: [{ name: "accuracy",
    x: rows.map((row) => row.updates), y: rows.map((row) => row["eval/accuracy"]), color: "s3", marks: true }] });
  const drawn = charts.map(lineChart).filter(Boolean);
  place("curves").replaceChildren(...(drawn.length ? [el("div", { class: "head" }, el("h2", {}, "Curves"),
    el("span", { class: "quiet" }, "by update")), el("div", { class: "grid" }, ...drawn)] : []));
}

function showTimeline(shown) {
  const rounds = shown.rounds.map((round) => `${round.version}:${round.end}`).join();
  if (rounds === seen.rounds || isBusy(place("timeline"))) return;
  seen.rounds = rounds;
  place("timeline").replaceChildren();
  // The newest round is under way; the one before is whole.
  timelineSection(place("timeline"), shown, Math.max(0, shown.rounds.length - 2));
}

function showRollouts(rollouts) {
  const updates = JSON.stringify(rollouts.updates);
  if (updates === seen.rollouts || isBusy(place("rollouts"))) return;
  seen.rollouts = updates;
  place("rollouts").replaceChildren();
  rolloutsSection(place("rollouts"), rollouts);
}

let whole = null;

async function follow() {
  try {
    const answer = await fetch(`data.json?stamp=${seen.stamp}`);
    if (!answer.ok) throw new Error(`the server says ${answer.status}`);
    const data = await answer.json();
    whole = { ...whole, ...data };
    showStatus(whole);
    showWorkers(whole.workers);
    if (data.name !== undefined) {
      document.title = `${whole.name} · live`;
      place("name").textContent = whole.name;
      showTiles(whole);
      showQueues(whole.newest);
      if (!isBusy(place("curves"))) showCurves(whole);
    }
    showTimeline(whole.timeline);
    showRollouts(whole.rollouts);
    seen.stamp = data.stamp;
  } catch (error) {
    place("status").replaceChildren(el("span", { class: "warning" }, `no answer: ${error.message}; trying again`));
  }
  setTimeout(follow, EVERY_MS);
}

follow();
