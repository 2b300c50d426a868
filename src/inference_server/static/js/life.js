// The life of one request as a picture, a sentence and a list: queued, prefilled, decoded, and what came in between.

import { call } from "./api.js";
import { $, count, duration, el, percent } from "./dom.js";
import { GATES } from "./gates.js";

export async function showLife(id) {
  const dialog = $("life");
  $("life-body").replaceChildren(el("p", { class: "empty" }, "Loading"));
  if (!dialog.open) dialog.showModal();
  try {
    const life = await call(`/requests/${id.split("/").map(encodeURIComponent).join("/")}`);
    $("life-title").textContent = life.session_id || life.client_id;
    $("life-body").replaceChildren(...draw(life));
  } catch (error) {
    $("life-body").replaceChildren(el("p", { class: "error" }, error.message));
  }
}

/** The stretches of time that add up to the request's life: {kind, label, start, end} in milliseconds. */
export function stretches(life) {
  const found = [];
  const add = (kind, label, start, end) => end > start && found.push({ kind, label, start, end });
  const { queue_ms: queue, prefill_ms: prefill, decode_ms: decode } = life.phases;
  let since = 0;
  let gate = "turn";
  for (const event of life.events.filter((event) => event.event === "held" && event.at_ms < queue)) {
    add("waiting", `waited for ${GATES[gate] ?? gate}`, since, event.at_ms);
    [since, gate] = [event.at_ms, event.gate];
  }
  add("waiting", `waited for ${GATES[gate] ?? gate}`, since, queue);
  let at = queue;
  if (prefill !== null) {
    for (const chunk of life.events.filter((event) => event.event === "prefill" && event.at_ms < queue + prefill + 0.01)) {
      add("idle", "sat out steps of others", at, chunk.at_ms);
      at = Math.min(chunk.at_ms + chunk.duration_ms, queue + prefill);
      add("prefill", `computed ${tokens(chunk.tokens)} in a step of ${chunk.rows} ${chunk.rows === 1 ? "row" : "rows"}`, chunk.at_ms, at);
    }
    add("idle", "sat out steps of others", at, queue + prefill);
  }
  if (decode !== null) add("decode", `decoded ${tokens(life.output_tokens)}`, queue + prefill, queue + prefill + decode);
  return found;
}

/** The name under which most time was spent, and the time. */
function most(parts, nameOf) {
  const by = {};
  for (const part of parts) by[nameOf(part)] = (by[nameOf(part)] ?? 0) + part.end - part.start;
  return Object.entries(by).sort((a, b) => b[1] - a[1])[0];
}

/** One sentence: where most of the time went. */
function verdict(life, found) {
  if (!found.length) return "It has hardly begun.";
  const total = found.reduce((sum, part) => sum + part.end - part.start, 0);
  const [kind, time] = most(found, (part) => part.kind);
  const [gate] = most(found.filter((part) => part.kind === kind), (part) => part.label);
  const name = { waiting: `was queued: it mostly ${gate}`, prefill: "computed its prompt", decode: "decoded its answer", idle: gate }[kind];
  const preempted = life.preemptions ? ` It was preempted ${life.preemptions === 1 ? "once" : `${life.preemptions} times`}.` : "";
  return `For ${percent(time / total)} of its ${duration(life.total_ms)} it ${name}.${preempted}`;
}

function draw(life) {
  const found = stretches(life);
  const total = Math.max(life.total_ms, 0.001);
  const bar = el("div", { class: "life", role: "img", "aria-label": found.map((part) => `${part.label} for ${duration(part.end - part.start)}`).join("; ") });
  for (const part of found) {
    const piece = el("i", { class: part.kind, title: `${part.label}: ${duration(part.end - part.start)}` });
    piece.style.setProperty("left", `${(100 * part.start) / total}%`);
    piece.style.setProperty("width", `${(100 * (part.end - part.start)) / total}%`);
    bar.append(piece);
  }
  for (const event of life.events.filter((event) => event.event === "preempted")) {
    const mark = el("b", { class: "mark", title: `preempted at ${duration(event.at_ms)}` });
    mark.style.setProperty("left", `${(100 * event.at_ms) / total}%`);
    bar.append(mark);
  }
  const axis = el("p", { class: "axis", "aria-hidden": "true" }, el("span", {}, "0"), el("span", {}, duration(total / 2)), el("span", {}, duration(total)));
  const legend = el("ul", { class: "legend" }, ...["waiting", "prefill", "decode", "idle"].map((kind) => el("li", { class: kind }, { waiting: "queue", prefill: "prefill", decode: "decode", idle: "others' steps" }[kind])));
  const facts = el("dl", { class: "figures" });
  const fact = (name, value) => facts.append(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  fact("Queued", duration(life.queue_ms));
  fact("First token", duration(life.ttft_ms));
  fact("Prompt", `${count(life.prompt_tokens)} tokens`);
  fact("From cache", `${count(life.cached_tokens)} tokens`);
  fact("Output", `${count(life.output_tokens)} tokens`);
  fact("End", life.error_code ?? life.finish_reason ?? life.status);
  const events = el("ol", { class: "events" }, ...life.events.map((event) => el("li", {}, el("span", {}, event.at_ms ? duration(event.at_ms) : "0"), el("span", {}, tell(event)))));
  const dropped = life.events_dropped ? [el("p", { class: "note" }, `${life.events_dropped} later events were not kept.`)] : [];
  return [el("p", { class: "verdict" }, verdict(life, found)), bar, axis, legend, facts, events, ...dropped, el("p", { class: "note" }, `Request ${life.request_id}`)];
}

const tokens = (number) => `${count(number)} ${number === 1 ? "token" : "tokens"}`;

function tell(event) {
  switch (event.event) {
    case "received": return "received";
    case "held": return `held: waits for ${GATES[event.gate] ?? event.gate}`;
    case "admitted": return event.cached_tokens ? `admitted, ${event.cached_tokens} prompt tokens from the cache` : "admitted";
    case "prefill": return `computed ${tokens(event.tokens)} in ${duration(event.duration_ms)}, ${event.rows} ${event.rows === 1 ? "row" : "rows"} in the step`;
    case "first_token": return "first token";
    case "preempted": return "preempted: its memory went to others";
    case "last_token": return `last of ${event.output_tokens} tokens`;
    default: return `ended: ${event.reason}`;
  }
}
