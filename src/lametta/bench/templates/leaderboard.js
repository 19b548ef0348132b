const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click", () => {
  const now = root.style.colorScheme || (system.matches ? "dark" : "light");
  root.style.colorScheme = now === "dark" ? "light" : "dark";
});

function sortBy(button) {
  const head = button.parentElement;
  const heads = [...head.parentElement.children];
  const at = heads.indexOf(head);
  const first = "text" in button.dataset || "up" in button.dataset ? "ascending" : "descending";
  const other = first === "ascending" ? "descending" : "ascending";
  const way = head.getAttribute("aria-sort") === first ? other : first;
  for (const one of heads) one.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", way);
  const body = head.closest("table").tBodies[0];
  const key = (row) => {
    const cell = row.cells[at];
    if ("text" in button.dataset) return cell.textContent.trim();
    return "value" in cell.dataset ? Number(cell.dataset.value) : null;
  };
  const overall = at < heads.length - heads.filter((one) => one.dataset.scenario !== undefined).length;
  const rows = [...body.rows].map((row) => [row, key(row)]);
  rows.sort(([a, x], [b, y]) => {
    // Means over other streams are not compared: rows that miss some come last.
    const late = overall ? a.classList.contains("incomplete") - b.classList.contains("incomplete") : 0;
    if (late) return late;
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === "string" ? x.localeCompare(y) : x - y;
    return way === "ascending" ? order : -order;
  });
  body.append(...rows.map(([row]) => row));
}
for (const button of document.querySelectorAll(".sortable th button")) {
  button.addEventListener("click", () => sortBy(button));
}

const boxes = [...document.querySelectorAll(".filters input")];
function filter() {
  const shown = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
  for (const row of document.querySelectorAll("tr[data-family]")) row.hidden = !shown.has(row.dataset.family);
}
for (const box of boxes) box.addEventListener("change", filter);

const details = JSON.parse(document.getElementById("details").textContent);
const dialog = document.getElementById("card");
function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
function show(number) {
  const cell = details.cells[number];
  dialog.querySelector("h2").textContent = cell.title;
  dialog.querySelector(".facts").textContent = `by ${cell.by}`;
  const runs = cell.runs.map(([seed, accuracy, gain, print]) => {
    const row = document.createElement("tr");
    row.append(element("td", seed), element("td", accuracy, "number"), element("td", gain, "number"), element("td", print.slice(0, 16)));
    return row;
  });
  dialog.querySelector("tbody").replaceChildren(...runs);
  const facts = cell.lines.flatMap((line) => details.lines[line].map((text, i) => element(i ? "dd" : "dt", text)));
  dialog.querySelector("dl").replaceChildren(...facts);
  dialog.showModal();
}
for (const button of document.querySelectorAll(".cell")) {
  button.addEventListener("click", () => show(Number(button.dataset.cell)));
}
dialog.querySelector(".close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
root.dataset.ready = "yes";
