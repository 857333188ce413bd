/* Notes what a reviewer opened. Needed by nothing: each part has a button, and the page one to mark it as read.

A <details data-panel="KEY"> that a person opens is posted once with the token of #opened-form, and the answer, the
list anew, takes the place of the one on the page. One that the page came with open counts once it was closed before. */

const SEEN_AFTER_MS = 5000;
const SCRIPT = { "X-Requested-With": "fetch" };

const form = () => document.getElementById("opened-form");
const closed = new WeakSet();
const posted = new Set();
let queue = Promise.resolve(); // one after the other, so that the last answer is the newest

async function send(panel) {
  const body = new FormData(form());
  body.set("panel", panel);
  const answer = await fetch(form().action, { method: "POST", body, headers: SCRIPT });
  const text = await answer.text();
  if (answer.ok && !answer.redirected) show(new DOMParser().parseFromString(text, "text/html"));
  else {
    posted.delete(panel);
    say(answer.headers.get("Content-Type")?.startsWith("text/plain") ? text : "Not recorded. Load the page again.");
  }
}

function say(text) {
  document.getElementById("attention-said").textContent = text;
}

/* The region that is read out stays; what it says and the list below change. */
function show(fresh) {
  const list = document.getElementById("attention-parts");
  const buttons = [...list.querySelectorAll("button")];
  const at = buttons.indexOf(document.activeElement);
  const scrolled = list.querySelector(".parts")?.scrollTop ?? 0;
  list.replaceChildren(...fresh.getElementById("attention-parts").childNodes);
  if (list.querySelector(".parts")) list.querySelector(".parts").scrollTop = scrolled;
  say(fresh.getElementById("attention-said").textContent);
  const open = new Set([...list.querySelectorAll("button")].map((button) => button.value));
  for (const button of document.querySelectorAll("button[form=opened-form]")) {
    if (open.has(button.value)) continue;
    button.textContent = "read"; // it may have the focus, so it stays
    button.setAttribute("aria-disabled", "true");
  }
  if (at < 0) return;
  const left = [...list.querySelectorAll("button")];
  (left[Math.min(at, left.length - 1)] ?? list.querySelector(".parts"))?.focus();
}

function record(panel) {
  if (!form() || posted.has(panel)) return;
  posted.add(panel);
  queue = queue.then(() => send(panel)).catch(() => {
    posted.delete(panel);
    say("Not recorded: the server did not answer.");
  });
}

for (const part of document.querySelectorAll("details[data-panel]")) if (!part.open) closed.add(part);

document.addEventListener(
  "toggle",
  (event) => {
    const part = event.target;
    if (!part.matches?.("details[data-panel]")) return;
    if (!part.open) closed.add(part);
    else if (closed.has(part)) record(part.dataset.panel);
  },
  true, // it does not bubble
);

document.addEventListener("submit", (event) => {
  if (event.target.id !== "opened-form" || event.submitter?.name !== "panel") return;
  event.preventDefault();
  record(event.submitter.value);
});

/* The page was read once it lay before somebody's eyes for five seconds on end. */
const seen = document.getElementById("seen-form");

function markSeen() {
  document.removeEventListener("visibilitychange", watch);
  fetch(seen.action, { method: "POST", body: new FormData(seen), headers: SCRIPT }).catch(() => {}); // the button is there
}

let waiting = 0;
function watch() {
  clearTimeout(waiting);
  if (!document.hidden) waiting = setTimeout(markSeen, SEEN_AFTER_MS);
}

if (seen) {
  document.addEventListener("visibilitychange", watch);
  watch();
}
