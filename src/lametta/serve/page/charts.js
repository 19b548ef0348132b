// Charts as SVG, drawn anew with each answer: a few hundred points at most.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 112;
const TOP = 18; // pixels above it, for the largest value
const AXIS = 18; // pixels below the drawing, for the times
const LONGEST = 5; // minutes that are shown, fewer at the start

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** How many minutes are shown: whole ones, from the first point on. */
const minutesOf = (now, times) => Math.min(LONGEST, Math.max(1, Math.ceil((now - times[0]) / 60)));

/** A frame of some minutes: time goes right, and values from 0 (or `low`) to `high` go up. */
function frame(figure, now, times, low, high, format) {
  const minutes = minutesOf(now, times);
  const top = format ? TOP : 6;
  const width = Math.max(figure.clientWidth, 120);
  const x = (time) => width * (1 + (time - now) / (60 * minutes));
  const y = (value) => HEIGHT - (HEIGHT - top) * ((value - low) / (high - low || 1));
  const drawing = svg("svg", { width, height: HEIGHT + AXIS, role: "img" });
  for (const value of [low, high]) {
    drawing.append(svg("line", { class: "grid", x1: 0, x2: width, y1: y(value), y2: y(value) }));
  }
  for (let minute = 0; minute <= minutes; minute += 1) {
    const at = x(now - 60 * minute);
    if (minute && minute < minutes) {
      drawing.append(svg("line", { class: "grid", x1: at, x2: at, y1: top, y2: HEIGHT }));
    }
    const anchor = minute === 0 ? "end" : minute === minutes ? "start" : "middle";
    const text = minute === 0 ? "now" : `−${minute} min`;
    if (width > 300 || minute % minutes === 0) {
      drawing.append(svg("text", { x: at, y: HEIGHT + 14, "text-anchor": anchor }, text));
    }
  }
  if (format) drawing.append(svg("text", { x: 0, y: 12 }, format(high)));
  return { drawing, width, minutes, x, y };
}

/** Put a drawing into its figure, with a text for it and one for the point under the pointer. */
function show(figure, { drawing, width, minutes, x }, now, times, label, read) {
  const caption = figure.querySelector("figcaption span");
  const cursor = svg("line", { class: "cursor", y1: 6, y2: HEIGHT, visibility: "hidden" });
  drawing.append(cursor);
  const point = (at) => {
    let best = -1;
    times.forEach((time, i) => {
      if (best < 0 || Math.abs(time - at) < Math.abs(times[best] - at)) best = i;
    });
    return best;
  };
  const readAt = (offset) => {
    const i = offset === null ? -1 : point(now + (offset / width - 1) * 60 * minutes);
    cursor.setAttribute("visibility", i < 0 ? "hidden" : "visible");
    if (i < 0) {
      caption.textContent = label;
      return;
    }
    const at = x(times[i]);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    caption.textContent = `${new Date(1000 * times[i]).toLocaleTimeString()} · ${read(i)}`;
  };
  drawing.setAttribute("aria-label", `${figure.querySelector("figcaption b").textContent}: ${label}`);
  figure.querySelector("svg")?.remove();
  figure.append(drawing);
  if (!figure.dataset.reads) {
    figure.dataset.reads = "yes";
    figure.addEventListener("pointermove", (event) => {
      figure.offset = event.clientX - figure.getBoundingClientRect().left;
      figure.readAt(figure.offset);
    });
    figure.addEventListener("pointerleave", () => {
      figure.offset = null;
      figure.readAt(null);
    });
  }
  figure.readAt = readAt;
  readAt(figure.offset ?? null);
}

const inside = (times, now) => {
  const first = now - 60 * minutesOf(now, times);
  return times.map((time) => time >= first && time <= now);
};

/** Shares of classes, one column a point; `rows` are counts by class, `slots` their colors. */
export function mix(figure, now, times, span, rows, slots, label, read) {
  const framed = frame(figure, now, times, 0, 1, null);
  const paths = slots.map(() => "");
  const seen = inside(times, now);
  rows.forEach((row, i) => {
    const total = row.reduce((sum, count) => sum + count, 0);
    if (!total || !seen[i]) return;
    const left = framed.x(times[i]);
    const wide = Math.min(framed.x(times[i] + span), framed.width) - left;
    let below = 0;
    row.forEach((count, k) => {
      const top = framed.y((below + count) / total);
      if (count) paths[k] += `M${left.toFixed(1)} ${top.toFixed(1)}h${wide.toFixed(2)}V${framed.y(below / total).toFixed(1)}h${(-wide).toFixed(2)}z`;
      below += count;
    });
  });
  paths.forEach((path, k) => {
    if (path) framed.drawing.append(svg("path", { class: `s${slots[k]}`, d: path }));
  });
  show(figure, framed, now, times, label, read);
}

/** One or two courses of numbers; null is a gap. */
export function lines(figure, now, times, span, courses, { format, label, read, least, zero }) {
  const seen = inside(times, now);
  const values = courses.flat().filter((value, i) => value !== null && seen[i % times.length]);
  const low = Math.min(0, ...values);
  const high = Math.max(least, ...values);
  const framed = frame(figure, now, times, low, high, format);
  if (zero && low < -0.02 * high) {
    framed.drawing.append(
      svg("line", { class: "zero", x1: 0, x2: framed.width, y1: framed.y(0), y2: framed.y(0) }),
      svg("text", { x: framed.width, y: HEIGHT - 4, "text-anchor": "end" }, format(low)),
    );
  }
  courses.forEach((course, k) => {
    let path = "";
    let before = -Infinity;
    course.forEach((value, i) => {
      if (value === null || !seen[i]) return;
      const joined = times[i] - before < 3.5 * span;
      path += `${joined ? "L" : "M"}${framed.x(times[i] + span / 2).toFixed(1)} ${framed.y(value).toFixed(1)}`;
      if (!joined) path += "h.01"; // a point that stands alone is seen, too
      before = times[i];
    });
    if (path) framed.drawing.append(svg("path", { class: k ? "line second" : "line", d: path }));
  });
  show(figure, framed, now, times, label, read);
}

/** Counts as bars, the second kind in front of the first. */
export function bars(figure, now, times, span, counts, { format, label, read }) {
  const seen = inside(times, now);
  const high = Math.max(1, ...counts[0].filter((_, i) => seen[i])) / span;
  const framed = frame(figure, now, times, 0, high, format);
  counts.forEach((course, k) => {
    let path = "";
    course.forEach((count, i) => {
      if (!count || !seen[i]) return;
      const left = framed.x(times[i]);
      const wide = Math.min(framed.x(times[i] + span), framed.width) - left;
      path += `M${left.toFixed(1)} ${HEIGHT}V${framed.y(count / span).toFixed(1)}h${wide.toFixed(2)}V${HEIGHT}z`;
    });
    if (path) framed.drawing.append(svg("path", { class: k ? "bars second" : "bars", d: path }));
  });
  show(figure, framed, now, times, label, read);
}
