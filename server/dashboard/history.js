// The charts of the last hour. Each round fetches the new samples of the daemon's history.

import { ask, byId, bytes, colorClass, element, setText, unitOf } from "/page.js";

const TICKS = { 300: 60, 3600: 600 };  // Range in seconds -> seconds between two labels.
// Range in seconds -> number of samples that become one point.
const SMOOTHED = { 300: 1, 3600: 5 };

const charts = {};
let range = 300;
let kept = null;  // The daemon's first answer, extended by later samples.

// ---- data

// Replaces each value by the mean of the last five, because an instruction counts as a whole at the
// time when it ends.
const smooth = (values) => values.map((_, i) => {
  const part = values.slice(Math.max(0, i - 4), i + 1);
  return part.reduce((sum, value) => sum + value, 0) / part.length;
});

const columns = (history) => [history.times, history.queued,
  ...history.devices.flatMap((d) => [d.used, d.busy]),
  ...history.users.flatMap((u) => [u.memory, u.lanes])];

function grow(fresh) {
  if (fresh.others) fresh.users.push({ name: "(others)", ...fresh.others });
  if (!kept || fresh.first !== kept.next) {
    kept = fresh;
    return;
  }
  const before = kept.times.length;
  const after = fresh.times.length;
  // A user that appears for the first time has zeros for the earlier samples.
  for (const user of fresh.users) {
    if (kept.users.some((u) => u.name === user.name)) continue;
    kept.users.push({ ...user, memory: Array(before).fill(0), lanes: Array(before).fill(0) });
  }
  for (const user of kept.users) {
    const more = fresh.users.find((u) => u.name === user.name);
    user.memory.push(...(more ? more.memory : Array(after).fill(0)));
    user.lanes.push(...(more ? more.lanes : Array(after).fill(0)));
  }
  kept.times.push(...fresh.times);
  kept.queued.push(...fresh.queued);
  kept.devices.forEach((device, i) => {
    device.total = fresh.devices[i].total;
    device.used.push(...fresh.devices[i].used);
    device.busy.push(...fresh.devices[i].busy);
  });
  const most = 3600 / kept.period;
  for (const column of columns(kept)) column.splice(0, column.length - most);
  kept.next = fresh.next;
}

// The points of the range, each the mean of several samples.
function points(values, scale) {
  const count = SMOOTHED[range];
  const from = kept.times.length - Math.ceil(range / kept.period);
  const made = [];
  let sum = 0, n = 0;
  for (let i = Math.max(0, from); i < values.length; ++i) {
    sum += values[i] / scale;
    n += 1;
    const number = kept.next - kept.times.length + i;
    if ((number + 1) % count !== 0 && i + 1 < values.length) continue;
    made.push({ x: kept.times[i] * 1000, y: sum / n });
    sum = n = 0;
  }
  return made;
}

// ---- drawing

const colorOf = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

function timeAxis() {
  const now = kept.times[kept.times.length - 1] * 1000;
  const format = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" });
  return {
    type: "linear", min: now - range * 1000, max: now,
    grid: { display: false },
    ticks: { color: colorOf("soft"), maxRotation: 0, autoSkip: true,
      callback: (value) => format.format(new Date(value)) },
    afterBuildTicks: (axis) => {
      const step = TICKS[range] * 1000;
      axis.ticks = [];
      for (let at = Math.ceil(axis.min / step) * step; at <= axis.max; at += step) {
        axis.ticks.push({ value: at });
      }
    },
  };
}

function draw(canvas, sets, options) {
  const datasets = sets.map(({ label, color, values }) => ({
    label, data: values, parsing: false, normalized: true, fill: true, tension: 0,
    borderColor: colorOf(color), backgroundColor: colorOf(color) + "44", borderWidth: 1.5, pointRadius: 0,
  }));
  const scales = { x: { ...timeAxis(), display: options.times !== false },
    y: { beginAtZero: true, min: 0, max: options.most, suggestedMax: 1, stacked: Boolean(options.stacked),
      grid: { color: colorOf("grid") }, ticks: { color: colorOf("soft"), maxTicksLimit: 5 } } };
  byId(canvas).setAttribute("aria-label", options.told);
  if (charts[canvas]) {
    charts[canvas].data.datasets = datasets;
    charts[canvas].options.scales = scales;
    charts[canvas].update("none");
    return;
  }
  charts[canvas] = new window.Chart(byId(canvas), {
    type: "line", data: { datasets },
    options: { animation: false, maintainAspectRatio: false, scales,
      interaction: { mode: "index", intersect: false },
      plugins: { legend: { display: false },
        tooltip: { callbacks: { title: (items) => items.length === 0 ? ""
          : new Date(items[0].parsed.x).toLocaleTimeString() } } } },
  });
}

const last = (values) => values[values.length - 1] || 0;

function legend(name, users, text) {
  byId(name + "-legend").replaceChildren(...users.map((user) => {
    const item = element("li");
    item.append(element("i", undefined, "mark " + colorClass(user.color)), text(user));
    return item;
  }));
}

function drawUsers(lanes) {
  const users = kept.users.filter((u) => points(u.memory, 1).some((p) => p.y > 0));
  const unit = unitOf(Math.max(1, ...kept.times.map((_, i) =>
    users.reduce((sum, u) => sum + u.memory[i], 0))));
  const busy = new Map(users.map((u) => [u, smooth(u.lanes)]));
  const sets = (columnOf, scale) => users.map((u) => ({ label: u.name, color: colorClass(u.color),
    values: points(columnOf(u), scale) }));
  const memory = (u) => u.name + ": " + bytes(last(u.memory));
  const lane = (u) => u.name + ": " + last(busy.get(u)).toFixed(1);
  const told = (text) => users.map(text).join(", ") || "nobody";
  setText(byId("memory-title"), "Memory by user, " + unit.name);
  draw("memory-chart", sets((u) => u.memory, unit.size),
    { stacked: true, told: "Memory now: " + told(memory) });
  legend("memory", users, memory);
  const all = users.reduce((sum, u) => sum + last(busy.get(u)), 0);
  setText(byId("lanes-title"), "Lanes in use: " + Math.min(all, lanes).toFixed(1) + " of " + lanes);
  draw("lanes-chart", sets((u) => busy.get(u), 1),
    { stacked: true, most: lanes, told: "Lanes now: " + told(lane) });
  legend("lanes", users, lane);
}

function drawAll(lanes) {
  drawUsers(lanes);
  draw("queue-chart", [{ label: "queued", color: "c0", values: points(kept.queued, 1) }],
    { told: "Commands queued now: " + last(kept.queued) });
  for (const device of kept.devices) {
    const canvas = "device-" + device.name + "-chart";
    if (!byId(canvas)) continue;
    const unit = unitOf(device.total);
    draw(canvas, [{ label: unit.name + " in use", color: "c0", values: points(device.used, unit.size) }],
      { most: device.total / unit.size, times: false,
        told: "Memory in use on " + device.name + " now: " + bytes(last(device.used)) });
  }
}

// ---- functions that the page calls

export function choose(seconds, lanes) {
  range = seconds;
  for (const each of Object.keys(TICKS)) {
    byId("range-" + each).setAttribute("aria-pressed", String(Number(each) === range));
  }
  if (kept && kept.times.length > 0) drawAll(lanes);
}

export async function showHistory(lanes) {
  const since = kept ? kept.next : 0;
  const reply = await ask("/api/history?since=" + since);
  if (!reply.ok) return;
  const fresh = await reply.json();
  if (kept && kept.next !== since) return;  // Another round has already added these samples.
  // Another daemon has answered: fetch its whole history.
  if (kept && kept.began !== fresh.began && since > 0) {
    kept = null;
    return;
  }
  grow(fresh);
  if (kept.times.length > 0) drawAll(lanes);
}
