"""Floor 3: the library people import: page store, engine plugin, tools."""
