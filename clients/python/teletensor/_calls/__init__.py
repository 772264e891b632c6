"""The parts that all functions share: checks of arguments, the parameter out=, nested containers."""
