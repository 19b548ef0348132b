// A button beside each block of code, which copies it.
for (const block of document.querySelectorAll("div.highlight")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "copy";
  button.setAttribute("aria-label", "copy this code");
  button.addEventListener("click", async () => {
    // Without prompts, and of a session in Python without what it printed.
    const text = block.querySelector("pre").textContent;
    const typed = text.split("\n").filter((line) => /^(>>>|\.\.\.)( |$)/.test(line));
    const copied = typed.length ? typed.map((line) => line.slice(4)).join("\n") : text;
    await navigator.clipboard.writeText(copied.trimEnd());
    button.textContent = "copied";
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
  block.append(button);
}
