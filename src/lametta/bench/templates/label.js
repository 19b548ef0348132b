const draw = JSON.parse(document.getElementById("draw").textContent);
const keys = "123456789abcdefghijklmnopqrstuvwxyz";
const kept = "lametta try " + draw.id;
const at = (name) => document.querySelector("#label ." + name);
const drawn = draw.file.drawn;
let place = 0;

try {  // a page that is loaded again goes on
  JSON.parse(localStorage.getItem(kept) || "[]").forEach((label, i) => { drawn[i].label ??= label; });
} catch { /* some browsers keep nothing of files */ }

function show() {
  const one = draw.shown[place];
  const known = drawn.filter((row) => row.label !== null).length;
  at("progress").textContent = `${place + 1} of ${drawn.length}, ${known} labeled`;
  at("bar").style.width = `${100 * known / drawn.length}%`;
  at("picture").hidden = !one.picture;
  at("picture").src = one.picture || "data:,";
  at("key").textContent = one.key;
  const choices = one.classes.map((k, i) => [keys[i], draw.names[k], k]);
  const buttons = [...choices, ["0", "another", "another"], ["space", "cannot tell", null]].map(([key, name, label]) => {
    const button = document.createElement("button");
    const cap = document.createElement("kbd");
    cap.textContent = key;
    button.type = "button";
    button.append(cap, " ", name);
    button.setAttribute("aria-pressed", label !== null && drawn[place].label === label);
    button.addEventListener("click", () => answer(label));
    return button;
  });
  at("answers").replaceChildren(...buttons);
  at("hand").href = URL.createObjectURL(new Blob([JSON.stringify(draw.file)], { type: "application/json" }));
  at("done").hidden = known === 0;
}
function go(step) {
  place = Math.min(Math.max(place + step, 0), drawn.length - 1);
  show();
}
function answer(label) {
  drawn[place].label = label;
  try { localStorage.setItem(kept, JSON.stringify(drawn.map((row) => row.label))); } catch { /* as above */ }
  go(1);
}
at("back").addEventListener("click", () => go(-1));
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const box = at("labeling").getBoundingClientRect();  // whoever reads on scrolls by space
  if (box.bottom < 0 || box.top > innerHeight || (event.key === " " && event.target.closest("button, a"))) return;
  if (event.key === "ArrowLeft" || event.key === "Backspace") go(-1);
  else if (event.key === "ArrowRight") go(1);
  else if (event.key === "0") answer("another");
  else if (event.key === " ") answer(null);
  else {
    const found = draw.shown[place].classes[keys.indexOf(event.key)];
    if (event.key.length !== 1 || found === undefined) return;
    answer(found);
  }
  event.preventDefault();
});
place = Math.max(drawn.findIndex((row) => row.label === null), 0);
show();
