"""Moving the pages of one batch between memory and files, in one call."""
