/* Notes what a reviewer opened. Needed by nothing: each part has a button, and the page one to mark it as read.

A <details data-panel="KEY"> that a person opens, or whose link in the list they follow, is posted once with the token
of #opened-form, and the answer, the list anew, takes the place of the one on the page. One that the page came with open
counts once it lies in the window. A button posts the key as marked: it is recorded as that. */

const SEEN_AFTER_MS = 5000;
const SHOWN_AFTER_MS = 1000; // shorter is scrolled past
const SCRIPT = { "X-Requested-With": "fetch" };

const form = () => document.getElementById("opened-form");
const closed = new WeakSet();
const posted = new Set();
let queue = Promise.resolve(); // one after the other, so that the last answer is the newest

async function send(panel, leaving) {
  const body = new FormData(form());
  body.set("panel", panel);
  const answer = await fetch(form().action, { method: "POST", body, headers: SCRIPT, keepalive: leaving });
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
  const unfolded = list.querySelector("details")?.open;
  list.replaceChildren(...fresh.getElementById("attention-parts").childNodes);
  if (unfolded && list.querySelector("details")) list.querySelector("details").open = true;
  say(fresh.getElementById("attention-said").textContent);
  const left = new Set([...list.querySelectorAll("button")].map((button) => button.value));
  for (const button of document.querySelectorAll("button[form=opened-form]")) {
    if (left.has(button.value)) continue;
    button.textContent = "read"; // it may have the focus, so it stays
    button.setAttribute("aria-disabled", "true");
  }
  if (at < 0) return;
  const others = [...list.querySelectorAll("button")];
  (others[Math.min(at, others.length - 1)] ?? list.querySelector("a"))?.focus();
}

function record(panel, leaving = false) {
  if (!form() || posted.has(panel)) return;
  posted.add(panel);
  // who leaves the page takes no turn: the request goes out before
  queue = (leaving ? send(panel, true) : queue.then(() => send(panel, false))).catch(() => {
    posted.delete(panel);
    say("Not recorded: the server did not answer.");
  });
}

/* What the page shows open by itself counts once it lies before somebody's eyes. */
const due = new WeakMap();
const shown = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      clearTimeout(due.get(target));
      const look = () => target.open && !document.hidden && record(target.dataset.panel);
      if (isIntersecting) due.set(target, setTimeout(look, SHOWN_AFTER_MS));
    }
  },
  { rootMargin: "-40% 0px" }, // it crosses the middle of the window
);
for (const part of document.querySelectorAll("details[data-panel]")) {
  if (part.open) shown.observe(part);
  else closed.add(part);
}

document.addEventListener(
  "toggle",
  (event) => {
    const part = event.target;
    if (!part.matches?.("details[data-panel]")) return;
    if (!part.open) closed.add(part);
    else if (closed.has(part)) record(part.dataset.panel); // the browser tells of those that came open too
  },
  true, // it does not bubble
);

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-opens]");
  if (link) record(link.dataset.opens, !link.getAttribute("href").startsWith("#"));
});

document.addEventListener("submit", (event) => {
  if (event.target.id !== "opened-form" || event.submitter?.name !== "panel") return;
  event.preventDefault();
  // the button of a part that lies open
  const open = event.submitter.closest("details[data-panel][open]");
  record(open?.dataset.panel ?? event.submitter.value);
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
