// Helpers for all parts of the page: requests, texts and tables. All text from outside is set
// through textContent. The token is kept in this tab's sessionStorage and sent in a header.

export const byId = (id) => document.getElementById(id);

export async function ask(path, body) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = "Bearer " + token;
  const options = { headers, cache: "no-store" };
  if (body) {
    headers["Content-Type"] = "application/json";
    options.method = "POST";
    options.body = JSON.stringify(body);
  }
  return fetch(path, options);
}

// ---- texts

export function unitOf(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, count)) / 10)));
  return { name: units[power], size: 1024 ** power, digits: power === 0 ? 0 : 1 };
}

export function bytes(count) {
  const unit = unitOf(count);
  return (count / unit.size).toFixed(unit.digits) + " " + unit.name;
}

// Formats "6.8 of 64.0 MiB" or "7.6 MiB of 2.0 GiB".
function bytesOf(used, quota) {
  const unit = unitOf(used);
  const same = used === 0 || unit.name === unitOf(quota).name;
  return (same ? bytes(used).split(" ")[0] : bytes(used)) + " of " + bytes(quota);
}

export function seconds(value) {
  if (value < 120) return value.toFixed(value < 10 ? 1 : 0) + " s";
  if (value < 7200) return (value / 60).toFixed(0) + " min";
  if (value < 172800) return (value / 3600).toFixed(1) + " h";
  return (value / 86400).toFixed(1) + " days";
}

export const milliseconds = (value) => (value * 1000).toFixed(0) + " ms";
export const plural = (count, noun, nouns = noun + "s") => count + " " + (count === 1 ? noun : nouns);
export const shape = (sizes) => (sizes ? "[" + sizes.join(", ") + "]" : "");
export const nameOf = (session) => session.id + (session.name ? " " + session.name : "");
export const client = (session) =>
  session.attached ? "attached" : "left " + seconds(session.detached) + " ago";

export function place(tensor) {
  if (!tensor.away) return tensor.device;
  return tensor.device === "cpu" ? "disk" : tensor.device + ", moved away";
}

// ---- elements

export function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

export function setText(node, text) {
  if (node.textContent !== String(text)) node.textContent = text;
}

// A table cell is a text, or an element {make, update} that is created once and then updated, so
// that focus and clicks are not lost between two rounds.

export function link(text, href) {
  return {
    make: () => element("a"),
    update: (made) => {
      setText(made, text);
      if (made.getAttribute("href") !== href) made.setAttribute("href", href);
    },
  };
}

export const sessionLink = (id, name) => link(nameOf({ id, name }), "#session=" + id);

// One line for each {label, used, quota, text?}, with a bar if there is a quota. Without `text`,
// the numbers are bytes.
export function meters(lines) {
  return {
    make: () => element("div", undefined, "meter"),
    update: (made) => {
      while (made.children.length > lines.length) made.lastChild.remove();
      lines.forEach((line, i) => showMeter(made.children[i] || newMeter(made), line));
    },
  };
}

function newMeter(parent) {
  const made = element("div");
  made.append(element("span"), element("progress"));
  parent.append(made);
  return made;
}

function showMeter(made, { label, used, quota, text }) {
  const [words, bar] = made.children;
  const told = text || (quota > 0 ? bytesOf(used, quota) : bytes(used) + ", no quota");
  setText(words, told);
  bar.hidden = !(quota > 0);
  if (bar.hidden) return;
  bar.max = quota;
  bar.value = Math.min(used, quota);
  bar.setAttribute("aria-label", label + ": " + told);
  bar.classList.toggle("high", used >= 0.9 * quota);
}

// A user's name in the user's colour.
export function userCell(name, color) {
  return {
    make: () => {
      const made = element("span", undefined, "user");
      made.append(element("i", undefined, "mark " + colorClass(color)), name);
      return made;
    },
  };
}

export const colorClass = (color) => (color === undefined || color === null ? "others" : "c" + color);

function put(cell, content) {
  if (typeof content !== "object") return setText(cell, content);
  if (!cell.firstChild) cell.append(content.make());
  if (content.update) content.update(cell.firstChild);
}

function newRow(key, heads) {
  const row = element("tr");
  row.dataset.key = key;
  for (const head of heads) {
    const cell = element("td", undefined, head.className);
    cell.dataset.label = head.textContent;
    row.append(cell);
  }
  return row;
}

// Shows rows {key, cells} in a table, or the text beside the table if there are no rows.
export function fill(id, rows) {
  const table = byId(id);
  const body = table.tBodies[0];
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const shown = rows.map(({ key, cells }) => {
    const row = known.get(String(key)) || newRow(key, table.tHead.rows[0].cells);
    cells.forEach((content, i) => put(row.cells[i], content));
    return row;
  });
  if (shown.length !== body.rows.length || shown.some((row, i) => row !== body.rows[i])) {
    body.replaceChildren(...shown);
  }
  table.hidden = rows.length === 0;
  table.nextElementSibling.hidden = rows.length > 0;
}

// ---- counters

// Window of the growth rate, in seconds. An instruction counts when it ends, which may be long
// after it began.
const WINDOW = 10;
const MOST = 1000;
const before = new Map();  // Name -> [{total, at}], oldest first.

// Returns how fast the counter with this name grows, as the mean over the last WINDOW. `total` is its
// value at time `at`; both are in seconds, so 1 means one lane or device that is always busy.
export function rate(name, total, at) {
  if (before.size > MOST) before.clear();
  if (!before.has(name)) before.set(name, []);
  const seen = before.get(name);
  if (seen.length === 0 || at > seen[seen.length - 1].at) seen.push({ total, at });
  while (seen.length > 2 && seen[1].at <= at - WINDOW) seen.shift();
  const first = seen[0], last = seen[seen.length - 1];
  return last.at > first.at ? Math.max(0, (last.total - first.total) / (last.at - first.at)) : 0;
}

// ---- actions on a session

const ACTIONS = [
  { label: "Interrupt", path: "/api/interrupt", style: "" },
  { label: "Kill", path: "/api/kill", style: "danger" },
];

function question(session) {
  return "End session " + session.id + (session.name ? ", “" + session.name + "”," : "") + " of "
    + session.user + "? Its tensors are lost.";
}

export function actions(session) {
  const made = element("div");
  for (const { label, path, style } of ACTIONS) {
    const button = element("button", label, style);
    button.setAttribute("aria-label", label + " session " + nameOf(session) + " of " + session.user);
    button.addEventListener("click", async () => {
      if (path === "/api/kill" && !window.confirm(question(session))) return;
      const reply = await ask(path, { session: session.id, reason: "from the dashboard" });
      if (!reply.ok) window.alert((await reply.text()).trim());
      document.dispatchEvent(new Event("changed"));
    });
    made.append(button);
  }
  return made;
}
