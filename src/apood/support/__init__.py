"""What every room needs and no library offers as we want it: errors, safe files, progress."""
