"""Sessions: the current one, kept and published names, exceptions with the program's lines, Ctrl-C."""
