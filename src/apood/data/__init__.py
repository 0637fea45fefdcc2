"""Reading inputs: files, folders and data sets of the hub become records of texts or sounds."""
