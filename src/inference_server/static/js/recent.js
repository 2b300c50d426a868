// The latest requests that have ended, and the search for one by its id.

import { $, count, duration, el, follow, write } from "./dom.js";
import { showLife } from "./life.js";

function create(request) {
  const show = el("button", { type: "button", class: "link", onclick: () => showLife(request.request_id) }, request.request_id.slice(0, 10));
  const queue = request.queue_ms ?? request.total_ms;
  const first = request.ttft_ms ?? request.total_ms;
  const total = Math.max(request.total_ms, 0.001);
  const strip = el("span", { class: "strip", role: "img", "aria-label": `queue ${duration(queue)}, prefill ${duration(first - queue)}, decode ${duration(total - first)}` });
  for (const [kind, time] of [["waiting", queue], ["prefill", first - queue], ["decode", total - first]]) {
    const piece = el("i", { class: kind });
    piece.style.setProperty("width", `${(100 * time) / total}%`);
    strip.append(piece);
  }
  const prompt = request.cached_tokens ? `${count(request.prompt_tokens)} (${count(request.cached_tokens)} cached)` : count(request.prompt_tokens);
  const cells = [show, request.session_id || "–", strip, duration(request.ttft_ms), duration(request.total_ms), prompt, count(request.output_tokens), request.error_code ?? request.finish_reason];
  return el("tr", {}, ...cells.map((cell) => el("td", {}, cell)));
}

export function drawRecent(ended) {
  follow($("ended"), ended, (request) => request.request_id, create, () => {});
  $("ended-empty").hidden = ended.length > 0;
  write($("ended-empty"), "No request has ended yet.");
}

export function wireSearch() {
  $("find-form").addEventListener("submit", (event) => {
    event.preventDefault();
    showLife($("find-id").value.trim());
  });
}
