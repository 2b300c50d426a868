// A chat that shows tokens as they come, and how long the first took and how fast the rest came, as this browser saw it.

import { chat } from "./api.js";
import { $, duration, el } from "./dom.js";
import { showLife } from "./life.js";

let messages = [];
let running = null;

function bubble(role) {
  const text = el("p", { class: "text" });
  const box = el("div", { class: `said ${role}` }, el("span", { class: "hidden" }, role === "user" ? "You: " : "Model: "), text);
  const log = $("chat-log");
  log.querySelector(".empty")?.remove();
  log.append(box);
  log.scrollTop = log.scrollHeight;
  return { box, text };
}

async function ask(question) {
  bubble("user").text.textContent = question;
  messages.push({ role: "user", content: question });
  const { box, text } = bubble("model");
  const note = el("p", { class: "note" }, "waiting for the first token");
  box.append(note);
  running = new AbortController();
  $("chat-send").textContent = "Stop";
  const times = { sent: performance.now(), first: null, last: null };
  let requestId = null;
  let usage = null;
  try {
    for await (const event of chat(messages, Number($("chat-tokens").value), running.signal)) {
      requestId = event.requestId ?? requestId;
      usage = event.usage ?? usage;
      const delta = event.choices?.[0]?.delta ?? {};
      const piece = delta.content ?? "";
      if (!piece && !delta.reasoning_content) continue;
      times.last = performance.now();
      times.first ??= times.last;
      text.append(piece);
      note.textContent = piece ? `first token after ${duration(times.first - times.sent)}` : "thinking";
      $("chat-log").scrollTop = $("chat-log").scrollHeight;
    }
    messages.push({ role: "assistant", content: text.textContent });
    note.textContent = summary(times, usage);
  } catch (error) {
    messages.pop();
    note.textContent = error.name === "AbortError" ? "stopped" : error.message;
    note.classList.toggle("error", error.name !== "AbortError");
  } finally {
    running = null;
    $("chat-send").textContent = "Send";
    if (requestId) note.append(" ", el("button", { type: "button", class: "link", onclick: () => showLife(requestId) }, "timeline"));
    $("chat-log").scrollTop = $("chat-log").scrollHeight;
  }
}

function summary({ sent, first, last }, usage) {
  if (first === null || usage === null) return "no text";
  const cached = usage.prompt_tokens_details?.cached_tokens;
  const rate = usage.completion_tokens > 1 && last > first ? `${((1000 * (usage.completion_tokens - 1)) / (last - first)).toFixed(1)} tokens/s · ` : "";
  return `first token ${duration(first - sent)} · ${rate}${usage.completion_tokens} tokens${cached ? ` · ${cached} of the prompt cached` : ""}`;
}

export function wirePlayground() {
  $("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) return running.abort();
    const question = $("chat-text").value.trim();
    if (!question) return;
    $("chat-text").value = "";
    ask(question);
  });
  $("chat-text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) $("chat-form").requestSubmit();
  });
  $("chat-clear").addEventListener("click", () => {
    running?.abort();
    messages = [];
    $("chat-log").replaceChildren(el("p", { class: "empty" }, "Ask the model something."));
    $("chat-text").focus();
  });
}
