// Asks the server once a second how it is, and shows it. What comes from users (names of streams
// above all) goes into the page as text, never as markup.
import { bars, lines, mix, svg } from "./charts.js";

const EVERY = 1000; // milliseconds from an answer to the next question
const PATIENCE = 5000; // until a question without an answer is given up
const OTHER = 7; // the color of all classes that have none of their own

const ALARMS = {
  network_collapse: [
    "The network's predictions collapse",
    "It gives most samples one class while they look as different as samples of different classes did, or while its features grow. If something adapts it (TENT, batch statistics), reset that; if not, look at what changed before it: weights, preparation of images, a stuck input.",
  ],
  corrector_collapse: [
    "The corrector's predictions collapse",
    "In these streams its answers have less than half as many classes as the network's, and neither the order of samples nor their neighbors speak for that. Start these streams anew (sequence_start), or serve them with prudent.",
  ],
  domain_order: [
    "The corrector takes domains for classes",
    "In these streams something else than classes makes the order, as where weather or a camera changes, and yet the corrector changes labels as if classes persisted: against samples that look alike, or the network. Serve these streams with prudent; until then source_label has the network's own answer.",
  ],
  not_helping: [
    "The corrector does not seem to help",
    "It changes labels although classes do not make the order of samples, against those that look alike, or to classes that the network finds unlikely. Compare with labels where there are some; until then source_label has the network's own answer.",
  ],
};
// How the numbers of an alarm read, and whether they are shares.
const SIGNS = {
  share: ["pairs of samples in one class", true],
  unlike: ["unlikeness inside it (0 as in one class, 1 as between classes)", false],
  length: ["features, times their usual length", false],
  confidence: ["confidence", true],
  changed: ["labels changed", true],
  order: ["order (above 0 by classes, below by domains)", false],
  agreement: ["agreement of neighbors, over the network's", false],
  own: ["nats of the network for the new classes", false],
  classes: ["classes of the answers", false],
  source_classes: ["of the network", false],
  evidence: ["nats of evidence", false],
};

// What makes the order of a stream.
const ORDERS = { classes: "by classes", domains: "by domains", none: "none" };

const byId = (id) => document.getElementById(id);
const parts = new Map(); // the elements of each model
const open = new Set(); // streams that were clicked, as "model\nstream"
let classes = null;
let since = null; // when the server could not be reached any more; null while it can

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

const nameOf = (label) => classes?.[label] ?? `class ${label}`;
const percent = (share) => (share === undefined ? "–" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`);
const fixed = (value, digits = 2) =>
  value === undefined || value === null ? "–" : value.toFixed(digits).replace("-", "−");
const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString();

function duration(seconds) {
  if (seconds === undefined || seconds === null) return ["–", ""];
  if (seconds >= 1) return [seconds.toFixed(2), "s"];
  const ms = 1000 * seconds;
  return [ms >= 10 ? ms.toFixed(0) : ms.toFixed(ms >= 1 ? 1 : 2), "ms"];
}

function ago(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}

/** Fill a list of terms; entries that are there already are changed in place. */
function terms(list, entries) {
  entries.forEach(([term, value, unit], i) => {
    const pair = list.children[i] ?? list.appendChild(make("div"));
    if (pair.dataset.term !== term) {
      pair.dataset.term = term;
      pair.replaceChildren(make("dt", "", term), make("dd"));
    }
    pair.lastChild.replaceChildren(value, ...(unit ? [make("small", "", unit)] : []));
  });
  while (list.children.length > entries.length) list.lastChild.remove();
}

/** Let each class keep its color as long as it is shown. */
function color(part, shown) {
  for (const label of part.slots.keys()) if (!shown.includes(label)) part.slots.delete(label);
  const taken = new Set(part.slots.values());
  const free = [...Array(OTHER).keys()].filter((slot) => !taken.has(slot));
  for (const label of shown) if (!part.slots.has(label)) part.slots.set(label, free.shift() ?? OTHER);
}

function top(row, shown) {
  const total = row.reduce((sum, count) => sum + count, 0);
  if (!total) return "nothing";
  const order = shown.map((label, k) => [row[k], label]).filter(([count]) => count);
  order.sort((a, b) => b[0] - a[0]);
  const named = order.slice(0, 2).map(([count, label]) => `${nameOf(label)} ${percent(count / total)}`);
  return named.join(", ") || "many classes";
}

function drawMix(part, now, history) {
  color(part, history.classes);
  const slots = [...history.classes.map((label) => part.slots.get(label)), OTHER];
  for (const kind of ["source", "corrected"]) {
    const rows = history[kind];
    const read = (i) => top(rows[i], history.classes);
    const label = rows.length ? read(rows.length - 1) : "nothing yet";
    mix(part.figures[kind], now, history.time, history.span, rows, slots, label, read);
  }
  const others = [...history.source, ...history.corrected].some((row) => row.at(-1));
  const entries = history.classes.map((label) => [part.slots.get(label), nameOf(label)]);
  if (others) entries.push([OTHER, "all others"]);
  part.legend.replaceChildren(
    ...entries.map(([slot, name]) => {
      const item = make("li");
      item.append(make("i", `s${slot}`), make("span", "", name));
      return item;
    }),
  );
}

function drawCourses(part, now, history, model) {
  const { time, span } = history;
  const has = history.evidence.some((value) => value !== null);
  part.figures.evidence.hidden = !has; // before the others are drawn, which share its room
  const shares = history.changed.map((count, i) => (history.samples[i] ? count / history.samples[i] : null));
  lines(part.figures.changed, now, time, span, [shares], {
    least: 0.05, format: percent, label: `${percent(model.signals.changed)} of the last samples`,
    read: (i) => (shares[i] === null ? "no samples" : percent(shares[i])),
  });
  if (has) {
    lines(part.figures.evidence, now, time, span, [history.evidence], {
      least: 0.05, format: (value) => fixed(value), zero: true,
      label: `${fixed(model.signals.evidence, 3)} nats a sample`,
      read: (i) => `${fixed(history.evidence[i], 3)} nats`,
    });
  }
  const said = (value) => duration(value).join(" ");
  lines(part.figures.latency, now, time, span, [history.p50, history.p99], {
    least: 0.001, format: said, label: `${said(model.latency.p50)} and ${said(model.latency.p99)}`,
    read: (i) => `${said(history.p50[i])} and ${said(history.p99[i])}`,
  });
  const failed = history.failed.reduce((sum, count) => sum + count, 0);
  bars(part.figures.requests, now, time, span, [history.requests, history.failed], {
    format: (value) => `${value.toFixed(value < 10 ? 1 : 0)}/s`,
    label: failed ? `${failed} refused or failed` : "none refused",
    read: (i) => `${(history.requests[i] / span).toFixed(1)}/s, ${history.failed[i]} refused`,
  });
}

function drawAlarms(part, now, alarms) {
  const text = JSON.stringify([alarms, Math.floor(now / 10)]);
  if (part.alarms.dataset.shown === text) return; // so that it is not read aloud each second
  part.alarms.dataset.shown = text;
  part.alarms.replaceChildren(
    ...alarms.map((alarm) => {
      const [title, meaning] = ALARMS[alarm.name] ?? [alarm.name, ""];
      const item = make("li");
      item.dataset.alarm = alarm.name;
      const head = make("p");
      head.append(make("b", "", title), ` since ${clock(alarm.since)}`);
      item.append(head, make("p", "", meaning));
      if (alarm.streams.length) {
        const streams = alarm.streams.map((name) => name || "requests without a stream").join(", ");
        item.append(make("p", "", `Streams: ${streams}`));
      }
      const numbers = Object.entries(alarm.numbers).map(([key, x]) => {
        const [words, isShare] = SIGNS[key] ?? [key, false];
        return `${words} ${isShare ? percent(x) : fixed(x)}`;
      });
      item.append(make("p", "numbers", numbers.join(" · ")));
      return item;
    }),
  );
}

/** The last labels as cells, one a sample. */
function strip(labels, slots, title) {
  const drawing = svg("svg", { viewBox: `0 0 ${labels.length} 1`, preserveAspectRatio: "none", role: "img", "aria-label": title });
  labels.forEach((label, i) => {
    const cell = svg("rect", { x: i, y: 0, width: 0.92, height: 1, class: `s${slots.get(label) ?? OTHER}` });
    const name = svg("title");
    name.textContent = nameOf(label);
    cell.append(name);
    drawing.append(cell);
  });
  return drawing;
}

/** Runs of equal labels as words: "goose × 3, black swan × 40". */
function runs(labels) {
  const found = [];
  for (const label of labels) {
    if (found.length && found.at(-1)[0] === label) found.at(-1)[1] += 1;
    else found.push([label, 1]);
  }
  const last = found.slice(-8).map(([label, n]) => (n > 1 ? `${nameOf(label)} × ${n}` : nameOf(label)));
  return (found.length > 8 ? "… " : "") + last.join(", ");
}

function drawDetail(part, cell, stream) {
  // Colors of the class mix, and free ones for what is frequent here alone.
  const slots = new Map(part.slots);
  const taken = new Set(slots.values());
  const free = [...Array(OTHER).keys()].filter((slot) => !taken.has(slot));
  for (const label of [...stream.corrected, ...stream.source]) {
    if (!slots.has(label) && free.length) slots.set(label, free.shift());
  }
  const box = make("div", "strip");
  for (const [kind, title] of [["source", "Network"], ["corrected", "Corrected"]]) {
    const said = runs(stream[kind]);
    box.append(make("span", "", title), strip(stream[kind], slots, `${title}: ${said}`), make("span", "said", said));
  }
  const changes = svg("svg", { class: "changes", viewBox: `0 0 ${stream.source.length} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
  stream.source.forEach((label, i) => {
    if (label !== stream.corrected[i]) changes.append(svg("rect", { x: i, y: 0, width: 0.92, height: 1 }));
  });
  box.append(make("span", "", "Changed"), changes);
  box.append(make("span", "", "Order"), make("span", "", ORDERS[stream.order] ?? "–"));
  cell.replaceChildren(box);
}

function makeRow(part, model, stream) {
  const row = make("tr");
  const detail = make("tr", "detail");
  const head = make("th");
  head.scope = "row";
  const button = make("button", "stream", stream.id);
  button.type = "button";
  head.append(button);
  row.append(head);
  for (const className of ["number", "number", "number", "", "", ""]) row.append(make("td", className));
  const cell = make("td");
  cell.colSpan = 7;
  detail.append(cell);
  const key = `${model.name}\n${stream.id}`;
  const entry = { row, detail, cell, button, stream };
  entry.turn = () => {
    button.setAttribute("aria-expanded", open.has(key));
    detail.hidden = !open.has(key);
    if (!detail.hidden) drawDetail(part, cell, entry.stream);
  };
  button.addEventListener("click", () => {
    if (!open.delete(key)) open.add(key);
    entry.turn();
  });
  return entry;
}

function drawStreams(part, now, model) {
  // By name, not by time: rows that move cannot be clicked.
  const order = new Intl.Collator(undefined, { numeric: true });
  const streams = [...model.streams].sort((a, b) => order.compare(a.id, b.id));
  const ids = new Set(streams.map((stream) => stream.id));
  for (const [id, entry] of part.rows) {
    if (ids.has(id)) continue;
    entry.row.remove();
    entry.detail.remove();
    part.rows.delete(id);
    open.delete(`${model.name}\n${id}`);
  }
  let place = part.body.firstChild;
  for (const stream of streams) {
    let entry = part.rows.get(stream.id);
    if (!entry) {
      entry = makeRow(part, model, stream);
      part.rows.set(stream.id, entry);
    }
    entry.stream = stream;
    if (place === entry.row) place = entry.detail.nextSibling;
    else part.body.insertBefore(entry.detail, place).before(entry.row);
    const cells = entry.row.querySelectorAll("td");
    const changed = stream.source.filter((label, i) => label !== stream.corrected[i]).length;
    cells[0].textContent = stream.samples;
    cells[1].textContent = ago(now - stream.last);
    cells[2].textContent = percent(changed / (stream.source.length || 1));
    cells[3].textContent = ORDERS[stream.order] ?? "–";
    cells[4].textContent = nameOf(stream.source.at(-1));
    cells[5].textContent = nameOf(stream.corrected.at(-1));
    cells[5].className = stream.source.at(-1) === stream.corrected.at(-1) ? "" : "differs";
    entry.turn();
  }
  part.none.hidden = streams.length > 0;
  part.body.parentElement.hidden = streams.length === 0;
}

/** What the correction would have said, where every answer is the network's own. */
function drawShadow(part, shadow) {
  part.shadow.hidden = !shadow;
  if (!shadow) return;
  const [said, last] = part.shadow.querySelectorAll(":scope > p");
  const share = percent(shadow.changed / (shadow.samples || 1));
  const failed = shadow.failed ? ` ${shadow.failed} corrections could not be made.` : "";
  said.textContent = `Every answer is the network's own. The correction would have changed ${shadow.changed} of ${shadow.samples} samples (${share}).${failed}`;
  const table = part.shadow.querySelector("table");
  table.hidden = shadow.classes.length === 0;
  table.tBodies[0].replaceChildren(
    ...shadow.classes.slice(0, 12).map((one) => {
      const row = make("tr");
      const head = make("th", "", nameOf(one.class));
      head.scope = "row";
      row.append(head, ...[one.source, one.corrected, one.lost, one.gained].map((x) => make("td", "number", x)));
      return row;
    }),
  );
  const words = shadow.last.slice(-5).reverse().map((one) => {
    const where = one.stream === null ? "" : `${one.stream}: `;
    return `${where}${nameOf(one.source)} (${percent(one.source_confidence)}) to ${nameOf(one.corrected)} (${percent(one.confidence)})`;
  });
  last.textContent = words.length ? `The last: ${words.join(" · ")}` : "";
}

function makeModel(model) {
  const section = byId("model").content.firstElementChild.cloneNode(true);
  section.querySelector("h2").textContent = model.name;
  section.setAttribute("aria-label", `Model ${model.name}`);
  byId("models").append(section);
  const figures = {};
  for (const figure of section.querySelectorAll("figure")) figures[figure.dataset.chart] = figure;
  const find = (selector) => section.querySelector(selector);
  return {
    section, figures, slots: new Map(), rows: new Map(), alarms: find(".alarms"), tiles: find(".tiles"),
    legend: find(".legend"), body: find(".seen > .wide tbody"), seen: find(".seen"), shadow: find(".shadow"), idle: find(".idle"), none: find(".none"),
  };
}

/** What makes the order of streams, as a tile: what most needs to be known, and of how many. */
function orderTile(orders) {
  const total = Object.values(orders).reduce((sum, count) => sum + count, 0);
  const name = ["domains", "classes", "none"].find((one) => orders[one]);
  return [total > 1 ? `Order, ${orders[name]} of ${total}` : "Order by", name ?? "–", ""];
}

function drawModel(model, now) {
  if (!parts.has(model.name)) parts.set(model.name, makeModel(model));
  const part = parts.get(model.name);
  drawAlarms(part, now, model.alarms);
  const idle = model.history.time.length === 0;
  part.idle.hidden = !idle;
  part.seen.hidden = idle;
  if (idle) return;
  const { signals, latency } = model;
  const tiles = [
    ["Requests", model.rate.toFixed(model.rate < 10 ? 1 : 0), "/s"],
    ["Latency, p50", ...duration(latency.p50)],
    ["Latency, p99", ...duration(latency.p99)],
    ["Samples", model.samples.toLocaleString(), ""],
    ["Changed", percent(signals.changed), ""],
    ["Confidence", percent(signals.confidence), ""],
    ["Diversity", fixed(signals.diversity), "nats"],
  ];
  if ("evidence" in signals) tiles.push(["Evidence", fixed(signals.evidence, 3), "nats"]);
  if ("trust" in signals) tiles.push(["Trust", percent(signals.trust), ""]);
  tiles.push(orderTile(model.orders));
  terms(part.tiles, tiles);
  drawMix(part, now, model.history);
  drawCourses(part, now, model.history, model);
  drawShadow(part, model.shadow);
  drawStreams(part, now, model);
}

function draw(status) {
  classes = status.classes;
  byId("empty")?.remove();
  const words = { queue: "Queue", streams: "Streams held", evictions: "Evicted", damaged: "Damaged" };
  const up = status.time - status.started;
  const server = Object.entries(status.gauges).map(([name, x]) => [words[name] ?? name, x.toLocaleString(), ""]);
  server.push(["Up", up < 90 ? `${Math.round(up)} s` : up < 5400 ? `${Math.round(up / 60)} min` : `${(up / 3600).toFixed(1)} h`, ""]);
  terms(byId("server"), server);
  for (const model of status.models) drawModel(model, status.time);
  const alarms = status.models.reduce((sum, model) => sum + model.alarms.length, 0);
  document.title = alarms ? `(${alarms}) lametta` : "lametta";
}

function say(state, text) {
  const element = byId("state");
  if (element.textContent !== text) element.textContent = text;
  element.dataset.state = state;
  document.body.classList.toggle("gone", state === "gone");
}

function ask(refused) {
  say("waiting", "a token is needed");
  if (refused) byId("ask-why").textContent = "The server refused that token.";
  if (byId("ask").hidden) {
    byId("ask").hidden = false;
    byId("token").focus();
  }
}

/** The server's answer; null where it wants a token or cannot be reached. */
async function question() {
  const token = sessionStorage.getItem("lametta-token");
  try {
    const answer = await fetch("status.json", {
      cache: "no-store",
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      signal: AbortSignal.timeout(PATIENCE),
    });
    if (answer.status === 401) {
      since = null;
      sessionStorage.removeItem("lametta-token");
      ask(token !== null);
      return null;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    return await answer.json();
  } catch {
    since ??= Date.now() / 1000;
    say("gone", `not reachable since ${clock(since)}`);
    return null;
  }
}

async function poll() {
  try {
    const status = await question();
    if (status) {
      since = null;
      byId("ask").hidden = true;
      say("live", "live");
      draw(status);
    }
  } finally {
    // Without a token only the form goes on.
    if (byId("ask").hidden) setTimeout(poll, EVERY);
  }
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = byId("token").value.trim();
  byId("token").value = "";
  if (!/^[\x21-\x7e]+$/.test(token)) {
    byId("ask-why").textContent = "A token has letters, digits and signs, no spaces.";
    return;
  }
  sessionStorage.setItem("lametta-token", token);
  byId("ask").hidden = true;
  poll();
});
poll();
