"""Recorded traffic in the formats that there are, each read as an iterator: no trace is ever in memory as a whole."""
