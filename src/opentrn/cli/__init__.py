"""The `opentrn` command. `main` knows every sub-command by name; the module of one is imported only when it
is called."""
