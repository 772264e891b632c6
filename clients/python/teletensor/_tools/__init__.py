"""Tools for people: administration, doctor, profiles, notebooks, progress of loops."""
