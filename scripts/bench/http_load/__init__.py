"""Load over HTTP: clients of an OpenAI server, the sessions that they play, and figures of their answers. It has no commands."""
