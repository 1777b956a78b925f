"""The streamed answer, whatever wire it came over: its chunks, their order, what they make."""
