"""Text that has to be of a form: grammars compiled, and which tokens may come next. See docs/structured-output.md."""
