"""Constrained decoding: which tokens may come next, given a JSON schema, a regular expression or a grammar."""
