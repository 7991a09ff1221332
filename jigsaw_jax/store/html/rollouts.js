// The browser of rollouts: a list of groups, and one group's members side by side.

function rolloutsSection(section, rollouts) {
  if (!rollouts.groups.length) return;
  rewardRange = rangeOf(rollouts.groups);
  const state = { update: rollouts.updates[rollouts.updates.length - 1], sort: "order", text: "", group: null };
  const update = el("select", { "aria-label": "Update" }, el("option", { value: "" }, "all updates"),
    ...rollouts.updates.map((u) => el("option", { value: u }, `update ${u}`)));
  update.value = state.update;
  const sorts = { order: "in order", high: "reward: high first", low: "reward: low first",
    spread: "reward: most mixed first", long: "longest first" };
  const sort = el("select", { "aria-label": "Sort" },
    ...Object.entries(sorts).map(([value, label]) => el("option", { value }, label)));
  const search = el("input", { type: "search", placeholder: "Find in prompt or text", "aria-label": "Find" });
  const count = el("span", { class: "quiet" });
  const list = el("div", { class: "list" });
  const detail = el("div", {});
  const refresh = () => {
    const found = chosen(rollouts.groups, state);
    count.textContent = `${found.length} group${found.length === 1 ? "" : "s"}`;
    if (!found.includes(state.group)) state.group = found[0] || null;
    list.replaceChildren(...found.slice(0, 400).map((group) => entry(group, group === state.group, () => {
      state.group = group;
      refresh();
    })));
    detail.replaceChildren(...(state.group ? groupView(state.group) : [el("p", { class: "quiet" }, "No group matches.")]));
  };
  update.addEventListener("change", () => {
    state.update = update.value === "" ? null : Number(update.value);
    refresh();
  });
  sort.addEventListener("change", () => {
    state.sort = sort.value;
    state.group = null;
    refresh();
  });
  search.addEventListener("input", () => {
    state.text = search.value.toLowerCase();
    refresh();
  });
  section.append(
    el("div", { class: "head" }, el("h2", {}, "Rollouts"), el("span", { class: "grow" }), count, update, sort, search),
    el("div", { class: "browser" }, list, detail));
  refresh();
}

function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function rewards(group) {
  return group.members.map((member) => member.reward).filter(isNumber);
}

function spread(group) {
  const values = rewards(group), center = mean(values);
  return values.length ? mean(values.map((v) => (v - center) ** 2)) : -1;
}

function chosen(groups, state) {
  const matches = (group) => !state.text || `${group.prompt}\n${group.uid}`.toLowerCase().includes(state.text)
    || group.members.some((member) => member.text.toLowerCase().includes(state.text));
  const found = groups.filter((g) => (state.update === null || g.update === state.update) && matches(g));
  const value = { high: (g) => -(mean(rewards(g)) ?? -Infinity), low: (g) => mean(rewards(g)) ?? Infinity,
    spread: (g) => -spread(g), long: (g) => -Math.max(...g.members.map((m) => m.num)) }[state.sort];
  return value ? found.sort((a, b) => value(a) - value(b)) : found;
}

// The colour scale of rewards, from the lowest to the highest that are shown.
let rewardRange = [0, 1];

function rangeOf(groups) {
  const values = groups.flatMap(rewards);
  return values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
}

function rewardColor(value) {
  if (!isNumber(value)) return "var(--g8)";
  const share = (value - rewardRange[0]) / (rewardRange[1] - rewardRange[0] || 1);
  return `color-mix(in oklab, var(--good) ${Math.round(100 * share)}%, var(--bad))`;
}

function entry(group, isCurrent, act) {
  return el("button", { "aria-current": String(isCurrent), onclick: act },
    el("div", { class: "prompt written" }, group.prompt.replace(/\s+/g, " ").slice(-90)),
    el("div", { class: "row" }, `update ${group.update} · mean ${number(mean(rewards(group)), 2)}${dropped(group)}`,
      el("span", { class: "dots" }, ...group.members.map((m) => el("i", { style: `background:${rewardColor(m.reward)}` })))));
}

function groupView(group) {
  return [
    el("div", { class: "problem" },
      el("div", { class: "quiet" }, `${group.task} · ${group.uid} · draw ${group.draw} · update ${group.update}${dropped(group)}`),
      el("div", { class: "written" }, group.prompt),
      el("div", { class: "quiet written" }, `Reference answer: ${group.answer}`)),
    el("div", { class: "members" }, ...group.members.map(memberView)),
  ];
}

function dropped(group) {
  return group.dropped ? ` · dropped: ${group.dropped}` : "";
}

function memberView(member) {
  const parts = Object.entries(member.parts).map(([name, value]) => `${name} ${number(value)}`).join(" · ");
  const versions = member.versions.length ? `version ${member.versions.join("–")}` : null;
  const advantage = isNumber(member.advantage) ? `advantage ${number(member.advantage)}` : null;
  return el("div", { class: "member" },
    el("div", { class: "row" },
      el("span", { class: "badge", style: `background:${rewardColor(member.reward)}` },
        isNumber(member.reward) ? number(member.reward) : "no reward"),
      el("span", { class: "quiet" }, `sample ${member.sample} · ${member.num} tokens`),
      member.finish === "length" ? el("span", { class: "cut" }, "cut at the cap") : null),
    written(member),
    member.pieces ? null : strip(member),
    el("div", { class: "facts" },
      [parts, advantage, versions, member.failure && `reward failed: ${member.failure}`].filter(Boolean).join(" · ")));
}

// The likelier a token was, the fainter its ground.
function ground(logprob) {
  return isNumber(logprob) ? `background:rgba(var(--shade), ${(0.75 * (1 - Math.exp(logprob))).toFixed(3)})` : null;
}

function about(member, i) {
  const logprob = member.logprobs[i];
  const chance = isNumber(logprob) ? `log p ${logprob.toFixed(3)}, p ${Math.exp(logprob).toFixed(3)}` : "observed";
  return `token ${i}: id ${member.ids[i]}\n${chance}`;
}

function withTip(element, text) {
  element.addEventListener("pointermove", (event) => showTip(text, event.clientX, event.clientY));
  element.addEventListener("pointerleave", hideTip);
  return element;
}

function written(member) {
  if (!member.pieces) return el("div", { class: "written" }, member.text);
  const kinds = (i) => (isNumber(member.logprobs[i]) ? "token" : "token observed");
  return el("div", { class: "written" }, ...member.pieces.map((piece, i) =>
    withTip(el("span", { class: kinds(i), style: ground(member.logprobs[i]) }, piece), about(member, i))));
}

// Without the tokens' own texts the logprobs are shown as a row of boxes.
function strip(member) {
  return el("div", { class: "strip", "aria-label": "Tokens by probability" },
    ...member.ids.slice(0, 400).map((_, i) => withTip(el("i", { style: ground(member.logprobs[i]) }), about(member, i))));
}
