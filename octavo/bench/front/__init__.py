"""``octavo bench front``: what the server costs a token and a request, with an engine that answers at once."""
