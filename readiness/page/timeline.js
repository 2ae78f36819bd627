
// The timeline, and commands in messages.
function showHappened(now) {
  const all = now.timeline ?? [];
  $("happened-section").hidden = !all.length;
  if (fresh("happened", all)) $("happened").replaceChildren(...all.toReversed().map(happening));
}

function happening(is) {
  return make("li", is.health, moment(is.at), make("span", "mark", marks[is.health] ?? ""), make("span", "unseen", is.health + ": "), make("span", "", ...sentence(is.message)));
}

// ways returns the commands and flags in a text.
const ways = new RegExp([
  /(?:etcd-wrapper )?(?:etcdctl|etcdutl) [a-z]+ [a-z]+(?: (?:[0-9a-f]{8,16}\b|--[\w=-]+|[^\s;,]*\/[^\s;,]+))*/, /etcd-wrapper (?:status|defrag|backup [a-z]+)/,
  /(?<=\b(?:start|once|members?|others|so|or) with )--[a-z-]+=[^\s;,]+/,
].map((each) => each.source).join("|"), "g");

// sentence returns a text with a copy button after each command.
function sentence(text) {
  const parts = [];
  let from = 0;
  for (const { 0: way, index } of plain(text).matchAll(ways)) {
    parts.push(plain(text).slice(from, index), make("code", "", way), " ", copier(way));
    from = index + way.length;
  }
  return [...parts, plain(text).slice(from)];
}

function copier(way, label = "Copy") {
  const button = make("button", "copy", label);
  button.type = "button";
  button.dataset.copies = way;
  button.title = "Copy " + plain(way);
  button.setAttribute("aria-label", "Copy " + way);
  return button;
}

// A copy button copies a text to the clipboard, or selects the text if the browser does not allow copying.
document.addEventListener("click", async ({ target }) => {
  const button = target.closest?.("[data-copies]");
  if (!button || button.dataset.copied) return;
  const label = button.textContent;
  button.dataset.copied = true;
  try {
    await navigator.clipboard.writeText(button.dataset.copies);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = label; delete button.dataset.copied; }, 2000);
});

// keepingFocus restores the focus of a button that was redrawn.
function keepingFocus(draw) {
  const held = document.activeElement?.dataset.copies;
  draw();
  if (held && !document.activeElement?.dataset.copies) [...document.querySelectorAll("[data-copies]")].find((button) => button.dataset.copies === held)?.focus();
}
