"""How one generation looks on the wire: OpenAI chat, OpenAI completions, and the native `/generate`; whole and as events."""
