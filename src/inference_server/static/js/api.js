// Talking to the server. Every failure is an Error whose message can be shown.

import { send } from "./key.js";

export async function call(path, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  const response = await send(path, { cache: "no-store", ...options });
  if (!response.ok) throw new Error(await reason(response));
  return response.json();
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/** The events of a streamed chat completion, as they come; first the id under which /requests knows it. */
export async function* chat(messages, maxTokens, signal) {
  const body = { messages, max_tokens: maxTokens, stream: true, stream_options: { include_usage: true } };
  const response = await send("/v1/chat/completions", {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
    signal,
  });
  if (!response.ok) throw new Error(await reason(response));
  yield { requestId: response.headers.get("x-request-id") };
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: {")) continue;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}
