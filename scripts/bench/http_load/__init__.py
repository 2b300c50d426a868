"""Load over HTTP: clients of an OpenAI server, the sessions they play, and what becomes of their answers. No commands of its own."""
