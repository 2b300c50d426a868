// What a waiting request waits for, by the server's name of the gate.

export const GATES = {
  turn: "its turn",
  slots: "a free row",
  kv_blocks: "KV memory",
  active_tokens: "the limit of active tokens",
  prompt: "a shared prompt",
};
