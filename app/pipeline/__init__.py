"""Picture and question to result: no Flask, no command line."""
