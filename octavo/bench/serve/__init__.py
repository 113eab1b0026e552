"""``octavo bench serve``: an open-loop load over HTTP against any server that speaks OpenAI's API."""
