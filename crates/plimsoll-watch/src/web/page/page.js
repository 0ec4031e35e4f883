// The view of a run, put on the page. What came from the run is only ever set as text.

import { Chart, clockTicks, ticks } from "./chart.js";
import { connect } from "./connection.js";
import { BYTE_UNITS, bytes, clock, compact, count, duration, figure, moment, percent, stopwatch } from "./words.js";

const at = (id) => document.getElementById(id);

function made(name, className, ...content) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...content);
  return element;
}

function say(id, text) {
  const element = at(id);
  if (element.textContent !== text) element.textContent = text;
  element.hidden = text === "";
}

const lossChart = new Chart(at("loss"), {
  label: "Loss by step", x: "step", writeX: count, readX: count, writeY: figure, readY: figure,
  ticksX: (low, high, most) => ticks(low, high, Math.min(most, Math.max(high - low, 1))), ticksY: ticks,
  empty: "no loss yet",
});
const memoryChart = new Chart(at("memory"), {
  label: "Memory by time", x: "running time", writeX: duration, readX: stopwatch, writeY: bytes, readY: bytes,
  ticksX: clockTicks, ticksY: (low, high, most) => ticks(low, high, most, BYTE_UNITS), fromZero: true, empty: "no memory measured yet",
});

let view = null;
let arrived = 0;

// The server's clock, as far as we know it.
const now = () => view.now_unix_ms + (Date.now() - arrived);

function head() {
  document.title = `${view.step ? `${count(view.step)} · ` : ""}${view.name} · Plimsoll`;
  say("name", view.name);
  say("status", view.status);
  at("status").className = `status ${view.status}`;
  say("why", view.status === "running" || !view.why ? "" : view.why);
  at("why").className = view.status;
  at("progress").max = Math.max(view.total_steps, 1);
  at("progress").value = view.step;
  const share = view.total_steps ? ` (${percent(view.step / view.total_steps)})` : "";
  say("steps", view.total_steps ? `step ${count(view.step)} of ${count(view.total_steps)}${share}` : view.step ? `step ${count(view.step)}` : "no step yet");
  const { latest, evaluated, memory, trainer } = view;
  const rows = [
    ["loss", figure(latest?.loss), trainer ? latest ? `at step ${count(latest.step)}` : "not told yet" : latest ? `learning rate ${latest.lr ? figure(latest.lr) : "by the optimizer"}` : ""],
    ...(trainer ? [
      ["time a step", duration(view.seconds_per_step), "since this start"],
      ["micro-batch", count(trainer.batch), trainer.accumulation === null ? "" : `accumulated ${count(trainer.accumulation)} times`],
      ["memory in use", bytes(memory.used_bytes), `limit ${bytes(memory.budget_bytes)}`],
      ["peak seen", bytes(memory.seen_peak_bytes), ""],
    ] : [
      ["evaluation loss", figure(evaluated?.loss), evaluated ? evaluation(evaluated) : "none yet"],
      ["tokens per second", compact(view.tokens_per_second), latest ? `${duration(latest.seconds)} the last step` : ""],
      ["memory in use", bytes(memory.used_bytes), `planned ${bytes(memory.planned_bytes)}`],
      ["peak seen", bytes(memory.seen_peak_bytes), `budget ${bytes(memory.budget_bytes)}`],
    ]),
    ["headroom", bytes(memory.headroom_bytes), pressure(memory)],
  ];
  at("figures").replaceChildren(...rows.map(([name, value, note]) =>
    made("div", "", made("dt", "", name), made("dd", "", value, made("small", "", note)))));
}

function evaluation({ step, bleu, exact, accuracy, macro_f1 }) {
  const more = [bleu === null ? "" : `BLEU ${figure(bleu)}`, exact === null ? "" : `exact ${percent(exact)}`,
    accuracy === null ? "" : `accuracy ${percent(accuracy)}`, macro_f1 === null ? "" : `F1 ${figure(macro_f1)}`];
  return [`at step ${count(step)}`, ...more].filter(Boolean).join(", ");
}

function pressure({ swap_bytes, vram_bytes, stall_some }) {
  const said = [];
  if (vram_bytes) said.push(`VRAM ${bytes(vram_bytes)}`);
  if (swap_bytes) said.push(`swap ${bytes(swap_bytes)}`);
  if (stall_some !== null && stall_some !== undefined) said.push(`stalled ${figure(stall_some)} %`);
  return said.join(", ");
}

// What changes with the clock alone.
function tick() {
  if (!view) return;
  const ago = (unixMs) => duration(Math.max(0, Math.round((now() - unixMs) / 1000)));
  const running = view.status === "running";
  const since = view.since_unix_ms === null ? "" : `since ${moment(view.since_unix_ms)}, ${ago(view.since_unix_ms)}`;
  say("since", since);
  const left = view.eta_seconds === null ? null : Math.max(0, view.eta_seconds - (Date.now() - arrived) / 1000);
  const said = [];
  if (running && left !== null) said.push(`about ${duration(left)} left`);
  if (running && view.last_unix_ms !== null) said.push(`last word ${ago(view.last_unix_ms)} ago`);
  if (!running) said.push(`${duration(view.running_seconds)} of work`);
  say("eta", said.join(" · "));
}

function charts() {
  lossChart.draw([
    { name: "training", kind: "train", points: view.losses },
    { name: "evaluation", kind: "eval", points: view.evals, dots: true },
  ]);
  const { used, plans } = view.memory;
  const end = Math.max(used.at(-1)?.[0] ?? 0, plans.at(-1)?.from_seconds ?? 0);
  const level = (key) => {
    const points = plans.filter((plan) => plan[key] !== null).map((plan) => [plan.from_seconds, plan[key]]);
    return points.length ? [...points, [end, points.at(-1)[1]]] : [];
  };
  const [planned, budget] = [level("planned_bytes"), level("budget_bytes")];
  const highest = [...used, ...planned].reduce((most, point) => Math.max(most, point[1]), 0);
  // A budget far above everything would press the curves flat.
  const outside = budget.some((point) => point[1] > 2.5 * highest);
  const note = budget.length ? `${bytes(budget.at(-1)[1])}${outside ? ", above the chart" : ""}` : "";
  memoryChart.draw([
    { name: "in use", kind: "used", points: used },
    ...(view.trainer ? [] : [{ name: "planned", kind: "planned", points: planned, level: true, note: bytes(planned.at(-1)?.[1]) }]),
    { name: view.trainer ? "limit" : "budget", kind: "budget", points: budget, level: true, outside, note },
  ]);
}

// The processes of somebody else's trainer, in the place of a plan's lines.
function processes() {
  const { trainer, run } = view;
  say("parts-title", "Processes");
  const onCards = trainer.processes.some((process) => process.vram_bytes !== null);
  const names = ["in full (RSS)", "fair share (PSS)", ...(onCards ? ["on cards (VRAM)"] : [])];
  const heading = (text, className) => {
    const cell = made("th", className, text);
    cell.scope = "col";
    return cell;
  };
  const bar = made("span", "hidden", "share of the largest");
  at("parts").tHead.rows[0].replaceChildren(heading("role"), heading(bar, "bars"), ...names.map((name) => heading(name, "number")));
  const share = (process) => process.pss_bytes ?? process.rss_bytes;
  const widest = Math.max(1, ...trainer.processes.map(share));
  at("parts").tBodies[0].replaceChildren(...trainer.processes.map((process) => {
    const name = made("th", "", process.role, made("small", "quiet", ` ${process.pid}`));
    name.scope = "row";
    const is = made("i", "is");
    is.style.width = `${(100 * share(process)) / widest}%`;
    const numbers = [process.rss_bytes, process.pss_bytes, ...(onCards ? [process.vram_bytes] : [])];
    return made("tr", "", name, made("td", "bars", made("div", "", is)), ...numbers.map((value) => made("td", "number", bytes(value))));
  }));
  const said = [`start ${count(trainer.start)}`, ...(trainer.changes.length ? trainer.changes : ["as typed"])];
  if (run?.effective_batch) said.unshift(`effective batch ${count(run.effective_batch)}`);
  say("plan", said.join(" · "));
  say("facts", `${trainer.name} · plimsoll ${run?.version ?? ""}`);
}

function parts() {
  if (view.trainer) return processes();
  const { parts, planned_bytes, used_bytes } = view.memory;
  const rows = [...parts];
  if (planned_bytes !== null || used_bytes !== null) rows.push({ name: "all", planned_bytes, used_bytes, sum: true });
  const widest = Math.max(1, ...parts.flatMap((part) => [part.planned_bytes ?? 0, part.used_bytes ?? 0]));
  const bar = (kind, value) => {
    const element = made("i", kind);
    element.style.width = `${(100 * value) / widest}%`;
    return element;
  };
  at("parts").tBodies[0].replaceChildren(...rows.map((part) => {
    const name = made("th", "", part.name);
    name.scope = "row";
    const over = part.planned_bytes !== null && part.used_bytes > part.planned_bytes;
    const bars = made("div", "");
    if (!part.sum) bars.append(bar("of", part.planned_bytes ?? 0), bar(over ? "over" : "is", part.used_bytes ?? 0));
    const row = made("tr", part.sum ? "sum" : "", name, made("td", "bars", bars));
    row.append(made("td", "number", bytes(part.used_bytes)), made("td", "number", bytes(part.planned_bytes)));
    return row;
  }));
  const { choices, run } = view;
  const said = choices ? [
    `micro-batch ${count(choices.micro_batch)} × ${count(choices.accumulation)}`,
    choices.recompute ? `${count(choices.recompute)} blocks computed twice` : "no block computed twice",
    choices.snapshot ? "saves in the background" : "steps wait for saves",
  ] : [];
  if (run) said.unshift(`effective batch ${count(run.effective_batch)}`);
  say("plan", said.join(" · "));
  const facts = run ? `plimsoll ${run.version} · ${count(run.threads)} threads · ${run.simd}` : "";
  say("facts", facts);
}

const SHARES = [
  ["compute", "compute"],
  ["data", "waiting for data"],
  ["save", "save"],
  ["eval", "evaluation"],
  ["other", "other"],
];

function split(title, time) {
  const shares = SHARES.map(([kind, name]) => ({ kind, name, seconds: time[kind] }));
  const all = shares.reduce((sum, share) => sum + share.seconds, 0);
  if (!(all > 0)) return [];
  const bar = made("div", "split");
  const list = made("ul", "shares");
  for (const { kind, name, seconds } of shares.filter((share) => share.seconds > 0)) {
    const piece = made("i", `fill-${kind}`);
    piece.style.width = `${(100 * seconds) / all}%`;
    bar.append(piece);
    list.append(made("li", "", made("i", `fill-${kind}`), `${name} ${percent(seconds / all)}, ${duration(seconds)}`));
  }
  bar.setAttribute("aria-hidden", "true");
  return [made("p", "", title), bar, list];
}

function times() {
  // Where the time of somebody else's trainer goes, nobody sees.
  const told = view.trainer ? [made("p", "", `${duration(view.running_seconds)} of work in all`)]
    : [...split("the latest steps", view.time_lately), ...split("the whole run", view.time)];
  at("time").replaceChildren(...(told.length ? told : [made("p", "quiet", "no step yet")]));
  const { counts } = view;
  const rows = [
    ["checkpoints", counts.saved], ["evaluations", counts.evaluations], ["restarts", counts.restarts],
    ["incidents", counts.incidents, "bad"], ["skipped updates", counts.skipped, "bad"],
    ["saves not done", counts.not_saved, "bad"], ["mirrored", counts.mirrored],
    ["mirror troubles", counts.mirror_troubles, "bad"], ["warnings", counts.warnings],
    ["unreadable lines", counts.unreadable, "bad"],
  ];
  at("counts").replaceChildren(...rows.map(([name, n, kind]) =>
    made("div", n > 0 && kind ? kind : "", made("dt", "", name), made("dd", "", count(n)))));
}

function events() {
  const lines = view.events.toReversed().map((event) => {
    const time = made("time", "", moment(event.unix_ms));
    time.dateTime = new Date(event.unix_ms).toISOString();
    const step = event.step === null ? "" : `step ${count(event.step)}: `;
    return made("li", event.tone, time, made("span", "", step + event.text));
  });
  at("events").replaceChildren(...(lines.length ? lines : [made("li", "quiet", "nothing yet")]));
}

function heard(kind, text) {
  if (kind === "trouble") return say("trouble", `The run cannot be read: ${text}`);
  if (kind !== "view") return;
  say("trouble", "");
  view = JSON.parse(text);
  arrived = Date.now();
  for (const show of [head, tick, charts, parts, times, events]) show();
}

function held(whether) {
  document.documentElement.dataset.connection = whether ? "held" : "lost";
  const what = view ? `What you see is from ${clock(arrived)}. ` : "";
  say("connection", whether ? "" : `The connection to plimsoll watch is lost. ${what}Trying again…`);
}

setInterval(tick, 1000);
connect(heard, held);
