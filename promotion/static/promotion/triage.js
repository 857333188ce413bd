/* Keys for reading a review: j and k walk the items, other letters press what the item offers. None of them signs.

An item is any [data-triage]; its group is the value of the nearest [data-triage-group]. A letter presses the item's
own [data-key="letter"], or the page's where the item has none. Nothing here is needed: every key has a link or button. */

const ITEM = "[data-triage]";
const STORE = "assay-keys";
const SECOND_KEY_MS = 1500;
const HEADINGS = { v: "verdict-h", s: "sign-h" };
const TYPING = "input, textarea, select, dialog, [contenteditable]:not([contenteditable=false])";

const dialog = document.getElementById("keys");
const choice = document.getElementById("keys-on");
let current = null;
let pressedG = -Infinity;

function stored() {
  try {
    return localStorage.getItem(STORE) !== "off";
  } catch {
    return true; // storage is blocked: the keys work, and the switch holds for this page
  }
}

function turn(on) {
  choice.checked = on;
  for (const control of document.querySelectorAll("[data-key]")) {
    if (on) control.setAttribute("aria-keyshortcuts", control.dataset.key);
    else control.removeAttribute("aria-keyshortcuts");
  }
  for (const hint of document.querySelectorAll(".keyhint")) hint.hidden = false;
}

const shown = (element) => element.checkVisibility(); // false inside a closed row
const items = () => [...document.querySelectorAll(ITEM)].filter(shown);
const groupOf = (item) => item.closest("[data-triage-group]")?.dataset.triageGroup ?? "";

/* What takes the focus for an item: the summary of a row that opens, else the row itself. */
function handleOf(item) {
  const handle = item.matches("details") ? item.querySelector("summary") : item;
  if (handle.tabIndex < 0) handle.tabIndex = -1;
  return handle;
}

function currentOf(all) {
  const focused = document.activeElement?.closest(ITEM);
  if (focused && all.includes(focused)) return focused;
  return all.includes(current) ? current : null;
}

function goTo(item) {
  if (!item) return;
  current = item;
  const handle = handleOf(item);
  handle.focus({ preventScroll: true });
  handle.scrollIntoView({ block: "nearest" });
}

function step(by) {
  const all = items();
  const at = all.indexOf(currentOf(all));
  if (at < 0) goTo(all.find((item) => item.getBoundingClientRect().bottom > 0) ?? all[0]);
  else goTo(all[at + by]);
}

function stepGroup(by) {
  const all = items();
  const here = currentOf(all);
  if (!here) return step(0);
  const firsts = all.filter((item, at) => at === 0 || groupOf(item) !== groupOf(all[at - 1]));
  const at = firsts.findLastIndex((first) => all.indexOf(first) <= all.indexOf(here));
  return goTo(firsts[at + by]);
}

function control(key) {
  const ofItem = currentOf(items())?.querySelector(`[data-key="${key}"]`);
  return ofItem ?? [...document.querySelectorAll(`[data-key="${key}"]`)].find((found) => !found.closest(ITEM));
}

function press(key) {
  const found = control(key);
  if (found) found.click();
  return Boolean(found);
}

/* Opening a row is reading it: v opens a closed one, and openings.js notes that without leaving the place. */
function view() {
  const item = currentOf(items());
  if (item?.matches("details") && !item.open) item.open = true;
  else press("v");
}

function toggle(event) {
  const item = currentOf(items());
  if (!item || item !== event.target) return false; // a summary, link or button answers Enter by itself
  const inner = item.querySelector("details");
  if (inner) inner.open = !inner.open;
  else item.querySelector("a[href]")?.click();
  return true;
}

function toHeading(id) {
  const heading = document.getElementById(id);
  if (!heading) return;
  heading.tabIndex = -1;
  heading.focus();
}

function act(event) {
  const { key } = event;
  const afterG = event.timeStamp - pressedG < SECOND_KEY_MS;
  pressedG = key === "g" ? event.timeStamp : -Infinity;
  if (afterG && key in HEADINGS) toHeading(HEADINGS[key]);
  else if (key === "?") dialog.showModal();
  else if (key === "j") press("j") || step(1);
  else if (key === "k") press("k") || step(-1);
  else if (key === "J") stepGroup(1);
  else if (key === "K") stepGroup(-1);
  else if (key === "v") view();
  else if (key === "s" || key === "c" || key === "d") press(key);
  else if (key === "Enter") return toggle(event);
  else return false;
  return true;
}

document.addEventListener("keydown", (event) => {
  if (!choice.checked || event.defaultPrevented || event.isComposing) return;
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest(TYPING)) return;
  if (act(event)) event.preventDefault();
});

document.addEventListener("focusin", (event) => {
  current = event.target.closest(ITEM) ?? current;
});

choice.addEventListener("change", () => {
  turn(choice.checked);
  try {
    localStorage.setItem(STORE, choice.checked ? "on" : "off");
  } catch {
    // see stored()
  }
});

for (const hint of document.querySelectorAll(".keyhint")) hint.addEventListener("click", () => dialog.showModal());
turn(stored());
