"""One module an engine, run by ``driver_main`` in that engine's own environment, where there is no Octavo.

So they import the standard library and their engine alone; nothing of an engine comes into Octavo.
"""
