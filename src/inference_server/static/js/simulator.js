// The switch of the load simulator, and what its users have met with.

import { call } from "./api.js";
import { $, count, duration, el, follow, write } from "./dom.js";

const WEIGHTS = ["short", "medium", "long"];

async function command(path, body) {
  write($("sim-error"), "");
  try {
    drawSimulator(await call(path, body));
  } catch (error) {
    write($("sim-error"), error.message);
  }
}

export function wireSimulator() {
  $("sim-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const fields = Object.fromEntries([...new FormData(event.target)].map(([name, value]) => [name, Number(value)]));
    const weights = Object.fromEntries(WEIGHTS.map((name) => [name, fields[name]]));
    for (const name of WEIGHTS) delete fields[name];
    command("/simulate/start", { ...fields, weights });
  });
  $("sim-stop").addEventListener("click", () => command("/simulate/stop", {}));
}

/** status: null where the server has no simulator. */
export function drawSimulator(status) {
  const form = $("sim-form");
  if (status === null) {
    write($("sim-state"), "switched off on this server");
    for (const control of form.elements) control.disabled = true;
    return;
  }
  $("sim-start").disabled = status.running;
  $("sim-stop").disabled = !status.running;
  write($("sim-state"), status.running ? "running" : status.options ? "stopped" : "not running");
  const figures = status.options
    ? [
        ["Time", `${Math.floor(status.elapsed_s)} s`],
        ["Answered", count(status.requests_completed)],
        ["In flight", count(status.in_flight)],
        ["Refused, retried", count(status.requests_rejected)],
        ["Failed", count(status.requests_failed)],
        ["First token, p50", duration(status.ttft_ms.p50)],
        ["First token, p99", duration(status.ttft_ms.p99)],
      ]
    : [];
  follow($("sim-figures"), figures, ([name]) => name, ([name]) => el("div", {}, el("dt", {}, name), el("dd")), (item, [, value]) => write(item.lastElementChild, value));
  if (status.last_error) write($("sim-error"), `Last failure: ${status.last_error}`);
}
