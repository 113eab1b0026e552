"""What ``octavo bench`` measures: one module a benchmark, each with its command at the end."""
