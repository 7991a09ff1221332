// Puts the page together from `data`.

const M = data.metrics;
const updates = M.update || [];

function series(names, colors = ["s1", "s2", "s3", "s4"]) {
  return names.filter((name) => M[name]).map((name, i) =>
    ({ name: name.replace(/^[^/]*\//, "").replaceAll("_", " "), x: updates, y: M[name], color: colors[i % colors.length] }));
}

function evaluationSeries() {
  const names = [...new Set(data.evaluations.flatMap((row) => Object.keys(row)))]
    .filter((name) => name === "eval/accuracy" || name.startsWith("eval/pass@"))
    // The same numbers as the accuracy's, whose line it would cover.
    .filter((name) => name !== "eval/pass@1" || data.evaluations.some((row) => !(Math.abs(row[name] - row["eval/accuracy"]) < 1e-9)));
  return names.map((name, i) => {
    const rows = data.evaluations.filter((row) => isNumber(row[name]));
    return { name: name.replace("eval/", ""), x: rows.map((row) => row.updates), y: rows.map((row) => row[name]),
      color: ["s3", "s4", "s1", "s2"][i % 4], marks: true };
  });
}

const rewardParts = Object.keys(M).filter((name) => name.startsWith("reward/")
  && !["reward/mean", "reward/std", "reward/timeouts", "reward/missing"].includes(name));

const CURVES = [
  { title: "Reward", series: series(["reward/mean", "reward/std"]), wide: true, zero: true },
  { title: "Held-out accuracy", series: evaluationSeries(), unit: true, percent: true, keyed: true, per: "after update" },
  { title: "Reward by part", series: series(rewardParts.length > 1 ? rewardParts : []), zero: true },
  { title: "Completion length, tokens", series: series(["completion/length_mean", "completion/length_max"]), zero: true },
  { title: "Completions cut at the cap", series: series(["completion/truncated_ratio"], ["s2"]), zero: true, percent: true },
  { title: "Groups with equal rewards", series: series(["group/zero_variance_ratio"], ["s4"]), unit: true, percent: true },
  { title: "Entropy, nats", series: series(["policy/entropy"]), zero: true },
  { title: "KL", series: series(["policy/kl_ref", "policy/kl_behavior"]), keyed: true },
  { title: "Clipped tokens", series: series(["policy/clip_fraction_low", "policy/clip_fraction_high"]), zero: true, percent: true },
  { title: "Gradient norm", series: series(["optim/grad_norm"]), zero: true },
  { title: "Learning rate", series: series(["optim/lr"]).map((one) => ({ ...one, exact: true })), zero: true },
  { title: "Sampler against learner, |Δ log p|", series: series(["mismatch/logprob_abs_mean", "mismatch/logprob_abs_max"]), log: true },
  { title: "Importance weight, mean", series: series(["mismatch/weight_mean"]) },
  { title: "Staleness, versions", series: series(["staleness/mean", "staleness/max"]), zero: true },
  { title: "Waiting and idling", series: series(["pipeline/trainer_wait_ratio", "pipeline/sampler_idle_ratio"]), unit: true, percent: true },
  { title: "Goodput, trained tokens/s", series: series(["pipeline/goodput_tokens_per_s"]), zero: true },
  { title: "Time, s", series: series(["time/update_s", "time/wait_s", "time/first_dispatch_s"]), zero: true },
];

function tiles() {
  const s = data.summary || {};
  const first = (list) => list.find(isNumber);
  const accuracy = data.evaluations.map((row) => row["eval/accuracy"]).filter(isNumber);
  const before = isNumber(s.eval_accuracy_first) ? s.eval_accuracy_first : first(accuracy);
  const after = isNumber(s.eval_accuracy_last) ? s.eval_accuracy_last : accuracy[accuracy.length - 1];
  const gain = 100 * (after - before);
  const reward = finite(M["reward/mean"] || []);
  const tenth = Math.max(1, Math.floor(reward.length / 10));
  const shown = data.timeline;
  return [
    isNumber(before)
      ? ["Held-out accuracy", `${percent(before)} → ${percent(after)}`, `${gain >= 0 ? "+" : "−"}${Math.abs(gain).toFixed(1)} points`, true]
      : null,
    reward.length
      ? ["Mean reward", `${number(mean(reward.slice(0, tenth)), 2)} → ${number(mean(reward.slice(-tenth)), 2)}`, "first to last tenth"]
      : null,
    isNumber(shown.hidden_ratio)
      ? ["Overlapped learning", percent(shown.hidden_ratio), "done while slots decode", true]
      : null,
    ["Learner waits", percent(isNumber(s.trainer_wait_ratio) ? s.trainer_wait_ratio : shown.wait_ratio), "wait / (wait + compute)"],
    isNumber(s.sampled_tokens_per_s)
      ? ["Sampled tokens/s", number(s.sampled_tokens_per_s), `${number(s.loop_tokens_per_s)} over the loop`]
      : null,
    ["Updates", number(isNumber(s.updates) ? s.updates : data.updates_total), isNumber(s.rounds) ? `${s.rounds} rounds` : ""],
    isNumber(s.wall_s)
      ? ["Wall time", seconds(s.wall_s), isNumber(s.peak_rss_mb) ? `${number(s.peak_rss_mb)} MB at the peak` : ""]
      : null,
  ].filter(Boolean);
}

function header() {
  document.title = `${data.name} · jigsaw_jax`;
  document.getElementById("name").textContent = data.name;
  const subtitle = document.getElementById("subtitle");
  subtitle.append(`jigsaw_jax run report, ${data.made}`);
  if (!data.summary) subtitle.append(" · ", el("span", { class: "warning" }, "this run has not finished"));
  document.getElementById("tiles").append(...tiles().map(([label, value, note, isLead]) =>
    el("div", { class: `tile${isLead ? " lead" : ""}` }, el("div", { class: "label" }, label),
      el("div", { class: "value" }, value), el("div", { class: "note" }, note))));
}

function curves() {
  const charts = CURVES.map(lineChart).filter(Boolean);
  if (!charts.length) return;
  document.getElementById("curves").append(
    el("div", { class: "head" }, el("h2", {}, "Curves"), el("span", { class: "quiet" },
      "by update; points are single updates, lines their centred mean")),
    el("div", { class: "grid" }, ...charts));
}

function more() {
  const used = new Set(["update", "version", "round", "time_s", "reward/mean", "reward/std", ...rewardParts,
    "completion/length_mean", "completion/length_max", "completion/truncated_ratio", "group/zero_variance_ratio",
    "policy/entropy", "policy/kl_ref", "policy/kl_behavior", "policy/clip_fraction_low", "policy/clip_fraction_high",
    "optim/grad_norm", "optim/lr", "mismatch/logprob_abs_mean", "mismatch/logprob_abs_max", "mismatch/weight_mean",
    "staleness/mean", "staleness/max", "pipeline/trainer_wait_ratio", "pipeline/sampler_idle_ratio",
    "pipeline/goodput_tokens_per_s", "time/update_s", "time/wait_s", "time/first_dispatch_s"]);
  const others = Object.keys(M).filter((name) => !used.has(name)).sort();
  const section = document.getElementById("more");
  const box = el("details", {}, el("summary", {}, `All other metrics (${others.length})`));
  // Drawn when first opened: most readers never do.
  box.addEventListener("toggle", () => box.append(el("div", { class: "grid" },
    ...others.map((name) => lineChart({ title: name, series: series([name]) })).filter(Boolean))), { once: true });
  if (others.length) section.append(box);
  if (data.summary) {
    section.append(el("details", {}, el("summary", {}, "Summary"),
      el("pre", { class: "config" }, JSON.stringify(data.summary, null, 2))));
  }
  if (data.config) {
    section.append(el("details", {}, el("summary", {}, "Configuration"), el("pre", { class: "config" }, data.config)));
  }
  if (data.left_out.length) {
    section.append(el("ul", { class: "left-out" }, ...data.left_out.map((line) => el("li", {}, line))));
  }
}

header();
timelineSection(document.getElementById("timeline"), data.timeline);
curves();
rolloutsSection(document.getElementById("rollouts"), data.rollouts);
more();
