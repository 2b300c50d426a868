"""What a model's text means: thoughts, tool calls and the visible answer, told apart while the text comes."""
