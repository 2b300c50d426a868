// The picture of the batch: a bar for each open request. A bar's length is its tokens; its colours say where they come from.

import { $, duration, el, follow, write } from "./dom.js";
import { GATES } from "./gates.js";
import { showLife } from "./life.js";

const PARTS = ["cached", "prefill", "waiting", "decode"];

/** Tokens by part. What a preempted request had computed is to be computed again. */
function parts(request) {
  const prompt = request.prompt_tokens;
  const computed = Math.min(request.computed_tokens, prompt);
  const cached = Math.min(request.cached_tokens, computed);
  return { cached, prefill: computed - cached, waiting: prompt - computed, decode: request.output_tokens };
}

function create(request) {
  const strip = el("span", { class: "strip", "aria-hidden": "true" }, ...PARTS.map((part) => el("i", { class: part })));
  const button = el("button", { type: "button", onclick: () => showLife(request.request_id) }, el("span", { class: "who" }), strip, el("span", { class: "age" }));
  return el("li", {}, button);
}

function update(item, request, longest) {
  const [who, strip, age] = item.firstElementChild.children;
  const tokens = parts(request);
  item.className = request.status;
  write(who, request.session_id || request.client_id.slice(0, 8));
  write(age, duration(request.total_ms));
  PARTS.forEach((part, index) => strip.children[index].style.setProperty("width", `${(100 * tokens[part]) / longest}%`));
  const told = `${who.textContent}, ${request.status}, ${request.prompt_tokens} prompt and ${request.output_tokens} output tokens, ${age.textContent} old`;
  item.firstElementChild.setAttribute("aria-label", told);
  item.firstElementChild.title = told;
}

export function drawBatch(requests, scheduler) {
  if (requests === null) return;
  const order = { prefilling: 0, running: 1, preempted: 2, waiting: 3 };
  const rows = [...requests].sort((a, b) => order[a.status] - order[b.status]);
  const longest = Math.max(64, ...rows.map((row) => row.prompt_tokens + row.output_tokens));
  follow($("rows"), rows, (row) => row.request_id, create, (item, row) => update(item, row, longest));
  $("rows").classList.toggle("many", rows.length > 40);
  $("rows-empty").hidden = rows.length > 0;
  const held = Object.entries(scheduler.waiting_by_reason).map(([gate, number]) => `${number} for ${GATES[gate] ?? gate}`);
  const waiting = `${scheduler.queue_depth} waiting${held.length ? ` (${held.join(", ")})` : ""}`;
  write($("batch-counts"), `${scheduler.running} decoding · ${scheduler.prefilling} prefilling · ${waiting} · ${scheduler.preemptions_total} preempted so far`);
}
