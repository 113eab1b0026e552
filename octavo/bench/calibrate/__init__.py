"""Measuring what ``octavo simulate`` takes for its cost model: steps of the engine, and the front before it."""
