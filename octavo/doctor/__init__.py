"""What is wrong with a server, or with the requests that it gets, in sentences with numbers; pure reckoning."""
