"""DataModules."""
