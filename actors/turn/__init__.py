"""What an agent does with its input: the loop, turns, steps, tool calls, seams."""
